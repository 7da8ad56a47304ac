# Every target works in a fresh clone: the virtual environment is made on first use.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3.11
VENV ?= .venv
BRIDGE_PYTHON ?= python3.12
# As NVIDIA's images are: their Python, one of their versions of torch, and our layer of pins over it.
IMAGE_VENV ?= .venv-image
IMAGE_PYTHON ?= python3.12
IMAGE_TORCH ?= 2.9.1
# Pythons on which the project is installed without NeMo.
INSTALL_PYTHONS ?= python3.11 python3.12 python3.13
INSTALL_VENV ?= .venv-install
READY := $(VENV)/.ready
RUN := $(VENV)/bin/python
PIP := -m pip install --disable-pip-version-check --progress-bar off --quiet
# Processes that share the tests (tests/conftest.py says how); on two cores three, as one often waits for a Slurm.
TEST_PROCESSES ?= 3
PYTEST := $(RUN) -m pytest --numprocesses $(TEST_PROCESSES)
OUTPUT ?= demo_output
TINY_OUTPUT ?= demo_tiny_output
ENVIRONMENTS := vllm comet trl bridge automodel

.PHONY: help setup docs demo demo-tiny test test-slow test-long test-all rehearsals fuzz lint test-vllm test-comet test-trl test-bridge test-image test-automodel test-install check bench clean $(ENVIRONMENTS:%=%-environment)
help:
	@echo "make setup     virtual environment with the pinned requirements (3 to 6 minutes); PYTHON=python3.12 for another than python3.11"
	@echo "make demo      graft Slovene onto SmolLM2-135M, all stages, into $(OUTPUT)/ (under 15 minutes on 2 cores)"
	@echo "make demo-tiny the same on a tiny model that it trains itself, into $(TINY_OUTPUT)/ (under 7 minutes on 2 cores)"
	@echo "make test      lint, types and the usual tests, shared by TEST_PROCESSES=$(TEST_PROCESSES) processes (9 to 12 minutes on 2 slow cores)"
	@echo "make test-slow what takes seconds each: families at every layout, kills and resumed runs, lost nodes of a Slurm, ranks on fake GPUs (about 15 minutes)"
	@echo "make test-long what takes minutes each: whole trainings, pipelines on a Slurm, kills at every step, all published recipes (about an hour)"
	@echo "make test-all  all three"
	@echo "make rehearsals  every published recipe on fake GPUs with all its layers"
	@echo "make fuzz      hostile checkpoints for hours (FUZZ_EXAMPLES of each kind)"
	@echo "make test-vllm vLLM on a CPU against transformers, in an environment of its own (4 GB; about 10 minutes)"
	@echo "make test-comet COMET and BLEURT on a CPU with tiny checkpoints, in an environment of its own (1.5 GB; about 4 minutes)"
	@echo "make comet-environment  that environment alone, in .venv-comet: for eval.comet and eval.bleurt"
	@echo "make trl-environment    TRL on a CPU or GPU, in .venv-trl: for tuning an export (1.5 GB)"
	@echo "make test-trl  an export tuned with TRL's own command on a CPU and evaluated (about 5 minutes)"
	@echo "make bridge-environment Python 3.12, Megatron-Bridge, Megatron-core 0.19, transformers 5, in .venv-bridge: the way out of NeMo (6 GB)"
	@echo "make test-bridge  exported recipes in Megatron-Bridge's own loop on a CPU, and our tests with transformers 5 and 4 (6 minutes on 2 fast cores)"
	@echo "make automodel-environment  NeMo AutoModel and transformers 5, in .venv-automodel: for models that NeMo 2 does not have (3 GB)"
	@echo "make test-automodel  exported recipes in AutoModel's own loop on a CPU (about 5 minutes)"
	@echo "make test-image  a tiny training as in an image: $(IMAGE_PYTHON), torch $(IMAGE_TORCH) and our pins over it, in $(IMAGE_VENV) (9 GB)"
	@echo "make test-install  the project without NeMo on $(INSTALL_PYTHONS): text, transfer, conversion, evaluation (up to 5 GB at a time)"
	@echo "make docs      the documentation as a site in site/, its links checked, no network needed"
	@echo "make check     lint and types only"
	@echo "make bench TEXT='a.jsonl.gz b.jsonl.gz'  every command beside its peers and limits, into benchmark_output/ (docs/results/benchmarks.md)"

