# make demo: set up and train one small model with four peers and a validator.
# make test: set up and run every check and test.
# make soak: an hour of twelve peers with a fault a minute; look at runs/soak/summary.md and soak.png.
# Variables: PYTHON (interpreter, 3.11 to 3.13), TORCH_ARGS (more arguments for installing torch, for
# example an index with CPU builds), PYTEST_ARGS.

PYTHON ?= $(shell .ci/find-python)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH_ARGS ?=
PYTEST_ARGS ?=
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: setup demo test lint types imports check unit slow bench soak clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt .ci/setup
	PYTHON="$(PYTHON)" TORCH_ARGS="$(TORCH_ARGS)" .ci/setup $(VENV)
	touch $(READY)

demo: $(READY)
	$(BIN)/shoal swarm --config configs/demo.toml --run-dir runs/demo --fresh

test: lint types imports check

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

# Whole files go to a worker each, so that servers and swarms of one file are started once. Three
# workers on two cores: scenarios with real links mostly wait. In the order of the folders, so that
# these long ones come early and the many short ones fill the end.
check: $(READY)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

unit: $(READY)
	$(BIN)/pytest -n 2 -m "not slow" $(PYTEST_ARGS)

slow: $(READY)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m slow $(PYTEST_ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks.compression
	$(BIN)/python -m benchmarks.gather
	$(BIN)/python -m benchmarks.overlap

soak: $(READY)
	$(BIN)/python -m benchmarks.soak --minutes 60 --peers-s3 6 --peers-p2p 6 --seed 1 --out runs/soak

clean:
	rm -rf $(VENV) build dist *.egg-info
