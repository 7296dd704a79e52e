# make train: set up and train Pong.  make test: set up and run the tests.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
ARGS   ?=
EXTRAS := all,dev

.PHONY: train test lint native clean
train: $(VENV)/.installed
	$(BIN)/headrace train --env atari/pong $(ARGS)

test: $(VENV)/.installed lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

# Rebuild the C++ parts after a change (incremental). The lock keeps two builds apart.
native: $(VENV)/.tools
	flock build.lock $(BIN)/pip install -q --no-build-isolation --no-deps -e .

$(VENV)/.tools: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt scikit-build-core nanobind cmake ninja
	touch $@

# torch comes first and by its exact version: an open range would fetch another build of it.
$(VENV)/.installed: $(VENV)/.tools pyproject.toml CMakeLists.txt $(shell find native -type f 2>/dev/null)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf build $(VENV) build.lock
