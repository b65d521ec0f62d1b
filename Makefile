# Everything runs in .venv, which the first target that needs it makes.

PYTHON ?= python3
EXTRAS ?= dev
EXECUTIONS ?= 1000000
READERS ?=
BENCH ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
NOTEBOOKS := $(wildcard notebooks/*.ipynb)

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-torch test lint types docs notebooks unit matrix bench format constraints fuzz audit clean

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

venv: $(INSTALLED) ## install the package and all tools in .venv

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[$(EXTRAS)]'
	touch $@

demo: venv ## record two computations, explain them, write demo/report.html
	$(BIN)/traceflow demo --force

demo-torch: EXTRAS := dev,torch
demo-torch: venv ## the same with PyTorch on four processes, in demo-torch/report.html
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[$(EXTRAS)]'
	$(BIN)/traceflow demo --torch --force

test: lint types docs notebooks unit ## run every check

lint: venv ## rules of style, format and imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo

types: venv ## check types
	$(BIN)/mypy

docs: venv ## build the documentation in build/docs, warnings are errors
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going docs build/docs

notebooks: venv ## execute the notebooks, two at a time
	printf '%s\0' $(NOTEBOOKS) | xargs -0 -n 1 -P 2 $(BIN)/jupyter execute

# Last of the checks, so that the output of `make test` ends with the count of tests.
unit: venv ## run the tests and the examples in docstrings
	$(BIN)/pytest --no-header --numprocesses auto --maxprocesses 4 --dist loadgroup

matrix: venv ## ask every file of the corpus everything, and write the answers into docs/input.md
	$(BIN)/python tests/matrix.py

bench: venv ## measure time and memory on a trace of a million events, next to HTA; BENCH="--hta PYTHON" takes yours
	$(BIN)/python benchmarks/run.py $(BENCH)

fuzz: EXTRAS := dev,fuzz
fuzz: venv ## give hostile input to READERS (all), EXECUTIONS of each (1000000), those of earlier rounds included
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[$(EXTRAS)]'
	cd tests && ../$(BIN)/python -m fuzz.run $(READERS) --executions $(EXECUTIONS) --folder ../build/fuzz

audit: ## ask for known weaknesses of everything in constraints.txt; needs the package index
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet pip-audit
	build/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

format: venv ## format the sources and apply safe fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

constraints: ## pin the newest releases of everything, with all extras
	scripts/pin $(PYTHON) > constraints.new && mv constraints.new constraints.txt

clean: ## remove what was built, .venv too
	rm -rf $(VENV) build demo demo-torch .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/codes *.egg-info
