# Every target works on a fresh checkout: what it needs is installed into $(VENV) first.
#
#   make test                                   with python3
#   make test PY=python3.10 VENV=.venv310       with another Python, beside the first
#   make test ARGS='-k guard -x'                more arguments for the tool behind the target

PY   ?= python3
VENV ?= .venv
ARGS ?=
RUNS ?= 1000
SEED ?= 1

BIN   := $(VENV)/bin
STAMP := $(VENV)/.stamp
CODE  := $(wildcard openworker_durable tests)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint format types crash mutants bench wheel-test clean

help:
	@echo 'setup       create $(VENV) with everything needed to work on the project'
	@echo 'demo        show a kill and its recovery, with and without the ledger'
	@echo 'test        all tests'
	@echo 'lint        ruff: rules and format         (make format: repair both)'
	@echo 'types       mypy, strict'
	@echo 'crash       RUNS=$(RUNS) random kills, SEED=$(SEED)'
	@echo 'mutants     break each guard in a copy; a named test must notice'
	@echo 'bench       what a protected call costs'
	@echo 'wheel-test  build the wheel, install it elsewhere, run the tests against it'
	@echo 'clean       remove everything that the targets made'

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo 'Python 3.10 or newer is needed, as python3 or as PY=...' >&2; exit 1; }
	$(PY) -m venv $(VENV)
	$(BIN)/python -m pip install -qq 'pip>=22'
	$(BIN)/python -m pip install -qq --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/openworker-durable demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check $(CODE) $(ARGS)
	$(BIN)/ruff format --check $(CODE)

format: $(STAMP)
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

types: $(STAMP)
	$(BIN)/mypy $(ARGS)

crash: $(STAMP)
	$(BIN)/python -m openworker_durable.testing.soak --runs $(RUNS) --seed $(SEED) $(ARGS)

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m tests.bench $(ARGS)

# The wheel is built with $(VENV) and tested with $(PY), in a folder where the checkout cannot
# be imported. The files that tests read beside the package (docs and the like) go along.
BESIDE := $(wildcard pyproject.toml tests docs README.md CHANGELOG.md CONTRIBUTING.md)

wheel-test: $(STAMP)
	@set -eu; \
	unset PYTHONPATH PYTHONHOME; \
	away=$$(mktemp -d); trap 'rm -rf "$$away"' EXIT; trap 'exit 1' HUP INT TERM; \
	case "$$away/" in "$(CURDIR)"/*) echo 'TMPDIR lies in the checkout' >&2; exit 1;; esac; \
	$(BIN)/python -m build --wheel --outdir "$$away/dist" . >"$$away/build.log" 2>&1 \
	  || { cat "$$away/build.log" >&2; exit 1; }; \
	wheel=$$(echo "$$away"/dist/*.whl); \
	echo "testing $$(basename "$$wheel") with $$($(PY) --version)"; \
	$(PY) -m venv "$$away/venv"; \
	"$$away/venv/bin/python" -m pip install -qq "$$wheel[test]"; \
	mkdir "$$away/run"; \
	cp -R $(BESIDE) "$$away/run/"; \
	cd "$$away/run"; \
	"$$away/venv/bin/python" -m pytest -n auto tests --expect-installed $(ARGS)

clean:
	rm -rf .venv .venv[0-9-]* build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
