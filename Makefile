# make run: the broker in the foreground. make test: the whole suite. The rest is for those who change the code.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
UNIT_HALVES := unit-tests-of-the-broker other-unit-tests

# pytest rewrites the asserts of all tests, which takes seconds; the next run finds it done, also in a container.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-test run test test-console unit unit-tests $(UNIT_HALVES) check docs soak fuzz simulate bench bench-delay bench-shared bench-spark bench-instructions lock lock-lowest third-party \
	dist image lint-manifests test-install release clean

setup: $(VENV)/.run
run: setup
	@exec $(BIN)/duolog serve

setup-test: $(VENV)/.test
# The tests in tests/wire wait for clients and brokers half of the time, so two cores have four workers.
test: setup-test
	$(MAKE) unit-tests
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m 'not soak and not alone' tests/wire
	$(BIN)/python -m pytest -m 'alone and not soak' tests/wire
# Each page and action of the console in Debian's Chromium; skipped where there is no browser.
test-console: setup-test
	$(BIN)/python -m pytest -q tests/console
unit: setup-test
	$(MAKE) unit-tests \
		UNIT_OPTIONS="-q -m 'not soak and not slow and not further_rows' --hypothesis-profile=few_examples"

# Two halves that take equally long, in two processes: pytest-xdist needs a sixth of the processor time for itself.
unit-tests:
	@$(MAKE) -j2 --output-sync $(UNIT_HALVES)
OTHER_BRIDGE_TESTS := $(addprefix tests/unit/bridge/,cli console http monitoring)
unit-tests-of-the-broker:
	$(BIN)/python -m pytest $(UNIT_OPTIONS) tests/unit/bridge $(addprefix --ignore=,$(OTHER_BRIDGE_TESTS))
other-unit-tests:
	$(BIN)/python -m pytest $(UNIT_OPTIONS) $(filter-out tests/unit/bridge %/__pycache__,$(wildcard tests/unit/*)) $(OTHER_BRIDGE_TESTS)
fuzz: setup-test $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz $(FUZZ)
# Shared logs, and whole brokers with clients, over one object store with faults, in virtual time; SEEDS=10000, or
# SIMULATE=--bugs for bugs that it must find; SIMULATE='--jobs 2' for two processes.
simulate: setup-test
	$(BIN)/python -m tests.simulation logs --seeds $(or $(SEEDS),1000) $(SIMULATE)
	$(BIN)/python -m tests.simulation brokers --seeds $(or $(SEEDS),200) $(SIMULATE)
soak: setup-test
	$(BIN)/python -m pytest -m soak --timeout 7200
bench: setup-test
	$(BIN)/python -m benchmarks $(BENCH)
bench-delay: setup-test
	$(BIN)/python -m benchmarks.delay $(BENCH)
bench-shared: setup-test
	$(BIN)/python -m benchmarks.shared $(BENCH)
# What it costs that a request is authorised; it says so if there is no Valgrind.
bench-instructions: setup-test
	$(BIN)/python -m benchmarks.instructions $(BENCH)
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
	$(VENV)-lock/bin/pip-compile -q $(LOCK_FLAGS) --extra release -c requirements-test.lock -o requirements-release.lock pyproject.toml
	$(MAKE) lock-lowest third-party
LOCK_FLAGS := --generate-hashes --allow-unsafe --all-build-deps --no-header --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

# The lowest versions that pyproject.toml allows, with the newest versions of what these packages need.
lock-lowest: $(VENV)/.release
	$(VENV)-release/bin/uv pip compile -q --resolution lowest-direct --python-version 3.11 --generate-hashes --no-header \
		-o requirements-lowest.lock pyproject.toml

# THIRD_PARTY.md and all other generated pages.
third-party: setup-test
	$(BIN)/python -m pytest -q tests/unit/test_readme.py --rewrite

# Wheel and sdist, in dist/. The wheel is built from the sdist, and has the C extension.
dist: $(VENV)/.release
	rm -rf dist build && mkdir dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(VENV)-release/bin/python -m build -q --no-isolation -o build/dist .
	cp build/dist/*.tar.gz dist/
	PATH=$(CURDIR)/$(VENV)-release/bin:$$PATH $(VENV)-release/bin/auditwheel repair -w dist build/dist/*.whl

# The broker's image. BASE_IMAGE names another base where docker.io is out of reach.
image:
	docker build -f packaging/container/Containerfile --target broker $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) \
		-t duolog:$(VERSION) .
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)

# The Kubernetes manifests: fields and types, then kube-score's rules. Needs Go 1.24 or later, and no cluster.
lint-manifests:
	cd packaging/kubernetes/lint && go run . ../duolog.yaml && go tool kube-score score --exit-one-on-warning ../duolog.yaml

# Installs what is in dist/ by pip, pipx and uv, and with the lowest versions; `INSTALL="-k lowest"` does the last only.
test-install: dist setup-test
	$(BIN)/python -m pytest -q tests/install $(INSTALL)

# All that a release consists of, in dist/, up to its upload. Without a container engine it has no image.
release:
	$(PYTHON) packaging/release.py check
	$(MAKE) check docs lint-manifests
	$(MAKE) test-install
	if docker version >/dev/null 2>&1; then \
		$(MAKE) image && docker save -o dist/$(IMAGE_FILE) duolog:$(VERSION) && gzip -n dist/$(IMAGE_FILE); \
	else echo "no container engine: dist/ has no image"; fi
	$(PYTHON) packaging/release.py checksums
	cd dist && sha256sum --check SHA256SUMS
	@echo "Release $(VERSION) is in dist/. docs/internals/releasing.md says how to upload it."
IMAGE_FILE = duolog-$(VERSION)-image-$(shell uname -m).tar

clean:
	rm -rf $(VENV) $(VENV)-lock $(VENV)-release build dist site *.egg-info protocol/kafka/_records.*.so

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
$(VENV)/.release: requirements-release.lock
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/python -m pip -q install --require-hashes --only-binary :all: -r requirements-release.lock
	@mkdir -p $(VENV) && touch $@
$(VENV)/.docs: requirements-docs.lock | $(BIN)/python
	$(PIP) install --require-hashes --only-binary :all: -r requirements-docs.lock
	@touch $@
