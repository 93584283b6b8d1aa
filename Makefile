# SPDX-License-Identifier: GPL-2.0-or-later
# `make help` lists what there is. Everything Python-made lives in .venv, everything built in dist.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYZ := dist/eessi-arch-guard.pyz
# Two workers for two cores; tests that need a machine to themselves are marked and run alone.
PYTEST := $(VENV)/bin/pytest

.DEFAULT_GOAL := help
.PHONY: help demo test lint pyz clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 14

$(STAMP): tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	touch $@

demo: $(PYZ) ## see the guard move a task's modules to another CPU target, on real Lmod
	$(PY) tests/eessi/demo.py $(PYZ)

test: lint $(PYZ) ## lint, build and run every test
	$(PYTEST)

lint: $(STAMP) ## ruff, mypy --strict, shellcheck
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	git ls-files -z '*.sh' .ci/run | xargs -0 -r shellcheck

pyz: $(PYZ) ## dist/eessi-arch-guard.pyz

$(PYZ): $(STAMP) $(shell git ls-files guard build pyproject.toml)
	$(PY) build/pyz.py $@

clean: ## remove what was built, but not .venv
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
