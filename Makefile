# What people type. `make help` lists it.
VENV    := .venv
BIN     := $(VENV)/bin
PYTHON  ?= python3
# PyCUDA builds from source, so it is only asked for where there is a GPU to use it on.
GPU     := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && echo yes)
comma   := ,
EXTRAS  := $(if $(GPU),$(comma)cuda)
JOBS    ?= 2
# Bytecode is made of what is imported, when it is: of all that is installed it takes half of the installation.
INSTALL := -m pip install --quiet --no-compile
# And it is kept, also where the environment (that of many container images) says no: hundreds of processes are started, each of which
# would compile the same sources again. Empty is unset for Python.
export PYTHONDONTWRITEBYTECODE :=

# What is compiled for the emulator, and PyCUDA, are kept by all that they are made of; clones that name one folder share them.
MADE ?= $(CURDIR)/.build

# NVIDIA's load generator, which that release of tritonclient has, and CUDA's runtime library, which it links. Nothing of them is imported.
PERF_ANALYZER := $(CURDIR)/.build/perf_analyzer-2.51.0

# CUDA kernels run on the emulated driver where it can be built; else WHY_NOT says what is missing.
EMULATOR := $(CURDIR)/.build/emulator
WHY_NOT  := $(shell $(PYTHON) -m emulator.toolkit --why-not)
NVCC     := $(shell $(PYTHON) -m emulator.toolkit --find)
# One thread a test process for PyTorch's and NumPy's sums: there are as many processes as cores.
# What `make kernels` built is for GPUs, and is not looked for here.
EMULATED := DNN_EMU_LIB=$(EMULATOR)/lib/libcuda.so.1 EMU_DEVICES=2 DNNCORE_CACHE_DIR=$(MADE)/kernels OMP_NUM_THREADS=1 \
            DNNCORE_CUBIN_DIR=$(CURDIR)/.build/no-cubins \
            PATH=$(CURDIR)/emulator/bin:$(CURDIR)/$(BIN):$(PATH)
# A second pass: threads in a random order, asynchronous units at once instead of at the last moment.
OTHERWISE := EMU_SCHED=20261121 EMU_BLOCKS=20261121 EMU_ASYNC=eager
# It looks for what depends on the order, and launches every kernel of the cases once (tests/ops/launches.py), with those that only tests of
# their own launch: what runs other problems on the same kernels has no place in it.
AGAIN := $(addprefix tests/ops/test_, cases.py fused_convolution.py wgmma_convolution.py wgmma_rows.py)

.PHONY: help demo test ready prepared lint type docs kernels gates bench bench-kernels bench-nets test-gpu proto emulator pycuda conformance deploy-check clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: $(VENV)/.demo  ## train a digit classifier, serve it, classify the held-out images, print what was measured
	@$(BIN)/python -m examples.demo

test: ready  ## every test that runs without a GPU, kernels on the emulated driver
ifeq ($(WHY_NOT),)
	$(EMULATED) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal emulator/tests
	$(EMULATED) $(OTHERWISE) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m cuda $(AGAIN)
	$(EMULATED) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests
else
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests
	@echo "CUDA kernels were not run: $(WHY_NOT)"
endif

ready: $(VENV)/.dev $(if $(filter Linux x86_64,$(shell uname -sm)),$(PERF_ANALYZER)/.got) $(if $(WHY_NOT),,prepared)  ## install and build what lint, type and test need; worth a `make -j2`

lint: $(VENV)/.dev  ## style, imports between the floors, stubs that are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check

type: $(VENV)/.dev  ## mypy, strict
	$(BIN)/mypy

docs: $(VENV)/.dev  ## build the documentation into .build/docs; warnings are errors
	$(BIN)/python -m sphinx -qW --keep-going -d .build/doctrees docs .build/docs

kernels: $(VENV)/.dev  ## compile every CUDA kernel for sm_80, sm_90a and, as PTX, for newer GPUs into the package
	$(BIN)/python -m dnncore.cuda.build --arch sm_80 --arch sm_90a --arch compute_80 --out dnncore/cuda/cubins

