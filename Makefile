# SPDX-License-Identifier: GPL-2.0-or-later
# `make help` lists what there is. Everything Python-made lives in .venv, everything built in dist.

VENV_PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYZ := dist/eessi-arch-guard.pyz
# make pyz PYTHON="/opt/python/3.12/bin/python3": a site's own interpreters, which the header then tries first.
SITE_PYTHON := $(if $(filter command,$(firstword $(origin PYTHON))),$(PYTHON))
WORKERS ?= 2
PYTEST := $(VENV)/bin/pytest

.DEFAULT_GOAL := help
.PHONY: FORCE help demo test test-eessi fuzz bench lint pyz repro spank clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 14

$(STAMP): tests/requirements.txt
	$(VENV_PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	touch $@

demo: $(PYZ) ## see the guard move a task's modules to another CPU target, on real Lmod
	$(PY) tests/eessi/demo.py $(PYZ)

test: lint $(PYZ) ## lint, build and run every test
	$(PYTEST) -n $(WORKERS) --dist loadgroup

test-eessi: $(PYZ) ## against EESSI's own scripts: EESSI_SCRIPTS=<checkout of software-layer-scripts>, as root
	@test -n "$(EESSI_SCRIPTS)" || { echo "set EESSI_SCRIPTS to a checkout of EESSI/software-layer-scripts"; exit 1; }
	$(PYTEST) tests/eessi/test_real_eessi.py

fuzz: $(STAMP) ## the property tests with at least 20,000 generated cases each
	FUZZ_CASES=20000 $(PYTEST) -n $(WORKERS) tests/arch/test_emit.py tests/arch/test_chain.py tests/scraper/test_receiver.py

bench: $(PYZ) ## the figures of docs/, as ratios on this machine: guard, Slurm launch, relay, scraper (as root, with Slurm)
	$(PY) tests/bench/guard.py $(PYZ)
	$(PY) tests/bench/slurm_launch.py $(PYZ)
	$(PY) tests/bench/relay_worker.py
	$(PY) tests/bench/relay_exec.py
	$(PY) tests/bench/relay_slurm.py
	$(PY) tests/bench/scraper_receive.py

lint: $(STAMP) ## ruff, mypy --strict, the Python floor, shellcheck
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/vermin --quiet --no-tips --target=3.9- --violations --exclude tomllib guard
	git ls-files -z '*.sh' .ci/run | xargs -0 -r shellcheck

pyz: $(PYZ) ## dist/eessi-arch-guard.pyz

$(PYZ): $(STAMP) $(shell git ls-files guard build pyproject.toml) $(if $(SITE_PYTHON),FORCE)
	$(PY) build/pyz.py $@ $(addprefix --python ,$(SITE_PYTHON))

spank: ## dist/relay_io-<version>.so: the relay's tap for the Slurm whose headers are here (SLURM_INCLUDE=/usr/include)
	$(MAKE) -C build/spank OUT=$(CURDIR)/dist

repro: $(PYZ) ## the same tree gives the same bytes: builds twice, in two folders, and compares
	$(PYTEST) tests/build/test_pyz.py -k same

clean: ## remove what was built, but not .venv
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
