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

# torch comes first and by its exact version: an open range would fetch another build of it. Its default build brings gigabytes of
# CUDA libraries; without a GPU the CPU build does, unless the user chose an index of packages or that address is out of reach.
CPU_INDEX := https://download.pytorch.org/whl/cpu
REACHABLE  = $(BIN)/python -c "from urllib.request import urlopen; urlopen('$(CPU_INDEX)/', timeout=5)" 2>/dev/null
NO_GPU     = ! command -v nvidia-smi >/dev/null && ! $(BIN)/pip config list | grep -q index && $(REACHABLE)
$(VENV)/.installed: $(VENV)/.tools pyproject.toml CMakeLists.txt $(shell find native -type f 2>/dev/null)
	$(BIN)/pip install -q -c constraints.txt torch $$($(NO_GPU) && echo --extra-index-url $(CPU_INDEX))
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf build $(VENV) build.lock
