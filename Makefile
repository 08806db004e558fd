# make help lists the targets. Everything needs only make and Python 3.11+; uv makes the set-up take seconds.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Ray and Airflow import thousands of modules: without byte code every process starts three times slower.
unexport PYTHONDONTWRITEBYTECODE
export MOORAGE_DATA ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-system check format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Moorage needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 setup")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -c constraints.txt -e '.[demo]' --group dev
	touch $(READY)

setup: $(READY) ## prepare .venv with everything, for `. .venv/bin/activate; moorage ...`

demo: $(READY) ## the main job, end to end (KEEP=1 leaves everything up until Ctrl-C)
	@$(BIN)/moorage demo $(if $(KEEP),--keep)

test: $(READY) ## everything fast, and one real path per room, the demo's among them
	$(BIN)/pytest -m "not system or path"

test-system: $(READY) ## every system test
	$(BIN)/pytest -m system

check: $(READY) ## lint, types, import contracts and the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q -n 3 -m "not system and not slow"

format: $(READY) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what was built
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
