# `make demo` and `make test` work in a fresh clone: they set up what they need in .venv first.
#   PYTHON=python3.12   the interpreter to make .venv with; by default the first of 3.10 to 3.13 that is found
#   EXTRAS=dev          what to install besides the package, e.g. dev,torchcodec

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.robostream-installed
LOCK := constraints.txt
EXTRAS ?= dev
ARGS ?=

FIND_PYTHON = for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$p && break; done

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format schema lock clean

help:
	@echo "make demo     make a dataset, stream it, print what came out, write demo-out/contact_sheet.png"
	@echo "make test     run the tests (ARGS=... goes to pytest)"
	@echo "make lint     ruff and mypy"
	@echo "make format   format the code"
	@echo "make schema   write docs/benchmark_result.schema.json again"
	@echo "make lock     resolve $(LOCK) again (UPGRADE=--upgrade for newer versions)"
	@echo "make clean    remove .venv, caches and demo-out"

install: $(STAMP)

$(STAMP): pyproject.toml $(LOCK)
	@python="$(PYTHON)"; [ -n "$$python" ] || python="$$($(FIND_PYTHON))"; \
	[ -x $(PY) ] || [ -n "$$python" ] || { echo "no Python 3.10 to 3.13 (with venv) found; pass PYTHON=..." >&2; exit 1; }; \
	[ -x $(PY) ] || { echo "making $(VENV) with $$($$python --version)"; $$python -m venv $(VENV); }
	@echo "installing robostream[$(EXTRAS)] into $(VENV)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -c $(LOCK) -e ".[$(EXTRAS)]"
	@touch $@

demo: $(STAMP)
	$(VENV)/bin/robostream demo --out demo-out $(ARGS)

test: $(STAMP)
	$(PY) -m pytest $(ARGS)

lint: $(STAMP)
	$(PY) -m ruff check src tests benchmarks examples
	$(PY) -m ruff format --check src tests benchmarks examples
	$(PY) -m mypy

format: $(STAMP)
	$(PY) -m ruff format src tests benchmarks examples
	$(PY) -m ruff check --fix src tests benchmarks examples

schema: $(STAMP)
	$(PY) -m robostream.bench.result > docs/benchmark_result.schema.json

lock: $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check uv
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(PY) -m uv pip compile --quiet --universal --python-version 3.10 \
		--all-extras --no-annotate -c requirements/pins.in $(UPGRADE) pyproject.toml -o $(LOCK)

clean:
	rm -rf $(VENV) demo-out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
