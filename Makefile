# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Pass arguments with ARGS, e.g. make demo ARGS="--seconds 40 --headless --json".

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PYTHONWARNINGS=ignore $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test collector proto format readme golden clean help

help:
	@echo "make demo       real engines, real traffic, live in this terminal (ARGS=...)"
	@echo "make test       every test that this machine can run (ARGS=...)"
	@echo "make collector  build the real OpenTelemetry Collector for the end-to-end tests (go, minutes)"
	@echo "make format     ruff format and safe fixes"
	@echo "make readme     regenerate the tables of the README"
	@echo "make golden     renew the decisions expected of the golden recording"
	@echo "make proto      regenerate pipeline/wire from the .proto files"

demo: $(VENV)/.demo
	@$(BIN)/tailrace demo $(ARGS)

test: $(VENV)/.test
	@$(BIN)/python -m pytest $(ARGS)

collector:
	@tests/otelcol/build.sh

format: $(VENV)/.test
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

proto: $(VENV)/.test
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
		pipeline/wire/decisions.proto

readme: $(VENV)/.test
	@$(BIN)/python -m tests.readme

golden: $(VENV)/.test
	@$(BIN)/python -m tests.golden.expect

clean:
	@rm -rf $(VENV) build *.egg-info

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Tailrace needs Python 3.11 or newer; name one with make PYTHON=..."; exit 1; }
	@echo "setting up $(VENV) (once)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml
	@echo "installing Tailrace and real llama.cpp engines (once)" >&2
	@$(PIP) install --editable '.[demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo pyproject.toml
	@echo "installing the test tools (once)" >&2
	@$(PIP) install --editable '.[demo]' --group test
	@touch $@
