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
NATIVE := $(VENV)/.native
INSTALL := $(PYTHON) requirements/install.py --into $(VENV)
SERVERS := .servers/.ready
KCL := .servers/kcl/.ready
MAVEN := .servers/java/.ready
SECURITY := .security
PROOF_SEEDS ?= 5000
# The pure half is covered whole by these, which only compute: one process a core. All else, also the machines and the
# properties, runs without the cost of tracing.
TRACED := tests/unit/model tests/unit/codec tests/unit/core tests/wire
# make cover runs the traced tests in the pure form. The suite runs those of them that use compiled functions again, in the
# compiled form, and the tests that drive the machines in the pure form, too.
COMPILED := --ignore=tests/unit/codec --ignore=tests/unit/core
PURE := tests/machines tests/properties tests/sim/test_producer.py tests/native/test_selection.py
# What the sanitizers watch: all that calls compiled functions without an event loop.
SANITIZED := tests/native tests/unit/core/producer tests/unit/codec tests/machines/test_producer_promises.py \
	tests/properties/test_packing_properties.py tests/properties/test_aggregation_properties.py \
	tests/unit/core/consumer/test_deaggregator.py
# What differs from one Python to the next, as far as that is tested in a minute: the C extension, adapters and codecs, and
# the shells' start, end, cancellation, threads and TLS. None of these needs a third-party server.
QUICK := tests/unit/adapters tests/unit/codec tests/wire tests/packaging tests/native \
	$(addprefix tests/shell/test_,client.py host_tasks.py lifecycle.py tls.py stream_waiters.py) \
	$(addprefix tests/shell/producer/test_,delivery.py producer_lifecycle.py sync_producer.py) \
	$(addprefix tests/shell/consumer/test_,handlers.py iteration.py resharding.py)
# Four at a time, also on two cores: many tests wait more than they compute. Each has its own servers, ports and directories.
# Only those that go by the clock run one by one.
PROCESSES ?= 4
TIMES ?= 1
PYTEST := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal -m 'not clock'
# A test that failed beside others runs once more, alone, because a busy machine can break a limit of time. The tests that
# go by the clock also get a second try. Both results are printed, and a test that fails twice fails the target.
AGAIN := --last-failed --last-failed-no-failures none
PYTEST_AGAIN := $(BIN)/python -m pytest -m 'not clock' $(AGAIN)
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
.PHONY: help setup sets native demo test test-browser test-prometheus test-postgres once-kills test-optimized sanitize static cover suite clock quick sim sim-soak drill drill-full java soak proof check fmt lint types mypy pyright public-types arch bench bench-report bench-guard bench-java conformance docs pictures mutants fuzz fuzz-native audit sbom build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: sets $(NATIVE) $(SERVERS) ## install what all targets of CI need: the virtual environment and the third-party test servers

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

$(NATIVE): build_native.py src/shardline/__init__.py $(wildcard src/shardline/_speedups/*.[ch]) | $(BUILD)
	$(BIN)/python build_native.py
	@touch $@

native: $(NATIVE) ## compile the C extension in place, if this machine has a compiler; SHARDLINE_PURE=1 runs without it

$(MAVEN): $(addprefix tests/interop/java/,install-maven.sh kpl.xml kcl.xml kcl2.xml KplClient.java KclWorker.java)
	sh tests/interop/java/install-maven.sh
	@touch $@

demo: $(DEMO) ## see it work, in less than half a minute: produce, throttle, reshard, kill a worker, count
	$(BIN)/shardline demo

test: $(TEST) $(NATIVE) $(SERVERS) ## run all tests, with the coverage of the pure half; CI runs this too
	$(MAKE) cover
	$(MAKE) suite
	$(MAKE) clock

sim: $(TEST) $(NATIVE) ## simulated worlds from SEEDS=500 seeds; SEED=7 tells the story of one; WORLD=producer for those of a producer alone
	$(BIN)/python tests/sim/simulate.py --world $(or $(WORLD),fleet) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),500))

sim-soak: $(TEST) $(NATIVE) ## simulated worlds that nobody has seen, for HOURS=1; the report is build/soak/report.md
	$(BIN)/python tests/sim/simulate.py --hours $(or $(HOURS),1)

drill: $(TEST) $(NATIVE) $(SERVERS) ## kill, pause, reshard: what a fleet of real processes does then, on every store
	$(BIN)/python tests/drills/drill.py --store all

drill-full: $(TEST) $(NATIVE) $(SERVERS) ## the same, with real durations: leases of 10 s, a handler of 35 s, a minute without Kinesis
	$(BIN)/python tests/drills/drill.py --store all --full

java: $(TEST) $(NATIVE) $(SERVERS) $(KCL) $(MAVEN) ## the Java KCL (2.7, 3.1, 3.5) reads what we put, takes over our lease table, and we its, and shares it with us; an hour
	$(BIN)/python tests/drills/drill.py java-reads java-after-us us-after-java java-fan-out java-leads java-rolling newest-java-leads newest-java-rolling old-java

soak: $(TEST) $(NATIVE) ## ten minutes (SOAK_SECONDS=600) at a steady rate: does the memory stay flat?
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

cover: $(TEST) $(NATIVE) $(SERVERS)
	SHARDLINE_PURE=1 $(PYTEST) --numprocesses auto --cov --cov-report= $(TRACED) || \
		SHARDLINE_PURE=1 $(PYTEST_AGAIN) --cov --cov-append --cov-report=
	$(BIN)/python -m coverage report --include='src/shardline/model/*,src/shardline/codec/*,src/shardline/core/*' --fail-under=100

suite: $(TEST) $(NATIVE) $(SERVERS)
	$(PYTEST) $(filter-out $(COMPILED),$(TRACED:%=--ignore=%)) || $(PYTEST_AGAIN)
	SHARDLINE_PURE=1 $(PYTEST) $(PURE) || SHARDLINE_PURE=1 $(PYTEST_AGAIN)

clock: $(TEST) $(NATIVE) $(SERVERS)
	$(PYTEST_CLOCK) || $(PYTEST_CLOCK) $(AGAIN)

test-browser: $(TEST) ## let a real Chromium (apt-get install chromium; or CHROMIUM=path) attack the embedded server from web pages
	$(BIN)/python -m pytest tests/browser || $(BIN)/python -m pytest tests/browser $(AGAIN)

test-prometheus: $(TEST) ## let a real Prometheus (apt-get install prometheus) scrape a fleet, and check the dashboard and the alerts
	$(BIN)/python -m pytest tests/prometheus || $(BIN)/python -m pytest tests/prometheus $(AGAIN)

test-postgres: $(TEST) ## let the lease store run on a real PostgreSQL, also behind pgbouncer (apt-get install postgresql pgbouncer)
	$(BIN)/python -m pytest --numprocesses 2 tests/postgres || $(BIN)/python -m pytest tests/postgres $(AGAIN)

once-kills: $(TEST) ## kill 100 workers that write to a real PostgreSQL, TIMES times in a row: is every record there exactly once?
	for time in $$(seq $(TIMES)); do \
		SHARDLINE_KILLS=100 $(BIN)/python -m pytest -s tests/postgres/test_exactly_once.py -k killed || exit 1; \
	done

sanitize: $(TEST) ## run the tests of the C extension under AddressSanitizer and UndefinedBehaviorSanitizer (needs gcc)
	rm -rf build/sanitize
	mkdir -p build/sanitize
	cp -r src build_native.py build/sanitize
	rm -f build/sanitize/src/shardline/_speedups/*.so
	SHARDLINE_BUILD=native SHARDLINE_CFLAGS='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined' \
		SHARDLINE_LDFLAGS='-fsanitize=address,undefined' $(BIN)/python build/sanitize/build_native.py
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		PYTHONMALLOC=malloc PYTHONPATH=build/sanitize/src $(BIN)/python -m pytest -p no:cacheprovider $(SANITIZED)

test-optimized: $(TEST) $(NATIVE) ## run the tests with python -O where that can make a difference
	$(BIN)/python -O -m pytest --numprocesses $(PROCESSES) --dist worksteal $(OPTIMIZED) || \
		$(BIN)/python -O -m pytest $(AGAIN)
	$(BIN)/python -O tests/sim/simulate.py --world producer --seeds 200
	$(BIN)/python -O tests/sim/simulate.py --world fleet --seeds 100

quick: $(TEST) $(NATIVE) ## run the part of the tests that takes a minute and needs no Node; CI runs it with every Python
	$(PYTEST) -m 'not clock and not interop' $(QUICK) || $(PYTEST_AGAIN)

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

bench: $(BENCH) $(NATIVE) $(SERVERS) ## measure, with the peers beside us
	$(BIN)/python benchmarks/bench_aggregation.py
	$(BIN)/python benchmarks/bench_wire.py
	$(BIN)/python benchmarks/bench_server.py
	$(BIN)/python benchmarks/bench_producer.py
	$(BIN)/python benchmarks/bench_consumer.py
	$(BIN)/python benchmarks/bench_handlers.py
	$(BIN)/python benchmarks/bench_fanout.py
	$(BIN)/python benchmarks/bench_growth.py
	$(BIN)/python benchmarks/bench_sinks.py
	$(BIN)/python benchmarks/bench_failover.py

bench-report: $(BENCH) $(NATIVE) $(SERVERS) ## measure everything and write docs/tested/benchmarks.md, with its plots
	$(BIN)/python benchmarks/bench_report.py

bench-guard: $(BENCH) $(NATIVE) $(SERVERS) ## fail if a ratio to a peer fell by more than a quarter since the report; CI runs it too
	$(BIN)/python benchmarks/guard.py

bench-java: $(TEST) $(BENCH) $(NATIVE) $(SERVERS) $(MAVEN) ## run the KPL and the newest KCL beside us, and write their report; needs a JDK and Maven
	$(BIN)/python benchmarks/bench_java.py --write
	$(BIN)/python tests/drills/drill.py newest-java-reads --report docs/tested/drill-results-java.md --part newest-java

conformance: $(TEST) $(SERVERS) ## compare the embedded server and kinesis-local with what AWS answers; AWS=1 plays it on AWS itself (ONLY, RECORD, RESUME, FRESH, CLEAN, YES)
	$(BIN)/python -m tests.conformance $(if $(AWS),--aws) $(if $(ENDPOINT),--endpoint $(ENDPOINT)) $(foreach name,$(ONLY),--only '$(name)') \
		$(if $(RECORD),--record $(RECORD)) $(if $(YES),--yes) $(if $(RESUME),--resume) $(if $(FRESH),--fresh) $(if $(CLEAN),--clean)

docs: $(TEST) $(DOCS) ## build the documentation into site/, warnings are errors; make test checks links, words and pictures
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs examples benchmarks src
	SHARDLINE_REPOSITORY='$(REPOSITORY)' NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: $(TEST) ## run the demo, measure the producer's settings, and draw the pictures of the documentation (needs Chromium)
	$(BIN)/python docs/pictures/demo.py
	$(BIN)/python docs/pictures/console.py
	$(BIN)/python benchmarks/tuning.py
	$(BIN)/python docs/pictures/draw.py

mutants: $(TEST) ## make the code wrong in hundreds of ways, see which test notices, and write docs/tested/mutants.md
	$(BIN)/python tests/mutants/run.py --write --whole -j 2

fuzz: $(TEST) $(NATIVE) $(FUZZ) ## fuzz every decoder and the server for SECONDS=60 each; what reaches new code joins the corpus
	$(BIN)/python tests/fuzz/campaign.py --keep --seconds $(or $(SECONDS),60)
	$(BIN)/python tests/fuzz/server_campaign.py --seconds $(or $(SECONDS),60)

fuzz-native: ## fuzz the C reader of aggregates with libFuzzer for SECONDS=60 (needs clang; CLANG names another one)
	mkdir -p build/fuzz/corpus
	$(or $(CLANG),clang) -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
		-I src/shardline/_speedups tests/fuzz/aggregate_format.c -o build/fuzz/aggregate_format
	build/fuzz/aggregate_format -max_total_time=$(or $(SECONDS),60) -artifact_prefix=build/fuzz/ build/fuzz/corpus

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
