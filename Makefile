# Two commands do all the set-up on a fresh Debian machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# What the tests of real parts need from Debian; `make test` installs what is missing where it may, and has none of the
# services started: the tests start their own.
APT := prometheus prometheus-alertmanager systemd systemd-container dbus rocm-smi librocm-smi64-1 strace curl procps \
  gcc libc6-dev podman conmon runc docker.io containerd logrotate openssl
PYRSMI := .cache/pyrsmi-0.2.0 .cache/pyrsmi-1.1.0
PYHLML := .cache/habana-pyhlml-1.24.2.481
TPU_INFO := .cache/tpu-info-0.14.2
OPTIMUM := .cache/optimum-neuron-0.4.5
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test check incidents bench format docs rules real-parts clean help

help:  ## Say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/'

run: $(VENV)/.runtime  ## Start the exporter; where there is nothing to watch it serves the demo host
	exec $(BIN)/budget-exporter demo --if-nothing-to-watch $(ARGS)

test: $(VENV)/.dev $(PYRSMI) $(PYHLML) $(TPU_INFO) $(OPTIMUM) real-parts check  ## Install what the tests need and run them all
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage report --include='budget_exporter/facts/*,budget_exporter/budget/*,budget_exporter/verdicts/*,budget_exporter/units.py' --fail-under=100

check: $(VENV)/.dev  ## Lint, types, import directions, catalogue against docs, alerts and dashboards
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_imports.py tests/test_docs.py tests/test_laws_docs.py tests/test_catalogue.py tests/alerts/test_promql.py

incidents: $(VENV)/.dev  ## Play every incident and print the seconds from its state to its page
	$(BIN)/pytest -q tests/incidents $(ARGS)

bench: $(VENV)/.dev  ## Print the side-by-side table
	$(BIN)/python -m tests.bench.run

docs: $(VENV)/.dev  ## Write docs/metrics.md and docs/laws.md anew from the catalogue and the docstrings
	$(BIN)/python -m budget_exporter.publish.document > docs/metrics.md
	$(BIN)/python -m budget_exporter.publish.laws_document > docs/laws.md

rules: $(VENV)/.dev  ## Write the rules anew in the form that the Prometheus operator takes
	$(BIN)/python -m alerts.prometheus_rule

format: $(VENV)/.dev  ## Format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  [ "$$(id -u)" = 0 ] || { echo "python3-venv is missing: apt-get install python3-venv" >&2; exit 1; }; \
	  apt-get update -q && apt-get install -yq --no-install-recommends python3-venv; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install -q -e '.[systemd]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install -q -e '.[dev]'
	@touch $@ $(VENV)/.runtime

# pyrsmi 0.2.0 loads librocm_smi64, later ones libamd_smi: kept out of the venv, only the cross-check tests read them.
$(PYRSMI): .cache/pyrsmi-%: $(VENV)/bin/python
	$(BIN)/pip install -q --no-deps --target $@ pyrsmi==$*

# Of optimum-neuron one file is used, which needs nothing of the rest.
$(OPTIMUM): $(VENV)/bin/python
	$(BIN)/pip install -q --no-deps --target $@ optimum-neuron==$(patsubst .cache/optimum-neuron-%,%,$@)

# Likewise kept apart: that they are missing is tested too, and their own requirements are none of ours.
$(PYHLML): $(VENV)/bin/python
	$(BIN)/pip install -q --no-deps --target $@ habana-pyhlml==1.24.2.481

$(TPU_INFO): $(VENV)/bin/python
	$(BIN)/pip install -q --no-deps --target $@ tpu-info==0.14.2 immutabledict==4.3.1

real-parts: $(VENV)/bin/python
	PYTHON=$(BIN)/python tests/integration/install_vllm.sh
	@missing=$$(dpkg-query -W -f='$${Package} $${db:Status-Status}\n' $(APT) 2>/dev/null | awk '$$2=="installed"{print $$1}' | sort > $(VENV)/.have; \
	  printf '%s\n' $(APT) | sort | comm -23 - $(VENV)/.have); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "not root: tests of these real parts will be skipped:" $$missing >&2; exit 0; fi; \
	apt-get update -q && { policy=/usr/sbin/policy-rc.d; [ -e $$policy ] && policy= || { printf '#!/bin/sh\nexit 101\n' > $$policy; chmod +x $$policy; }; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $$missing; status=$$?; rm -f $$policy; exit $$status; }

clean:  ## Remove what was built
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .coverage
