# Every target sets itself up: .venv is made from constraints.txt the first time and when that or pyproject.toml changes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP_INSTALL := flock .venv $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt
# pip would compile the packages' own tests too, half of all that is installed, on one core. Files of other versions'
# syntax among the modules are not compiled, and not imported.
COMPILE := -flock .venv $(BIN)/python -m compileall -q -j 0 -x '/tests?/|py312' .venv/lib ddpsim ddpexec
OUT ?= out

export OMP_NUM_THREADS ?= 1

.PHONY: check-studies schemes-measured convergence fuzz smoke help demo accuracy estimates paper published validation test lint bench conformance bench-exec gpu clean

help:
	@echo "make demo    plan two models on five machines, then run one for real and hold the prediction against it"
	@echo "make test    every test"
	@echo "make check-studies   tests of the studies"
	@echo "make smoke   a short campaign on shaped networks (Linux, root): predict, run, validate"
	@echo "make fuzz    mutated files through every loader, more than the tests have"
	@echo "make lint    ruff, mypy, import contracts"
	@echo "make bench   whole-process speed of the command line"
	@echo "make conformance   torch's own DDP tests against ours"
	@echo "make accuracy  predicted against measured allreduce tables, into docs/reference/accuracy.md"
	@echo "make estimates  estimated against published one-GPU steps, into docs/reference/estimates.md"
	@echo "make convergence  train with gradients synchronised every 1, 2, 4, 8 iterations, into traces/training, and by schemes beside DDP"
	@echo "make validation  what was predicted before the kept runs, and what today's code says of them"
	@echo "make schemes-measured  schemes on the lab: errors by system, and what today's code says of the kept runs"
	@echo "make paper   reproduce the evaluation of DDP's paper, a verdict a claim, into docs/reference/paper.md"
	@echo "make published   predict published steps of real GPUs, a table a system, and PyTorch's own DDP table"
	@echo "make bench-exec    step time of our DDP against torch's, and what a trace costs"
	@echo "make gpu     all that one GPU can tell: captures, tests, runs and benchmarks, with a report in $(OUT)/gpu"
	@echo "make clean   remove .venv and $(OUT)"

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.run: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing (once) ..."
	$(PIP_INSTALL) -e ".[exec]"
	$(COMPILE)
	touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing, with what tests need (once) ..."
	$(PIP_INSTALL) -e ".[exec,dev]"
	$(COMPILE)
	touch .venv/.run $@

demo: .venv/.run
	$(BIN)/python -m ddpexec demo --out $(OUT)/demo

# Ranks and clocks share the machine with whatever else it does, and torch's native code has aborted a rank once in some
# thousand runs: a test that fails runs once more, and is named.
test: .venv/.dev
	$(BIN)/python -m pytest tests -n 2 --dist=worksteal --durations=10 \
		--reruns 1 -r R

# Tests of the studies: fits and kept runs that hold the committed figures.
check-studies: .venv/.dev
	$(BIN)/python -m pytest studies -n 2 --dist=worksteal --durations=10

smoke: .venv/.dev
	rm -rf $(OUT)/smoke
	$(BIN)/python -m ddpexec campaign traces/smoke.yaml --out $(OUT)/smoke

fuzz: .venv/.dev
	$(BIN)/python -m tests.fuzz --count 100000
	$(BIN)/python -m tests.fuzz --count 2000 --commands

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.dev
	$(BIN)/python -m studies.benchmarks

accuracy: .venv/.dev
	$(BIN)/python -m studies.accuracy

estimates: .venv/.dev
	$(BIN)/python -m studies.estimates

# Thirty-two trainings of 400 iterations: ten to twenty minutes on two cores.
convergence: .venv/.dev
	$(BIN)/torchrun --standalone --nproc-per-node 2 -m studies.convergence.convergence
	$(BIN)/python -m studies.convergence.scheme_losses
	$(BIN)/python -m studies.convergence

conformance: .venv/.dev
	$(BIN)/python tests/conformance/run.py

validation: .venv/.run
	$(BIN)/python -m studies.validation

schemes-measured: .venv/.run
	$(BIN)/python -m studies.schemes.schemes_measured

paper: .venv/.run
	$(BIN)/python -m studies.paper all --out docs/reference

published: .venv/.run
	$(BIN)/python -m studies.published

bench-exec: .venv/.dev
	mkdir -p $(OUT)
	$(BIN)/python -m studies.benchmarks.executor --out $(OUT)/bench-exec.json
	$(BIN)/python -m studies.benchmarks.tracing

gpu: .venv/.dev
	$(BIN)/python -m studies.gpu --out $(OUT)/gpu

clean:
	rm -rf .venv $(OUT)
