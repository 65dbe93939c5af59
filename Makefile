# Every target sets itself up: .venv is made from constraints.txt the first time and when that or pyproject.toml changes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# What pip says goes to a file, shown where it fails: an index that is set up and missing is warned of once a package.
PIP_INSTALL := sh -c 'flock .venv $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile \
    -c constraints.txt "$$@" > .venv/pip.log 2>&1 || { cat .venv/pip.log >&2; exit 1; }' pip
# pip would compile the packages' own tests too, half of all that is installed, on one core. Files of other versions'
# syntax among the modules are not compiled, and not imported.
COMPILE := flock .venv $(BIN)/python -m compileall -q -j 0 -x '/tests?/|py312' .venv/lib ddpsim ddpexec || true
OUT ?= out

# Random cases of studies: another seed each time, printed; STUDIES_SEED=N runs those of N again.
STUDIES_SEED := $(or $(STUDIES_SEED),$(shell date +%s))

export OMP_NUM_THREADS ?= 1


.PHONY: unchanged check check-studies test-rest test-all test-each test-times test-repeat summary faster orders schemes bands schemes-measured convergence fuzz smoke help demo accuracy estimates paper published validation test lint docs bench conformance bench-exec gpu clean

help:
	@echo "make demo    plan two models on five machines, then run one for real and hold the prediction against it"
	@echo "make test    the tests that need no network namespace, browser, wheel or wait; make test ROOM=topology, one room's"
	@echo "make check   every test, those of the studies and torch's of DDP too, random ones with all their examples"
	@echo "make check-studies   every study imported, its quick pages made again and compared, its tests"
	@echo "make summary  the page on accuracy by system, of the studies' pages"
	@echo "make test-times   how long make test takes, and its twenty slowest; make test-repeat: is it green each time?"
	@echo "make smoke   a short campaign on shaped networks (Linux, root): predict, run, validate"
	@echo "make fuzz    mutated files through every loader, more than the tests have"
	@echo "make lint    ruff, mypy, import contracts, and the budget of each room"
	@echo "make unchanged   hold all answers of this tree against those of another commit: BEFORE=HEAD~1"
	@echo "make docs    the documentation as a site, every link checked: open $(OUT)/docs/site/index.html"
	@echo "make bench   whole-process speed of the command line"
	@echo "make conformance   torch's own DDP tests against ours"
	@echo "make accuracy  predicted against measured collectives, into studies/accuracy; so faster, orders, bands, schemes"
	@echo "make estimates  estimated against published one-GPU steps, into studies/estimates"
	@echo "make convergence  train with gradients synchronised every 1, 2, 4, 8 iterations, and by schemes beside DDP"
	@echo "make validation  what was predicted before the kept runs, and what today's code says of them"
	@echo "make schemes-measured  schemes on the lab: errors by system, and what today's code says of the kept runs"
	@echo "make paper   reproduce the evaluation of DDP's paper, a verdict a claim, into studies/paper"
	@echo "make published   predict published steps of real GPUs, a table a system, and PyTorch's own DDP table"
	@echo "make bench-exec    step time of our DDP against torch's, and what a trace costs"
	@echo "make gpu     all that one GPU can tell: captures, tests, runs and benchmarks, with a report in $(OUT)/gpu"
	@echo "make clean   remove .venv and $(OUT)"

.venv/bin/python:
	@$(PYTHON) -m venv .venv

.venv/.run: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing (once) ..."
	@$(PIP_INSTALL) -e ".[exec]"
	@$(COMPILE)
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing, with what tests need (once) ..."
	@$(PIP_INSTALL) -e ".[exec,dev]"
	@$(COMPILE)
	@touch .venv/.run $@

demo: .venv/.run
	$(BIN)/python -m ddpexec demo --out $(OUT)/demo

# Processes that run tests.
WORKERS ?= 2

