PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Debian's Prometheus, for tests: unpacked here, because its package would start a server of its own.
PROMETHEUS := $(VENV)/prometheus

.PHONY: venv demo docs prometheus test soak live bench lint clean

venv: $(STAMP)

$(STAMP): pyproject.toml requirements-dev.lock hatch_build.py $(wildcard proto/trimtab/v1/*.proto)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: $(STAMP)
	$(BIN)/trimtab demo

# In an environment of its own: the site's tools are no part of the product's.
docs:
	test -x $(VENV)/docs/bin/mkdocs || { $(PYTHON) -m venv $(VENV)/docs && \
	  $(VENV)/docs/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.5,<10'; }
	$(VENV)/docs/bin/mkdocs build --strict

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

prometheus: $(STAMP)
	@command -v prometheus >/dev/null || test -x $(PROMETHEUS)/usr/bin/prometheus || \
	{ rm -rf $(PROMETHEUS) && mkdir -p $(PROMETHEUS)/deb && cd $(PROMETHEUS)/deb && \
	  { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } && \
	  dpkg-deb -x prometheus_*.deb ..; } || \
	echo "no prometheus: the tests that need one are skipped"

# Most tests of processes wait more than they compute, so there are more workers than cores. Those that measure would
# lose their time to so many.
test: $(STAMP) lint prometheus
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not alone and not soak and not live"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "alone and not soak"

soak: $(STAMP)
	$(BIN)/python -m pytest -m soak

# In front of real engines: docs/results/real-engines.md says how to install them.
live: $(STAMP)
	$(BIN)/python -m pytest -m live -rs tests/live

bench: $(STAMP)
	$(BIN)/python -m tests.bench

clean:
	rm -rf $(VENV) build dist site trimtab/v1
