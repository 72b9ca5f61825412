# Everything a bare clone needs: Python 3.11 or newer, make and pip. No root, no Docker, no network but PyPI.
#
#   make demo     install, run a whole job on embedded parts, show the result
#   make test     install, lint, check types, run the test suite
#
# Packages come from lock files with a hash for each file; nothing is installed again until a lock changes.

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3 python python3.14 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)))
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := common producer consumers ops
PURE := $(wildcard tests/unit tests/property)
# The longest first, so that no process is left alone with one at the end.
REAL := $(wildcard tests/chaos tests/integration tests/browser)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo install test lint unit bench chaos audit lock clean

help:
	@sed -n 's/^#   //p' Makefile
	@echo 'make install  only install, with everything but the test tools'
	@echo 'make lint     ruff and mypy'
	@echo 'make unit     the tests of pure code, and the store as a model: two minutes'
	@echo 'make bench    measure, and write docs/performance.md; BENCHES="noop http" measures some'
	@echo 'make chaos    the long chaos run; KILLS=3000 JOBS=900000 SEED=1 change it'
	@echo 'make audit    look for known vulnerabilities in what is locked'
	@echo 'make lock     resolve the lock files anew (needs uv)'
	@echo 'make clean    remove what was installed, built and cached'

demo: $(VENV)/.demo
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m ops.demo

install: $(VENV)/.runtime

test: lint
	@echo '== the tests of pure code, in parallel =='
	@rm -f .coverage .coverage.*
	@$(BIN)/pytest $(PURE) -m 'not long' --numprocesses 2 --cov --cov-report= --cov-fail-under=0
	@echo '== the tests with real processes, which wait more than they work: three at a time =='
	@$(BIN)/pytest $(REAL) -m 'not long' --numprocesses 3 --dist worksteal --cov --cov-append --cov-report=term:skip-covered

lint: $(VENV)/.dev
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

unit: $(VENV)/.dev
	@$(BIN)/pytest $(PURE) -m 'not long' --numprocesses 2

bench: $(VENV)/.dev
	@$(BIN)/python tests/bench/run.py $(BENCHES)

KILLS ?= 3000
JOBS ?= 900000
SEED ?= 1
chaos: $(VENV)/.dev
	@KILLS=$(KILLS) JOBS=$(JOBS) SEED=$(SEED) $(BIN)/pytest tests/chaos -m long -s --timeout=0

audit: $(VENV)/.dev
	@$(BIN)/pip-audit --require-hashes --disable-pip --requirement requirements.lock

# -- installation -------------------------------------------------------------------------------------------

$(VENV)/bin/python:
	@test -n '$(PYTHON)' || { echo 'promptmill needs Python 3.11 or newer; name it: make PYTHON=/path/to/python3' >&2; exit 1; }
	@echo "== a virtual environment in $(VENV), with $$($(PYTHON) --version) =="
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null && $(PYTHON) -m venv $(VENV) \
		|| { $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

# $(1): the name of the set, $(2): its lock file
define install_set
$(VENV)/.$(1): $(2) pyproject.toml | $(VENV)/bin/python
	@echo '== installing what $(2) names =='
	@$$(INSTALL) --require-hashes --requirement $(2)
	@PYTHONWARNINGS=ignore $$(INSTALL) --no-build-isolation --no-deps --editable .
	@touch $$@
endef

$(eval $(call install_set,runtime,requirements.lock))
$(eval $(call install_set,demo,requirements-demo.lock))
$(eval $(call install_set,dev,requirements-dev.lock))

# -- lock files ---------------------------------------------------------------------------------------------

# The largest set is resolved first and holds the others to its versions, so that all fit in one environment.
UV ?= uv
COMPILE = $(UV) pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links --group build

lock:
	@$(COMPILE) $(UPGRADE) --all-extras --group dev --output-file requirements-dev.lock
	@$(COMPILE) --constraint requirements-dev.lock --extra demo --output-file requirements-demo.lock
	@$(COMPILE) --constraint requirements-dev.lock --output-file requirements.lock
	@$(COMPILE) --constraint requirements-dev.lock --extra dashboard --output-file ops/docker/requirements.lock

clean:
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* demo-output
	@rm -rf ./*.egg-info
	@find $(SOURCES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
