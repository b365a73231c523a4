# One door for everything. `make` (or `make help`) lists the targets; each does its own set-up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What a target needs is installed as a set (requirements/install.py); each set has a stamp in the environment.
SETS := demo test types bench lint docs build fuzz
DEMO := $(VENV)/.demo
TEST := $(VENV)/.test
TYPES := $(VENV)/.types
BENCH := $(VENV)/.bench
LINT := $(VENV)/.lint
DOCS := $(VENV)/.docs
BUILD := $(VENV)/.build
FUZZ := $(VENV)/.fuzz
INSTALL := $(PYTHON) requirements/install.py --into $(VENV)
SERVERS := .servers/.ready
KCL := .servers/kcl/.ready
SECURITY := .security
PROOF_SEEDS ?= 5000
# The pure half is covered whole by these, which only compute: one process a core. All else, also the machines and the
# properties, runs without the cost of tracing.
TRACED := tests/unit/model tests/unit/codec tests/unit/core tests/wire
# What differs from one Python to the next, as far as that is tested in a minute: adapters and codecs, and the shells' start,
# end, cancellation, threads and TLS. None of these needs a third-party server.
QUICK := tests/unit/adapters tests/unit/codec tests/wire tests/packaging \
	$(addprefix tests/shell/test_,client.py host_tasks.py lifecycle.py tls.py stream_waiters.py) \
	$(addprefix tests/shell/producer/test_,delivery.py producer_lifecycle.py sync_producer.py) \
	$(addprefix tests/shell/consumer/test_,handlers.py iteration.py resharding.py)
# Four at a time, also on two cores: many tests wait more than they compute. Each has its own servers, ports and directories.
# Only those that go by the clock run one by one.
PROCESSES ?= 4
PYTEST := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal -m 'not clock'
PYTEST_CLOCK := $(BIN)/python -m pytest -m clock tests/shell
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# The https address of the git remote, for the links of the site; empty if the remote is not public.
REPOSITORY ?= $(shell git config --get remote.origin.url | sed -nE 's,^(https://|ssh://git@|git@)([a-z0-9.-]+\.[a-z]+)[:/]([^@]*[^/@])$$,https://\2/\3,; s,\.git$$,,; /^https:/p')
# Without cached bytecode, each process of each stage rewrites the assertions of all tests again.
unexport PYTHONDONTWRITEBYTECODE

# Where python -O can make a difference: the machines under the simulation's oracles, whose own assertions are kept, and
# what checks objects that others made (transports, stored rows).
OPTIMIZED := tests/sim/test_keep_assertions.py \
	tests/machines/test_producer_promises.py tests/machines/test_consumer_promises.py tests/unit/server/test_storage.py \
	tests/unit/adapters/http/test_wire_streams.py tests/shell/test_uvloop_policy.py tests/shell/test_client.py

.DEFAULT_GOAL := help
.PHONY: help setup sets demo test test-browser test-prometheus test-optimized static cover suite clock quick sim sim-soak drill drill-full java soak proof check fmt lint types mypy pyright public-types arch bench bench-report bench-guard conformance docs pictures mutants fuzz audit sbom build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: sets $(SERVERS) ## install what all targets of CI need: the virtual environment and the third-party test servers

sets:
	@$(INSTALL) test types bench lint docs build

$(SETS:%=$(VENV)/.%): $(VENV)/.%: pyproject.toml requirements/constraints.txt requirements/install.py
	@$(INSTALL) $*

$(SERVERS): $(addprefix tests/interop/servers/,package.json package-clients.json requirements.txt requirements-clients.txt install.sh)
	PYTHON=$(PYTHON) bash tests/interop/servers/install.sh
	@touch $@

$(KCL): $(addprefix tests/interop/java/,requirements.txt install.sh) | $(TEST)
	PYTHON=$(BIN)/python sh tests/interop/java/install.sh
	@touch $@

demo: $(DEMO) ## see it work, in less than half a minute: produce, throttle, reshard, kill a worker, count
	$(BIN)/shardline demo

