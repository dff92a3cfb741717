# make install   everything that a run needs, into .venv (no root rights, no Docker, no Java needed)
# make demo      the whole self-play loop on this machine, with a report
# make test      every check and test; as root it installs Debian's chromium-headless-shell and prometheus, which some tests drive
# make soak      fifty random kills over a longer run, tides of processes, long outages; half an hour (SOAK_KILLS, SOAK_SEED)
# make bench     figures of sandbox, gate, pipeline and memory beside their targets; some minutes, as root, on an otherwise idle machine
# make lock      requirements.lock anew, after a change in pyproject.toml

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.12.0
STAMP := $(VENV)/.installed
TEST_WORKERS ?= 2
export OMP_NUM_THREADS ?= 1

.PHONY: install tools demo test soak bench lint lock clean

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

test: lint tools
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

soak: install
	$(BIN)/python -m pytest -m soak -s tests/soak

bench: install
	$(BIN)/python -m tests.bench

lock:
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --generate-hashes --no-emit-index-url --extra dev -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) runs build dist
