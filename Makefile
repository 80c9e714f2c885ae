# What people type. `make help` lists it.
VENV    := .venv
BIN     := $(VENV)/bin
PYTHON  ?= python3
# PyCUDA builds from source, so it is only asked for where there is a GPU to use it on.
GPU     := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && echo yes)
comma   := ,
EXTRAS  := $(if $(GPU),$(comma)cuda)
JOBS    ?= 2

EMULATOR_SOURCE ?= ../shared/cuda-emulator
EMULATOR        := $(CURDIR)/.build/emulator
HAVE_EMULATOR   := $(shell command -v nvcc >/dev/null 2>&1 && test -f $(EMULATOR_SOURCE)/setup.sh && echo yes)
EMULATED = DNN_EMU_LIB=$(EMULATOR)/lib/libcuda.so.1 EMU_DEVICES=2 EMU_BUILD=$(or $(EMU_BUILD),check) \
           DNNCORE_CACHE_DIR=$(CURDIR)/.build/kernels PATH=$(abspath $(EMULATOR_SOURCE))/emudrv/bin:$(PATH)

.PHONY: help demo test lint type kernels bench test-gpu proto emulator deploy-check clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: $(VENV)/.demo  ## train a digit classifier, serve it, classify the held-out images, print what was measured
	@$(BIN)/python -m examples.demo

test: $(VENV)/.dev $(if $(HAVE_EMULATOR),emulator)  ## every test that runs without a GPU
	@$(if $(HAVE_EMULATOR),,echo "CUDA kernels are not run: no nvcc or no emulator at $(EMULATOR_SOURCE)";) \
	 $(if $(HAVE_EMULATOR),$(EMULATED)) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests

lint: $(VENV)/.dev  ## style, imports between the floors, stubs that are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check

type: $(VENV)/.dev  ## mypy, strict
	$(BIN)/mypy

kernels: $(VENV)/.dev  ## compile every CUDA kernel for sm_80 and sm_90a into the package, for machines without nvcc
	$(BIN)/python -m dnncore.cuda.build --arch sm_80 --arch sm_90a --out dnncore/cuda/cubins

bench: $(VENV)/.demo  ## figures for the demo's nets, written to benchmarks/results
	$(BIN)/python -m benchmarks.serving --out benchmarks/results

test-gpu: $(VENV)/.gpu  ## the same cases on real GPUs, and two of them serving side by side
	DNNCORE_TEST_GPU=1 $(BIN)/python -m benchmarks.gpu_report --out benchmarks/results

proto: $(VENV)/.dev  ## generate the gRPC stubs from protos/dnnapi
	$(BIN)/python protos/generate.py

emulator: $(EMULATOR)/.ready  ## build the emulated CUDA driver and PyCUDA on top of it

deploy-check:  ## build the container image, run it and the compose stack, tear everything down
	bash deploy/check.sh

clean:  ## remove everything that the targets made
	rm -rf $(VENV) .build dist runs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[demo$(EXTRAS)]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.gpu: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev,cuda]'
	@touch $@ $(VENV)/.dev $(VENV)/.demo

$(EMULATOR)/.ready: $(VENV)/.dev
	@echo "building the emulated CUDA driver and PyCUDA (about two minutes, once)"
	@mkdir -p .build
	@PATH=$(CURDIR)/$(BIN):$(PATH) bash $(EMULATOR_SOURCE)/setup.sh $(EMULATOR) > $(EMULATOR).log 2>&1 || \
	  { cat $(EMULATOR).log; exit 1; }
	@touch $@
