# Every target sets up what it needs in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo docs test coverage test-long test-deploy test-gpu hostile lint bench fuzz soak audit clean

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Coterie needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/dev: .venv/core
	$(INSTALL) -e '.[dev]'
	touch $@

demo: .venv/core  ## What this is for, in two tables and one page, on data that need no fetching: a minute.
	$(BIN)/coterie demo

test: .venv/dev lint  ## Everything that must hold.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

coverage: .venv/dev  ## The same tests, half as slow again, and the lines that none of them runs; below 90% it fails.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered -q

test-long: .venv/dev  ## The long form of all tests, of which CI has one of every kind.
	OMP_NUM_THREADS=1 COTERIE_LONG=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

test-deploy: .venv/dev  ## Of it, those with real participants and a Ray cluster: every method, every fault; about half an hour.
	OMP_NUM_THREADS=1 COTERIE_LONG=1 $(BIN)/python -m pytest -q tests/deployment tests/engines/test_ray.py

docs: .venv/dev  ## The documentation site, into site/: open site/index.html.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

hostile: .venv/core  ## All that one client can do to a run, each by itself, on every engine, three times over; ten minutes.
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.clients --tries 3

test-gpu: .venv/dev  ## What only a machine with a GPU can test: same bits twice, and the bytes that a run has on a CPU.
	COTERIE_GPU=1 $(BIN)/python -m pytest -q tests/test_devices.py

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/core  ## Ratios within one run; needs MNIST, CIFAR-10 and the digit domains in the data folder.
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/frozen.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/selection.py
	$(BIN)/python benchmarks/fccl.py

SECONDS ?= 600
fuzz: .venv/dev  ## Bytes from outside, for so long: make fuzz SECONDS=3600.
	OMP_NUM_THREADS=1 $(BIN)/python -W error -m tests.hostile.fuzz --seconds $(SECONDS) --examples 500

soak: .venv/dev  ## Kills, power cuts, flipped bits, signals and long runs, many times over; hours.
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.kill --tries 300
	OMP_NUM_THREADS=1 COTERIE_LONG=1 COTERIE_TRIES=25 $(BIN)/python -m pytest -q tests/hostile --ignore tests/hostile/test_kill.py

audit:  ## Known weaknesses of the pinned versions, asked of PyPI: needs the network, and fails where a version cannot be looked up.
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

clean:
	rm -rf .venv .venv-audit runs build dist site
