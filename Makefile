# Each target sets up its own environment (.venv) and can be run on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPPLM := $(BIN)/cpplm

.PHONY: help demo demo-adapt demo-tpu clean-demo test test-slow test-all coverage test-tpu bench bench-gpu notebooks lint format clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

# Plain venv and pip. The stamp makes the install run again only when its inputs change.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Python 3.11 or newer is needed, $$($(PYTHON) --version) was found; pass PYTHON=/path/to/python3" >&2; exit 2; }
	@echo "Setting up $(VENV), once: this installs PyTorch and some smaller packages and takes a minute or more."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cluster,semantic,serve,tracking,notebooks,dev]'
	@touch $@

# ---- demo: C++ on this machine to a model, in one command ------------------------------------------------
DEMO ?= runs/$(if $(HOURS),hour,demo)
MINUTES ?= $(if $(HOURS),$(shell awk 'BEGIN { print 60 * "$(HOURS)" }'),3)
VOCAB ?= 4096
RECIPE = recipes/$(if $(HOURS),hour,demo).toml
BUILD_CORPUS = $(CPPLM) corpus build $(or $(PROJECTS),--cxx_headers) --out $(DEMO)/corpus
# An hour needs more text than the headers of g++: without PROJECTS open-source ones, from Debian or Ubuntu.
ifneq ($(HOURS),)
ifeq ($(PROJECTS),)
BUILD_CORPUS = CPPLM=$(CPPLM) recipes/debian_corpus.sh large $(DEMO)
endif
endif

demo: $(VENV)/.installed  ## C++ to a model: corpus, tokenizer, train, evaluate, generate, page; HOURS=1 takes longer
	$(BUILD_CORPUS)
	$(CPPLM) tokenizer train $(DEMO)/corpus --out $(DEMO)/tokenizer.json --vocab_size $(VOCAB) --soft_vocab_limit
	$(CPPLM) train $(DEMO)/corpus --config $(RECIPE) --tokenizer $(DEMO)/tokenizer.json --out $(DEMO)/run --max_minutes $(MINUTES)
	$(CPPLM) evaluate $(DEMO)/run --data_dir $(DEMO)/corpus
	$(CPPLM) generate $(DEMO)/run --examples --max_new_tokens 80 --save
	$(CPPLM) runs page $(DEMO)/run
	@echo 'Chat and complete C++ in a browser or an editor: $(CPPLM) serve $(DEMO)/run'

# ---- demo-adapt: the demo's model to one that knows your code -----------------------------------------------
ADAPT ?= runs/adapt
TASKS ?= fix ask

demo-adapt: $(VENV)/.installed  ## the demo's model adapted to PROJECTS="DIR ...": training on, tasks, fine-tuning, comparison
	@test -n "$(PROJECTS)" || { echo 'make: say whose code: make demo-adapt PROJECTS="~/src/mine ~/src/other"' >&2; exit 2; }
	@test -d $(DEMO)/run/checkpoints || $(MAKE) demo PROJECTS=
	$(CPPLM) corpus build $(PROJECTS) --mode compilable --out $(ADAPT)/corpus --val_fraction 0.15 --val_split unit
	$(CPPLM) train $(ADAPT)/corpus --config recipes/adapt.toml --init_from $(DEMO)/run --stage mid --rope_scaling ntk --tokenizer $(DEMO)/tokenizer.json --out $(ADAPT)/mid
	$(CPPLM) tasks build $(ADAPT)/corpus --projects $(PROJECTS) --kinds $(TASKS) --num_train 500 --num_val 150 --out $(ADAPT)/tasks
	$(CPPLM) tasks audit $(ADAPT)/tasks --num_items 10
	$(CPPLM) tasks build $(ADAPT)/corpus --projects $(PROJECTS) --kinds denoise ask --num_train 4000 --num_val 0 --out $(ADAPT)/more
	$(CPPLM) sft $(ADAPT)/tasks $(ADAPT)/more --init_from $(ADAPT)/mid --lr_scale 0.4 --out $(ADAPT)/sft
	$(CPPLM) evaluate tasks $(ADAPT)/sft --tasks $(ADAPT)/tasks --against $(ADAPT)/mid $(DEMO)/run --guards $(ADAPT)/corpus
	@echo 'Ask it about your code in a browser: $(CPPLM) serve $(ADAPT)/sft --tools $(firstword $(PROJECTS))'

# ---- demo-tpu: a run on spot TPUs that are processes of this machine --------------------------------------
demo-tpu: $(VENV)/.installed  ## a run on spot machines that are taken away three times, without a cloud: time line, page
	$(BIN)/python -m tests.cloud.demo runs/demo-tpu

clean-demo:  ## forget the demo and start over
	@test ! -e $(DEMO) || test -d $(DEMO)/corpus || \
	  { echo "make: $(DEMO) is not the folder of a demo (it has no corpus); nothing was removed" >&2; exit 2; }
	rm -rf $(DEMO)

# ---- checks -----------------------------------------------------------------------------------------------
# Most tests take one thread: they run beside each other.
PYTEST = $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

test: $(VENV)/.installed  ## one test of each kind of fault, in minutes
	$(PYTEST) -m 'not slow' -o faulthandler_timeout=300

test-slow: $(VENV)/.installed  ## the others
	$(PYTEST) -m slow

test-all: test test-slow  ## the whole test suite

coverage: $(VENV)/.installed  ## lines and branches that `make test` reaches
	$(PYTEST) -m 'not slow' --cov --cov-report=term:skip-covered

test-tpu: $(VENV)/.installed  ## compile training steps for TPUs that are not here; installs their compiler
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tpu]'
	$(BIN)/python -m pytest -m slow tests/jax/test_aot_compile.py

bench: $(VENV)/.installed  ## how fast the corpus is built; BENCH=DIR: on the projects in that folder
	$(BIN)/python benchmarks/corpus.py $(BENCH)

bench-gpu: $(VENV)/.installed  ## every figure that needs a CUDA GPU, ten minutes a call; GPU="--dry_run": tiny, on a CPU
	$(BIN)/python benchmarks/gpu.py --work runs/bench-gpu $(GPU)

notebooks: $(VENV)/.installed  ## notebooks/*.ipynb anew, from notebooks/*.py
	$(BIN)/python scripts/notebooks.py

lint: $(VENV)/.installed  ## ruff, types, layers of imports
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed  ## rewrite what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage
