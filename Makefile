# make unit | test | coverage | fuzz | ends | compat-next | matrix | celery-suite | cluster | containers | bench | bench-quick | demo | shop | docs | lint | format
#      transcripts | screenshots | clean
# The environment is made when it is missing or pyproject.toml has changed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: unit test coverage fuzz ends compat-next matrix celery-suite cluster containers bench bench-quick demo shop docs lint format transcripts screenshots clean

# The fast loop: ruff on the files that differ from the main branch, and all tests that need no broker.
unit: .venv/ready
	@base=$$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD 2>/dev/null || true); \
	 files=$$({ git diff --name-only --diff-filter=d $$base -- '*.py'; git ls-files --others --exclude-standard '*.py'; } 2>/dev/null || true); \
	 if [ -n "$$files" ]; then $(BIN)/ruff check --quiet --force-exclude $$files && $(BIN)/ruff format --quiet --check $$files; fi
	@HYPOTHESIS_PROFILE=loop $(BIN)/python -m pytest -q -n auto tests/unit

# The pure folders, measured over tests/unit. pyproject.toml names them.
coverage: .venv/ready
	@mkdir -p build
	@HYPOTHESIS_PROFILE=loop $(BIN)/coverage run -m pytest -q -p no:xdist tests/unit
	@$(BIN)/coverage report

# Three at a time, each with a RabbitMQ of its own; a given one they would have to share, and tests restart it.
# TESTS=tests/worker/test_retry.py runs only these.
test: lint
	@$(BIN)/python -m pytest $(TESTS) $(if $(DLX_TEST_BROKER_URL),,-n 3 --dist loadfile)

# Hostile inputs for commands, API, settings, URLs, messages, letters and files; `make test` runs them with a fixed seed.
# Here the seed is a new one, and is printed. SEED=… INPUTS=20000 ONLY=letters-7 runs what a failure names.
fuzz: .venv/ready
	@DLX_FUZZ_SEED=$(or $(SEED),random) DLX_FUZZ_INPUTS=$(INPUTS) DLX_FUZZ_ONLY=$(ONLY) $(BIN)/python -m pytest tests/fuzz

# The oldest and the newest Python, Celery and RabbitMQ that we support, as far as they are on this machine.
ends: .venv/matrix
	@$(BIN)/python tests/matrix.py ends

# Whether the newest pre-releases of Celery, Kombu and py-amqp still have every private name that we use.
compat-next:
	@test -x build/compat-next/bin/python || $(PYTHON) -m venv build/compat-next
	@build/compat-next/bin/python -m pip install --quiet --upgrade --pre celery kombu amqp billiard pytest
	@build/compat-next/bin/python -m pip list | grep -E '^(celery|kombu|amqp|billiard) '
	@PYTHONPATH=. build/compat-next/bin/python -m pytest -c /dev/null --rootdir . -p no:cacheprovider --noconftest -q \
	    --import-mode=importlib tests/unit/test_celery_compat.py

# Each with each, and the diagonal, into docs/compatibility.md: three quarters of an hour.
# ENVS="smoke-py310-celery55 …" runs only these again; the page is of the last run of each.
matrix: .venv/matrix
	@$(BIN)/python tests/matrix.py all $(ENVS)

# Celery's own tests with plain Celery and with ours, compared, into docs/compatibility.md: half an hour.
# SUITES="unit integration" runs only these; tests/celery_suite/suites.py has the names.
celery-suite: build/celery-suite/ready
	@PYTHONPATH=tests build/celery-suite/venv/bin/python -m celery_suite.run $(SUITES)

# Three RabbitMQ nodes and what happens when one of them dies.
cluster: .venv/ready
	@$(BIN)/python -m pytest tests/cluster

# RabbitMQ, Redis and a worker with this checkout, each in a container.
containers: .venv/ready
	@if $(BIN)/python -c 'import docker; docker.from_env(timeout=3).ping()' 2>/dev/null; \
	 then $(BIN)/python -m pytest tests/containers; \
	 else echo "No Docker engine answers: tests/containers is not run."; fi

# Ways for a retry to wait, side by side, into docs/benchmarks.md: a quarter of an hour, best on a machine without other work.
bench: .venv/bench
	@$(BIN)/python -m benchmarks.compare --page docs/benchmarks.md

# The same, smaller, in two minutes; into build/bench.
bench-quick: .venv/bench
	@$(BIN)/python -m benchmarks.compare --quick

demo: .venv/demo
	@$(BIN)/python -m example_project.demo

# A Django and a Flask shop whose bank, mail server and partners fail; FLAGS="--before", FLAGS="--down 180".
shop: .venv/shop
	@$(BIN)/python -m example_project.webshop $(FLAGS)

# The pages as a site, in build/site.
docs: .venv/docs
	@$(BIN)/python docs/pictures.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

lint: .venv/ready
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: .venv/ready
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# Write the terminal sessions and pictures on the pages again, from real runs.
transcripts: .venv/ready
	@$(BIN)/python docs/transcript.py
	@$(BIN)/python docs/terminal.py
	@$(BIN)/python docs/pictures.py
	@DLX_WRITE_TRANSCRIPTS=1 $(BIN)/python -m pytest -q tests/acceptance/test_cli_docs.py tests/acceptance/test_side_by_side.py

# The pictures of docs/monitoring-pictures.md, from a real run: three minutes, and Debian's chromium and prometheus.
screenshots: .venv/ready
	@$(BIN)/python docs/screenshots.py

clean:
	@rm -rf .venv .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# Debian has venv in a package of its own; only root can do something about it.
.venv/demo: pyproject.toml
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && echo "apt-get: installing python3-venv" >&2 \
	       && apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3-venv >/dev/null; } \
	  || { echo "$(PYTHON) cannot make virtual environments: install python3-venv, or choose another with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

.venv/shop: .venv/demo
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[shop]'
	@touch $@

.venv/docs: .venv/demo
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

.venv/bench: .venv/demo
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

.venv/matrix: .venv/demo
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[matrix]'
	@touch $@

.venv/ready: .venv/demo
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

# Other projects' test requirements stay out of .venv; the Celery is the same.
build/celery-suite/ready: .venv/demo tests/celery_suite/requirements.txt
	@$(PYTHON) -m venv --clear build/celery-suite/venv
	@build/celery-suite/venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]' \
	  --requirement tests/celery_suite/requirements.txt \
	  "celery==$$($(BIN)/python -c 'from importlib.metadata import version; print(version("celery"))')"
	@touch $@
