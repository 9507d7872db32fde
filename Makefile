# Everything a person does with this repository. `make serve` needs Python 3.11 and git, nothing else.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv

# uv does not read pip's setting; where pip is told of a folder of wheels, uv is told of it too.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif
export HF_HUB_OFFLINE := 1
TORCH := torch==2.13.0
TORCH_FLAGS := $(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND))

.PHONY: setup setup-dev serve check docs test browser test-long bench compose-test lock clean

setup: $(VENV)/.run
setup-dev: $(VENV)/.dev

$(UV):
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Lamina needs Python 3.11 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.torch: | $(UV)
	$(UV) pip install --python $(BIN)/python $(TORCH_FLAGS) $(TORCH)
	touch $@

$(VENV)/.run: requirements/run.txt pyproject.toml $(VENV)/.torch
	$(UV) pip install --python $(BIN)/python --no-deps --require-hashes -r requirements/run.txt
	$(UV) pip install --python $(BIN)/python --no-deps --editable .
	touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	$(UV) pip install --python $(BIN)/python --no-deps --require-hashes -r requirements/dev.txt
	touch $@

serve: setup
	$(BIN)/lamina serve $(ARGS)

check: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/house/lengths.py

# The tables of docs/api.md, written anew from the code.
docs: setup-dev
	$(BIN)/python -m gateway.reference

test: setup-dev
	$(BIN)/pytest $(ARGS)

# Debian's Chromium, for the tests of the page; without it they are skipped, and say so.
browser:
	apt-get update -q && apt-get install -y -q --no-install-recommends chromium

test-long: setup-dev
	$(BIN)/pytest -m "long or not long" --hypothesis-profile=search $(ARGS)

bench: setup-dev
	$(BIN)/python -m benchmarks

compose-test: setup-dev
	$(BIN)/python deploy/compose_test.py

# Compile both requirement files anew: hashed, and without a line that names an index.
COMPILE := $(UV) pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url \
	--no-emit-find-links --no-emit-package torch -p 3.11
lock: | $(UV)
	$(COMPILE) requirements/run.in -o requirements/run.txt
	$(COMPILE) requirements/dev.in -c requirements/run.txt -o requirements/dev.txt

clean:
	rm -rf $(VENV) .lamina .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