gates: $(VENV)/.dev  ## compile every kernel, print how its machine code has changed, write the baseline
	$(BIN)/python -m tests.cuda.gates --update

bench: $(VENV)/.demo  ## figures for the demo's nets, written to benchmarks/results
	$(BIN)/python -m benchmarks.serving --out benchmarks/results
	$(BIN)/python -m benchmarks.plots

# All of it is thousands of rows; MINUTES=20 is as much for each of the two, and goes on where the last call ended.
bench-kernels: $(VENV)/.gpu  ## convolutions, products and what moves memory beside PyTorch and cuDNN on a GPU, likewise
	$(BIN)/python -m benchmarks.kernels --out benchmarks/results $(MINUTES:%=--minutes % --missing)
	$(BIN)/python -m benchmarks.memory_bound --out benchmarks/results $(MINUTES:%=--minutes % --missing)
	$(BIN)/python -m benchmarks.plots

bench-nets: $(VENV)/.gpu  ## nets beside PyTorch on a GPU, written to benchmarks/results
	$(BIN)/python -m benchmarks.nets --compiled reduce-overhead --out benchmarks/results
	$(BIN)/python -m benchmarks.plots

test-gpu: $(VENV)/.gpu  ## the same cases on real GPUs, and two of them serving side by side
	DNNCORE_TEST_GPU=1 $(BIN)/python -m benchmarks.gpu_report --out benchmarks/results

proto: $(VENV)/.dev  ## generate the gRPC stubs from protos/dnnapi
	$(BIN)/python protos/generate.py

emulator: $(if $(NVCC),,$(VENV)/.toolkit)  ## build the emulated CUDA driver
	@$(if $(NVCC),$(PYTHON),$(BIN)/python) -m emulator.build --out $(EMULATOR) --objects $(MADE)/objects

pycuda: $(VENV)/.dev emulator  ## build PyCUDA against the emulated driver
	@wheel=$$($(BIN)/python -m emulator.pycuda_wheel --lib $(EMULATOR)/lib --out $(MADE)/pycuda) && \
	 { test "$$wheel" = "$$(cat $(VENV)/.pycuda 2>/dev/null)" || \
	   { $(BIN)/python $(INSTALL) --force-reinstall --no-deps "$$wheel" && \
	     $(BIN)/python $(INSTALL) "$$wheel" && echo "$$wheel" > $(VENV)/.pycuda; }; }

# Every kernel, for the emulator.
prepared: pycuda
	$(EMULATED) $(BIN)/python -m tests.cuda.prepare --jobs $(JOBS)

conformance: $(VENV)/.dev  ## every emulated instruction and driver feature on this machine's GPU, into emulator/conformance/results
	$(BIN)/python -m emulator.conformance --out emulator/conformance/results

deploy-check:  ## build the container image, run it and the compose stack, tear everything down
	bash deploy/check.sh

clean:  ## remove everything that the targets made
	rm -rf $(VENV) .build dist runs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --upgrade pip  # what Python 3.11 brings takes twice as long to choose versions

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) -e '.[demo$(EXTRAS)]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) -e '.[dev]'
	$(BIN)/python $(INSTALL) --no-deps rapidocr-onnxruntime==1.4.4  # two trained nets that the tests import
	@touch $@ $(VENV)/.demo

$(VENV)/.gpu: pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) -e '.[dev,cuda]'
	@touch $@ $(VENV)/.dev $(VENV)/.demo

$(PERF_ANALYZER)/.got: | $(BIN)/python
	$(BIN)/python $(INSTALL) --no-deps --upgrade --target $(@D) tritonclient==2.51.0 'nvidia-cuda-runtime-cu12==12.9.*'
	@touch $@

# The parts of the CUDA toolkit that nvcc and PyCUDA's build need, for machines without one.
$(VENV)/.toolkit: pyproject.toml | $(VENV)/.dev
	$(BIN)/python $(INSTALL) -e '.[toolkit]'
	@touch $@
