# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Pass arguments with ARGS, e.g. make demo ARGS="--seconds 40 --headless --json".

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PYTHONWARNINGS=ignore $(BIN)/pip --disable-pip-version-check --quiet

CRATE := pipeline/decode/native
CRATE_SOURCES := $(CRATE)/Cargo.toml $(shell find $(CRATE)/src -name '*.rs' 2>/dev/null)
CARGO := $(shell command -v cargo 2>/dev/null)
# The stamps say what they were made with: the first make after Rust was installed builds the crate.
BUILT := $(if $(CARGO),native,python)
DEMO := $(VENV)/.demo-$(BUILT)
TEST := $(VENV)/.test-$(BUILT)

.PHONY: demo test fuzz collector proto format readme golden clean help

help:
	@echo "make demo       real engines, real traffic, live in this terminal (ARGS=...)"
	@echo "make test       every test that this machine can run (ARGS=...)"
	@echo "make fuzz       feed the native decoder damaged requests for a minute (ARGS=seconds)"
	@echo "make collector  build the real OpenTelemetry Collector for the end-to-end tests (go, minutes)"
	@echo "make format     ruff format and safe fixes"
	@echo "make readme     regenerate the tables of the README"
	@echo "make golden     renew the decisions expected of the golden recording"
	@echo "make proto      regenerate pipeline/wire from the .proto files"

demo: $(DEMO)
	@$(SAY_DECODER)
	@$(BIN)/tailrace demo $(ARGS)

test: $(TEST)
	@$(SAY_DECODER)
	@$(BIN)/python -m pytest $(ARGS)

fuzz: $(TEST)
	@$(BIN)/python -m tests.decode.fuzz $(ARGS)

collector:
	@tests/otelcol/build.sh

format: $(TEST)
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

proto: $(TEST)
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
		pipeline/wire/decisions.proto

readme: $(TEST)
	@$(BIN)/python -m tests.readme

golden: $(TEST)
	@$(BIN)/python -m tests.golden.expect

clean:
	@rm -rf $(VENV) build *.egg-info $(CRATE)/target $(CRATE)/fuzz/target pipeline/decode/_native*.so

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Tailrace needs Python 3.11 or newer; name one with make PYTHON=..."; exit 1; }
	@echo "setting up $(VENV) (once)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

# The install goes on without the crate, be it for want of cargo or for a compile error. The first is
# said aloud, the second is an error. An older build must not pass for this one, hence the rm.
define INSTALL
@rm -f pipeline/decode/_native*.so
@$(PIP) install --editable '.[demo]' $(1)
@if [ -n "$(CARGO)" ] && ! $(BIN)/tailrace doctor --require native >/dev/null; then \
	echo; echo "THE NATIVE DECODER DOES NOT BUILD OR LOAD, though cargo is here:" \
		"a compile error shows below, or with $(BUILD_CRATE)"; \
	$(BUILD_CRATE); $(BIN)/tailrace doctor --require native | tail -n 2; exit 1; \
fi >&2
endef

BUILD_CRATE := PYO3_PYTHON=$(abspath $(BIN))/python cargo build --quiet --release --manifest-path $(CRATE)/Cargo.toml

SAY_DECODER := [ -n "$(CARGO)" ] || printf '\n*** %s\n*** %s\n\n' \
	"no cargo: the reference decoder serves, ten to thirty times slower;" \
	"install Rust from https://rustup.rs and run make again" >&2

$(DEMO): $(VENV)/.python pyproject.toml $(CRATE_SOURCES)
	@echo "installing Tailrace and real llama.cpp engines (once)" >&2
	$(call INSTALL)
	@touch $@

$(TEST): $(DEMO) pyproject.toml
	@echo "installing the test tools (once)" >&2
	$(call INSTALL,--group test)
	@touch $@
