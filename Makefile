# Two commands for a newcomer: `make demo` and `make test`. Each makes the environment it needs.
# The first Python here that is one of 3.11 to 3.13, or newer.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Byte-compiling everything is the slow part of an installation; COMPILE does it for what `quintet --help` and a search import,
# so that they start quickly also where Python may not write byte code. Other packages are compiled when first imported.
PIP := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check
# PyPI's torch for Linux brings 4.8 GB of CUDA. Without a GPU, the build of PyTorch's own index is taken, which is newer by
# its name (2.13.0+cpu); not asked for where pip has wheels of its own (find-links). `TORCH_INDEX=` asks PyPI alone.
TORCH_INDEX ?= $(shell command -v nvidia-smi >/dev/null || $(PYTHON) -m pip config list 2>/dev/null | grep -q find-links || \
	echo https://download.pytorch.org/whl/cpu)
EXTRA_INDEX = $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
FRONT := typer rich pydantic yaml numpy markdown_it mdurl pygments
COMPILE := cd $(VENV)/lib/python3*/site-packages && ../../../bin/python -m compileall -q $(FRONT) "$(CURDIR)/src" && \
	PYTHONDONTWRITEBYTECODE= ../../../bin/python -c "import quintet.search.searcher, onnxruntime, tokenizers"
# One thread a worker: two pytest workers on two cores.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

TESTS_NEED := pytest pytest-xdist pytest-timeout hypothesis httpx httpx2

.PHONY: help demo test test-all test-oldest lint format docs reference notebooks dist torture fuzz licences sbom audit clean

help:
	@echo "make demo       train, evaluate and search on generated images (about 3 minutes)"
	@echo "make test       the quick tests"
	@echo "make test-all   the slow tests too"
	@echo "make torture    attack commands and files for 30 minutes (MINUTES=5 SEED=1); docs/reliability.md"
	@echo "make fuzz       fuzz every parser, ten minutes each (MINUTES=1); docs/reliability.md"
	@echo "make test-oldest  the quick tests with the oldest dependencies that are allowed"
	@echo "make licences, make sbom, make audit   what Quintet is made of; docs/supply-chain.md"
	@echo "make docs       the documentation as a site: build/site/index.html"
	@echo "make reference  the pages under docs/reference, from the code"
	@echo "make notebooks  run the notebooks of docs/notebooks and keep their outputs"
	@echo "make dist       wheel and sdist, built and tried"
	@echo "make lint       ruff, mypy, import directions"
	@echo "make format     let ruff tidy the code"

$(VENV)/bin/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Quintet needs Python 3.11 or newer; run: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) $(EXTRA_INDEX) -e .
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) $(EXTRA_INDEX) -e ".[dev]"
	@$(COMPILE)
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/quintet demo --out demo

test: $(VENV)/.installed-dev
	$(TEST) -m "not slow and not gpu"

test-all: $(VENV)/.installed-dev
	$(TEST) -m "not gpu"

# How long, and which attacks: the same seed makes the same tries.
SEED ?= 0
torture: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.torture.campaign --minutes $(or $(MINUTES),30) --seed $(SEED) \
		--out benchmarks/results/torture.json
	$(BIN)/python -m benchmarks.pages.reliability_page

fuzz: $(VENV)/.installed-dev
	$(PIP) -e ".[dev,fuzz]"
	$(BIN)/python -m benchmarks.fuzz.fuzzing --minutes $(or $(MINUTES),10) --seed $(SEED) --out benchmarks/results/fuzz.json
	$(BIN)/python -m benchmarks.pages.reliability_page

$(VENV)/.installed-supply: $(VENV)/.installed-dev
	$(PIP) -e ".[dev,supply]"
	@touch $@

# Torch stays as it is: of its older builds pip may only find those with CUDA.
test-oldest: $(VENV)/.installed-supply
	$(BIN)/python -m tools.supply_chain oldest
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet $(EXTRA_INDEX) -r build/oldest.txt $(TESTS_NEED)
	OMP_NUM_THREADS=1 PYTHONPATH=src $(VENV)-oldest/bin/python -m pytest -n 2 -m "not slow and not gpu"

licences sbom audit: $(VENV)/.installed-supply
	@$(BIN)/python -m tools.supply_chain $@

docs: $(VENV)/.installed-dev
	$(BIN)/python -m tools.docs_site

reference: $(VENV)/.installed-dev
	$(BIN)/python -m tools.reference_pages

notebooks: $(VENV)/.installed-dev
	$(BIN)/python -m tools.notebooks

dist: $(VENV)/.installed-dev
	$(BIN)/python -m tools.dist

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-oldest build dist demo .pytest_cache .mypy_cache .ruff_cache
