# make run: the broker in the foreground. make test: the whole suite. The rest is for those who change the code.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# pytest rewrites the asserts of all tests, which takes seconds; the next run finds it done, also in a container.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-test run test unit check docs soak fuzz bench bench-delay bench-spark lock clean

setup: $(VENV)/.run
run: setup
	@exec $(BIN)/duolog serve

setup-test: $(VENV)/.test
test: setup-test
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/unit
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not soak and not alone' tests/wire
	$(BIN)/python -m pytest -m alone tests/wire
unit: setup-test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not soak and not power_cut' tests/unit
fuzz: setup-test $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz $(FUZZ)
soak: setup-test
	$(BIN)/python -m pytest -m soak --timeout 7200
bench: setup-test
	$(BIN)/python -m benchmarks $(BENCH)
bench-delay: setup-test
	$(BIN)/python -m benchmarks.delay $(BENCH)
bench-spark: setup-test
	$(BIN)/python -m benchmarks --only spark $(BENCH)

check: setup-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_layers.py

# The documentation site, from docs/ into site/. A broken link fails the build.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The lock files pin every third-party package by hash; `make lock` renews them from pyproject.toml.
lock:
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip -q install pip-tools
	$(VENV)-lock/bin/pip-compile -q $(LOCK_FLAGS) -o requirements.lock pyproject.toml
	$(VENV)-lock/bin/pip-compile -q $(LOCK_FLAGS) --extra test -o requirements-test.lock pyproject.toml
	$(VENV)-lock/bin/pip-compile -q $(LOCK_FLAGS) --extra fuzz -o requirements-fuzz.lock pyproject.toml
	$(VENV)-lock/bin/pip-compile -q $(LOCK_FLAGS) --extra docs -c requirements-test.lock -o requirements-docs.lock pyproject.toml
LOCK_FLAGS := --generate-hashes --allow-unsafe --all-build-deps --no-header --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

clean:
	rm -rf $(VENV) $(VENV)-lock build site *.egg-info protocol/kafka/_records.*.so

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Duolog needs Python 3.11 or later; name one with PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
$(VENV)/.run: requirements.lock pyproject.toml setup.py protocol/kafka/_records.c | $(BIN)/python
	$(PIP) install --require-hashes --only-binary :all: -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@
$(VENV)/.test: requirements-test.lock $(VENV)/.run
	$(PIP) install --require-hashes -r requirements-test.lock
	@touch $@
$(VENV)/.fuzz: requirements-fuzz.lock | $(BIN)/python
	$(PIP) install --require-hashes --only-binary :all: -r requirements-fuzz.lock
	@touch $@
$(VENV)/.docs: requirements-docs.lock | $(BIN)/python
	$(PIP) install --require-hashes --only-binary :all: -r requirements-docs.lock
	@touch $@