test: $(TEST) $(SERVERS) ## run all tests, with the coverage of the pure half; CI runs this too
	$(MAKE) cover
	$(MAKE) suite
	$(MAKE) clock

sim: $(TEST) ## simulated worlds from SEEDS=500 seeds; SEED=7 tells the story of one; WORLD=producer for those of a producer alone
	$(BIN)/python tests/sim/simulate.py --world $(or $(WORLD),fleet) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),500))

sim-soak: $(TEST) ## simulated worlds that nobody has seen, for HOURS=1; the report is build/soak/report.md
	$(BIN)/python tests/sim/simulate.py --hours $(or $(HOURS),1)

drill: $(TEST) $(SERVERS) ## kill, pause, reshard: what a fleet of real processes does then, on every store
	$(BIN)/python tests/drills/drill.py --store all

drill-full: $(TEST) $(SERVERS) ## the same, with real durations: leases of 10 s, a handler of 35 s, a minute without Kinesis
	$(BIN)/python tests/drills/drill.py --store all --full

java: $(TEST) $(SERVERS) $(KCL) ## the Java KCL reads what we put, takes over our lease table, and we its, and reads beside us by fan-out
	$(BIN)/python tests/drills/drill.py java-reads java-after-us us-after-java java-fan-out

soak: $(TEST) ## ten minutes (SOAK_SECONDS=600) at a steady rate: does the memory stay flat?
	$(BIN)/python tests/drills/drill.py soak

proof: drill-full java soak mutants fuzz ## all that takes too long for CI: drills, the Java KCL, soak, mutants, fuzzing, many seeds (PROOF_SEEDS=5000)
	$(MAKE) sim WORLD=fleet SEED= SEEDS=$(PROOF_SEEDS)
	$(MAKE) sim WORLD=producer SEED= SEEDS=$(PROOF_SEEDS)
	$(MAKE) audit AUDIT=--strict

check: $(TEST) $(TYPES) $(LINT) $(SERVERS) ## most of what CI runs: lint, types, architecture and all tests
	$(MAKE) static
	$(MAKE) test

static: $(TEST) $(TYPES) $(LINT)
	$(MAKE) --jobs 2 --output-sync=target pyright mypy public-types lint arch

cover: $(TEST) $(SERVERS)
	$(PYTEST) --numprocesses auto --cov --cov-report= $(TRACED)
	$(BIN)/python -m coverage report --include='src/shardline/model/*,src/shardline/codec/*,src/shardline/core/*' --fail-under=100

suite: $(TEST) $(SERVERS)
	$(PYTEST) $(TRACED:%=--ignore=%)

clock: $(TEST) $(SERVERS)
	$(PYTEST_CLOCK)

test-browser: $(TEST) ## let a real Chromium (apt-get install chromium; or CHROMIUM=path) attack the embedded server from web pages
	$(BIN)/python -m pytest tests/browser

test-prometheus: $(TEST) ## let a real Prometheus (apt-get install prometheus) scrape a fleet, and check the dashboard and the alerts
	$(BIN)/python -m pytest tests/prometheus

test-optimized: $(TEST) ## run the tests with python -O where that can make a difference
	$(BIN)/python -O -m pytest --numprocesses $(PROCESSES) --dist worksteal $(OPTIMIZED)
	$(BIN)/python -O tests/sim/simulate.py --world producer --seeds 200
	$(BIN)/python -O tests/sim/simulate.py --world fleet --seeds 100

quick: $(TEST) ## run the part of the tests that takes a minute and needs no Node; CI runs it with every Python
	$(PYTEST) -m 'not clock and not interop' $(QUICK)

fmt: $(LINT) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(LINT) $(TEST) ## check style, formatting and the words of pages and source
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tests/docs/plain_english.py

types: mypy pyright public-types ## check types, with mypy and pyright, both strict

mypy: $(TYPES)
	$(BIN)/mypy

public-types: $(TYPES) $(TEST)
	$(BIN)/python tests/typing/check_public_types.py

pyright: $(TYPES)
	$(BIN)/pyright

