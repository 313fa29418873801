# Two commands for a newcomer: `make demo` and `make test`. Each makes the environment it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Byte-compiling everything is the slow part of an installation; COMPILE does it for what `quintet --help` imports, so that
# the command starts quickly also where Python may not write byte code. Other packages are compiled when first imported.
PIP := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check
FRONT := typer rich pydantic yaml numpy markdown_it mdurl pygments
COMPILE := cd $(VENV)/lib/python3*/site-packages && ../../../bin/python -m compileall -q $(FRONT) "$(CURDIR)/src"
# One thread a worker: two pytest workers on two cores.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: help demo test test-all lint format torture clean

help:
	@echo "make demo       train, evaluate and search on generated images (about 3 minutes)"
	@echo "make test       the quick tests"
	@echo "make test-all   the slow tests too"
	@echo "make torture    attack commands and files for 30 minutes (MINUTES=5 SEED=1); docs/reliability.md"
	@echo "make lint       ruff, mypy, import directions"
	@echo "make format     let ruff tidy the code"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Quintet needs Python 3.11 or newer; run: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e .
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e ".[dev]"
	@$(COMPILE)
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/quintet demo --out demo

test: $(VENV)/.installed-dev
	$(TEST) -m "not slow and not gpu"

test-all: $(VENV)/.installed-dev
	$(TEST) -m "not gpu"

# How long, and which attacks: the same seed makes the same tries.
MINUTES ?= 30
SEED ?= 0
torture: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.torture.campaign --minutes $(MINUTES) --seed $(SEED) \
		--out benchmarks/results/torture.json
	$(BIN)/python -m benchmarks.pages.reliability_page

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache
