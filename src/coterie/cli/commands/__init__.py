"""The commands, one function each; `coterie.cli.main` has the table of them. What they need is imported when they are called."""