arch: $(TEST) ## check that imports follow the architecture
	$(BIN)/lint-imports

bench: $(BENCH) $(SERVERS) ## measure, with the peers beside us
	$(BIN)/python benchmarks/bench_aggregation.py
	$(BIN)/python benchmarks/bench_wire.py
	$(BIN)/python benchmarks/bench_server.py
	$(BIN)/python benchmarks/bench_producer.py
	$(BIN)/python benchmarks/bench_consumer.py
	$(BIN)/python benchmarks/bench_fanout.py
	$(BIN)/python benchmarks/bench_growth.py
	$(BIN)/python benchmarks/bench_sinks.py
	$(BIN)/python benchmarks/bench_failover.py

bench-report: $(BENCH) $(SERVERS) ## measure everything and write docs/tested/benchmarks.md, with its plots
	$(BIN)/python benchmarks/bench_report.py

bench-guard: $(BENCH) $(SERVERS) ## fail if a ratio to a peer fell by more than a quarter since the report; CI runs it too
	$(BIN)/python benchmarks/guard.py

conformance: $(TEST) $(SERVERS) ## compare the embedded server and kinesis-local with what AWS answers; AWS=1 plays it on AWS itself (ONLY, RECORD, RESUME, FRESH, CLEAN, YES)
	$(BIN)/python -m tests.conformance $(if $(AWS),--aws) $(if $(ENDPOINT),--endpoint $(ENDPOINT)) $(foreach name,$(ONLY),--only '$(name)') \
		$(if $(RECORD),--record $(RECORD)) $(if $(YES),--yes) $(if $(RESUME),--resume) $(if $(FRESH),--fresh) $(if $(CLEAN),--clean)

docs: $(TEST) $(DOCS) ## build the documentation into site/, warnings are errors; make test checks links, words and pictures
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs examples benchmarks src
	SHARDLINE_REPOSITORY='$(REPOSITORY)' NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: $(TEST) ## run the demo, measure the producer's settings, and draw the pictures of the documentation
	$(BIN)/python docs/pictures/demo.py
	$(BIN)/python benchmarks/tuning.py
	$(BIN)/python docs/pictures/draw.py

mutants: $(TEST) ## make the code wrong in hundreds of ways, see which test notices, and write docs/tested/mutants.md
	$(BIN)/python tests/mutants/run.py --write -j 2

fuzz: $(TEST) $(FUZZ) ## fuzz every decoder and the server for SECONDS=60 each; what reaches new code joins the corpus
	$(BIN)/python tests/fuzz/campaign.py --keep --seconds $(or $(SECONDS),60)
	$(BIN)/python tests/fuzz/server_campaign.py --seconds $(or $(SECONDS),60)

$(SECURITY)/.ready: pyproject.toml requirements/constraints.txt
	$(PYTHON) -m venv $(SECURITY)/tools
	$(PYTHON) -m venv --without-pip $(SECURITY)/users
	$(SECURITY)/tools/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(SECURITY)/tools/bin/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt --group security
	$(SECURITY)/tools/bin/python -m pip --python $(SECURITY)/users/bin/python install --quiet --disable-pip-version-check \
		-c requirements/constraints.txt '.[local,trio,tls,cli,redis,prometheus,health]'
	@touch $@

audit: $(SECURITY)/.ready ## look up known vulnerabilities of what users install; AUDIT=--strict fails if nobody can be asked
	$(SECURITY)/tools/bin/python tests/security/audit.py $(AUDIT) $(SECURITY)/users/lib/python*/site-packages

sbom: $(SECURITY)/.ready ## write dist/shardline.cdx.json: what users install, as a CycloneDX bill of materials
	@mkdir -p dist
	$(SECURITY)/tools/bin/python tests/security/sbom.py $(SECURITY)/users/bin/python dist/shardline.cdx.json

build: $(BUILD) ## build the wheel and the source distribution into dist/
	$(BIN)/python -m hatchling build --clean

clean: ## remove everything that was made
	rm -rf $(VENV) $(SECURITY) .servers dist site build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .import_linter_cache
