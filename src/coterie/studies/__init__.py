"""Several runs that answer a question: comparisons, and papers' tables run again."""