# Every test that needs no network namespace, browser, wheel or wait, but for the costliest cases (tests/costly.txt); it
# says how many it leaves to `make check`. A test runs again only where torch's native code aborted a rank; of those that
# are left, also where it is marked as sharing the machine's clock.
# `make test ROOM=collectives` runs those of one folder of either package, in seconds.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal -r R
ROOM ?=
TESTED = $(if $(ROOM),$(or $(wildcard tests/*/$(ROOM)),$(error no tests/*/$(ROOM): ROOM is a folder of ddpsim or ddpexec)),tests)
test: .venv/.dev
	$(PYTEST) $(TESTED) --part quick

test-rest: .venv/.dev
	$(PYTEST) tests --part rest

# Both at once: what they share, imports and kept results, is there once.
test-all: .venv/.dev
	$(PYTEST) tests

# What continuous integration runs: each test, and of those that have several cases not the costly ones.
test-each: .venv/.dev
	$(PYTEST) tests --part each

# Tests of the studies: fits and kept runs that hold the committed figures.
STUDIES := studies
check-studies: .venv/.dev
	@echo "seed of random cases: $(STUDIES_SEED)"
	STUDIES_SEED=$(STUDIES_SEED) $(BIN)/python -m pytest $(STUDIES) -n 2 --dist=worksteal --durations=10

# Everything, random tests with all their examples.
check: .venv/.dev
	HYPOTHESIS_PROFILE=large $(MAKE) test-all check-studies conformance

test-times: .venv/.dev
	$(BIN)/python -m tests.times

# Green each time, on an idle machine and beside a load: about an hour and a half.
test-repeat: .venv/.dev
	$(BIN)/python -m tests.times --repeat 10
	$(BIN)/python -m tests.times --repeat 3 --load 8

smoke: .venv/.dev
	rm -rf $(OUT)/smoke
	$(BIN)/python -m ddpexec campaign traces/smoke.yaml --out $(OUT)/smoke

fuzz: .venv/.dev
	$(BIN)/python -m studies.fuzz --count 100000 --workers 2
	$(BIN)/python -m studies.fuzz --count 2000 --commands --workers 2

.venv/.docs: .venv/.run
	@$(PIP_INSTALL) -e ".[exec,docs]"
	@touch $@

docs: .venv/.docs
	$(BIN)/python docs/build.py $(OUT)/docs

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m studies.size --check

# Records everything that commands, names, files and real ranks answer at commit BEFORE, and holds this tree against it.
BEFORE ?= HEAD
unchanged: .venv/.dev
	rm -rf $(OUT)/before && git worktree prune && git worktree add --detach $(OUT)/before $(BEFORE)
	cd $(OUT)/before && PYTHONPATH=. $(CURDIR)/$(BIN)/python -m tests.unchanged record $(CURDIR)/$(OUT)/before.json.gz
	git worktree remove --force $(OUT)/before
	$(BIN)/python -m tests.unchanged compare $(OUT)/before.json.gz

bench: .venv/.dev
	$(BIN)/python -m studies.benchmarks

# Pages that are committed stand in their study's folder; `make summary` makes the documentation's page of them.
accuracy estimates faster orders schemes bands: .venv/.dev
	$(BIN)/python -m studies.$@ --out studies/$@

validation published: .venv/.run
	$(BIN)/python -m studies.$@ --out studies/$@

summary: .venv/.run
	$(BIN)/python -m studies.summary --out docs/reference

schemes-measured: schemes

paper: .venv/.run
	$(BIN)/python -m studies.paper all --out studies/paper

# Thirty-two trainings of 400 iterations: ten to twenty minutes on two cores.
convergence: .venv/.dev
	$(BIN)/torchrun --standalone --nproc-per-node 2 -m studies.convergence.convergence
	$(BIN)/python -m studies.convergence.scheme_losses
	$(BIN)/python -m studies.convergence --out studies/convergence

conformance: .venv/.dev
	$(BIN)/python tests/conformance/run.py

bench-exec: .venv/.dev
	mkdir -p $(OUT)
	$(BIN)/python -m studies.benchmarks.executor --out $(OUT)/bench-exec.json
	$(BIN)/python -m studies.benchmarks.tracing

gpu: .venv/.dev
	$(BIN)/python -m studies.gpu --out $(OUT)/gpu

clean:
	rm -rf .venv $(OUT)
