# One door for everything. `make` (or `make help`) lists the targets; each does its own set-up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVERS := .servers/.ready
# The pure half is covered whole by these; the rest runs without the cost of tracing.
TRACED := tests/unit tests/properties tests/machines tests/wire
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test drill check fmt lint types arch bench docs build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) $(SERVERS) ## make the virtual environment and fetch the third-party test servers

$(READY): pyproject.toml requirements/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt \
		--editable '.[trio,http2,tls,cli,h2c,redis]' --group test --group lint --group docs --group build --group bench
	@touch $@

$(SERVERS): $(addprefix tests/interop/servers/,package.json requirements.txt requirements-clients.txt install.sh)
	PYTHON=$(PYTHON) bash tests/interop/servers/install.sh
	@touch $@

demo: $(READY) ## see it work: put, throttle, reshard and read back on the embedded Kinesis
	$(BIN)/python examples/demo.py

test: $(READY) $(SERVERS) ## run all tests
	$(BIN)/python -m pytest

drill: $(READY) $(SERVERS) ## kill, pause, reshard: what a fleet of real processes does then, on every store
	$(BIN)/python tests/drills/drill.py --store all

check: lint types arch $(READY) $(SERVERS) ## what CI runs: lint, types, architecture, all tests, coverage of the pure half
	$(BIN)/python -m pytest --cov --cov-report= $(TRACED)
	$(BIN)/python -m coverage report --include='src/shardline/model/*,src/shardline/codec/*,src/shardline/core/*' --fail-under=100
	$(BIN)/python -m pytest $(TRACED:%=--ignore=%)

fmt: $(READY) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY) ## check style and formatting
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY) ## check types, with mypy and pyright, both strict
	$(BIN)/mypy
	$(BIN)/pyright

arch: $(READY) ## check that imports follow the architecture
	$(BIN)/lint-imports

bench: $(READY) $(SERVERS) ## measure, with the peers beside us
	$(BIN)/python benchmarks/bench_aggregation.py
	$(BIN)/python benchmarks/bench_wire.py
	$(BIN)/python benchmarks/bench_server.py
	$(BIN)/python benchmarks/bench_producer.py
	$(BIN)/python benchmarks/bench_consumer.py

docs: $(READY) ## build the documentation into site/, warnings are errors
	$(BIN)/mkdocs build --strict --quiet

build: $(READY) ## build the wheel and the source distribution into dist/
	$(BIN)/python -m hatchling build --clean

clean: ## remove everything that was made
	rm -rf $(VENV) .servers dist site build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .import_linter_cache
