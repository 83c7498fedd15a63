"""What came of runs, read from their ledgers alone: one fold, statistics, tables, the report. Nothing here needs torch."""
