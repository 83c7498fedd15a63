"""One run: the experiment, its rounds, the federation that a method sees, evaluation, admission, provenance."""
