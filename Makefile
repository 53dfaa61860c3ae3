# Two commands: `make demo` shows what FedTailor does, `make test` proves it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all lint setup bench docs clean

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "FedTailor needs Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/fedtailor demo

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python tools/density.py --check

test: lint
	@$(BIN)/pytest -n auto -m "not slow" --durations=25

# Guides and the API reference as pages, in site/; needs no network.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# What only the slow tests need. torchvision's own dependencies would replace torch.
$(VENV)/ready-slow: $(VENV)/ready
	@$(PIP) --editable '.[slow]'
	@$(PIP) --no-deps torchvision timm byzfl
	@touch $@

test-all: lint $(VENV)/ready-slow
	@$(BIN)/pytest -n auto

# The peers live in an environment of their own. FEDTAILOR_DATA must name a folder with the data sets.
PEERS := .venv-bench
PEERS_PIP := $(PEERS)/bin/pip install --quiet --disable-pip-version-check --constraint benchmarks/constraints.txt

$(PEERS)/ready: benchmarks/constraints.txt
	@echo "Setting up $(PEERS) (a few minutes the first time)"
	@$(PYTHON) -m venv $(PEERS)
	@echo '*' > $(PEERS)/.gitignore
	@$(PEERS_PIP) torch==2.13.0
	@$(PEERS_PIP) pfl==0.6.0 'flwr[simulation]==1.41.0'
	@touch $@

bench: setup $(PEERS)/ready
	@$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(PEERS) build dist site .pytest_cache .mypy_cache .ruff_cache