$(READY): requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not installed; install Python 3.11 or 3.12 with venv or set PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12)])' || { echo "error: $(PYTHON) is neither Python 3.11 nor 3.12, which NeMo is tested on; set PYTHON=..." >&2; exit 2; }
	@echo "== setup: virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "== setup: installing $$(grep -c == requirements.txt) pinned packages (3 to 6 minutes, 3 GB on disk)"
	@$(VENV)/bin/python $(PIP) --no-compile -r requirements.txt
	@# The loops over text are C, compiled at first use.
	@command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || \
	  $(VENV)/bin/python $(PIP) --no-compile ziglang==0.17.1
	@# pip would compile on one core; some packages carry templates that are no Python, which are passed over.
	@$(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib || true
	@$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "== setup: done"

setup: $(READY)

demo: $(READY)
	@if $(RUN) -m recipes.projects.fetch --model smollm2; then project=demo; else project=demo_tiny; fi; \
	 $(RUN) -m recipes.run recipes/projects/$$project.yaml machine.work_dir=$(OUTPUT)

demo-tiny: $(READY)
	@$(RUN) -m recipes.run recipes/projects/demo_tiny.yaml machine.work_dir=$(TINY_OUTPUT)

# Environments beside it, .venv-NAME of requirements-NAME.txt, each with what it does after that.
# vLLM's builds for CUDA come along as dependencies, and it cannot be imported beside them on a CPU.
AFTER_vllm := -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
# Without its dependencies: requirements-bridge.txt has those that a machine without a GPU can have.
AFTER_bridge := $(PIP) --no-deps megatron-bridge==0.6.2
.venv-bridge/.ready: PYTHON = $(BRIDGE_PYTHON)

$(ENVIRONMENTS:%=.venv-%/.ready): .venv-%/.ready: requirements-%.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not installed; install it with venv or set PYTHON=..., BRIDGE_PYTHON=... (3.12) for Megatron-Bridge" >&2; exit 2; }
	@$(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/python $(PIP) -r $<
	@$(if $(AFTER_$*),.venv-$*/bin/python $(AFTER_$*))
	@touch $@

$(ENVIRONMENTS:%=%-environment): %-environment: .venv-%/.ready

test-vllm: vllm-environment
	@.venv-vllm/bin/python -m pytest tests/eval/running/test_vllm.py

test-comet: comet-environment
	@.venv-comet/bin/python -m pytest tests/eval/test_comet.py tests/eval/test_bleurt.py

test-trl: $(READY) trl-environment
	@SCION_TRL=.venv-trl/bin/trl $(RUN) -m pytest tests/eval/test_trl.py

test-automodel: $(READY) automodel-environment
	@SCION_AUTOMODEL=.venv-automodel/bin/python $(RUN) -m pytest tests/recipes/exporting/test_export_automodel.py

# Passes with transformers 5 as with 4 (docs/publishing.md, which says what is left out and why).
IN_BOTH := bits_per_byte chat_template colexnet config_ids dist_checkpoint edit_vocabulary embeddings_factorisation embeddings_methods \
	embeddings_nearest embeddings_references embeddings_translation embeddings_vocabulary embeddings_word_text factorised_model families from_gguf \
	hf_checkpoint hf_model learned_methods mapping matching_pursuit model_card
NOT_IN_BOTH := test_all_tasks_are_learned or test_checkpoints_of_the_run
test-bridge: $(READY) bridge-environment
	@SCION_BRIDGE=.venv-bridge/bin/python $(RUN) -m pytest tests/recipes/exporting/test_export_bridge.py tests/conversion/test_bridge_families.py
	@SCION_OTHER_PYTHON=.venv-bridge/bin/python $(RUN) -m pytest tests/conversion/test_both_versions.py
	@SCION_OTHER_PYTHON=$(RUN) .venv-bridge/bin/python -m pytest tests/conversion/test_both_versions.py
	@.venv-bridge/bin/python -m pytest -m "not slow and not long" -k "not ($(NOT_IN_BOTH))" tests/eval $(foreach name,$(IN_BOTH),$(wildcard tests/conversion/test_$(name).py tests/conversion/*/test_$(name).py))

$(IMAGE_VENV)/.ready: requirements.txt slurm/images/choose_pins.py slurm/images/layer.sh
	@command -v $(IMAGE_PYTHON) >/dev/null || { echo "error: $(IMAGE_PYTHON) is not installed; install Python 3.12 with venv or set IMAGE_PYTHON=..." >&2; exit 2; }
	@$(IMAGE_PYTHON) -m venv $(IMAGE_VENV)/base
	@$(IMAGE_VENV)/base/bin/python $(PIP) torch==$(IMAGE_TORCH) numpy==1.26.4
	@mkdir -p $(IMAGE_VENV)/pins && cp $^ $(IMAGE_VENV)/pins
	@LAYER=$(abspath $(IMAGE_VENV)/layer) PYTHON=$(IMAGE_VENV)/base/bin/python bash slurm/images/layer.sh $(IMAGE_VENV)/pins
	@touch $@

# Starts, trains, is killed, resumes, converts and compares.
test-image: $(IMAGE_VENV)/.ready
	@$(IMAGE_VENV)/layer/bin/python -m pytest tests/nemo_patches/test_catalogue.py tests/recipes/training/test_training.py \
		tests/recipes/training/test_tiny_runs.py::test_two_stages_of_adapters_with_two_tokens tests/conversion/test_verify.py

# `pip install .` on each Python, without NeMo, and one way from text to a figure (tests/test_installed.py); torch as it is pinned.
test-install: $(READY)
	@for python in $(INSTALL_PYTHONS); do \
	   echo "== $$python"; rm -rf $(INSTALL_VENV) build; $$python -m venv $(INSTALL_VENV); \
	   $(INSTALL_VENV)/bin/python $(PIP) '.[data,transfer,eval]' $$(grep '^torch==' requirements.txt); \
	   SCION_INSTALLED=$(abspath $(INSTALL_VENV))/bin/python $(RUN) -m pytest -m long tests/test_installed.py; \
	 done

docs: $(READY)
	@$(RUN) -m mkdocs build --strict --quiet

lint: $(READY)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

check: lint
	@$(VENV)/bin/mypy

# Thousands of commands are started, each of which would compile our modules again where bytecode is not kept;
# and several processes share the cores, so that threads of one would wait for those of another.
test test-slow test-long: export PYTHONDONTWRITEBYTECODE :=
test test-slow test-long: export OMP_NUM_THREADS := 1

# Types are checked beside the tests, as that takes one core a minute; what is found is printed behind them.
test: lint
	@types=$$(mktemp); $(VENV)/bin/mypy > $$types 2>&1 & checked=$$!; \
	 $(PYTEST) -m "not slow and not long" || failed=$$?; \
	 wait $$checked || failed=$$?; cat $$types; rm $$types; exit $${failed:-0}

test-slow: $(READY)
	@$(PYTEST) -m "slow and not long"

test-long: $(READY)
	@$(PYTEST) -m long
	@place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; $(MAKE) demo OUTPUT="$$place/demo"

test-all: test test-slow test-long

# Published recipes on fake GPUs at their real widths and depths; the long tests take few layers of each.
rehearsals: $(READY)
	@SCION_REAL_DEPTH=1 SCION_REHEARSALS=rehearsals_output/$$(git rev-parse HEAD) $(RUN) -m pytest --timeout 0 -m long tests/recipes/rehearsal/test_rehearsal.py

# Hostile checkpoints, other ones in every run: FUZZ_EXAMPLES of each of four kinds.
FUZZ_EXAMPLES ?= 20000
fuzz:
	@SCION_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(RUN) -m pytest --timeout 0 tests/conversion/formats/test_fuzz.py

bench: $(READY)
	@$(RUN) -m benchmarks.all --text $(TEXT) --output benchmark_output

clean:
	@rm -rf $(OUTPUT) $(TINY_OUTPUT) .pytest_cache .mypy_cache .ruff_cache
