# Two commands: `make demo` and `make test`. Each sets up all it needs: a Python 3.11 or newer
# (PYTHON=...) is enough; Java and Maven are used where the system has them (README, "Set-up").

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test lint unit simulate model lock clean

demo: .venv/ready
	$(BIN)/amcast demo

test: lint unit

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: .venv/ready
	$(BIN)/python -m pytest

# Schedules of faults on the real cores in virtual time; a failure prints the command to repeat it.
simulate: .venv/ready
	$(BIN)/python -m bench.simulator --schedules 30000 --processes 2

# Every state of the protocol at small scope: the real cores by Python, a model of them by spin
# (Debian: apt-get install spin gcc).
model: .venv/ready
	$(BIN)/python -m bench.exhaustive
	spec/check

# The environment is made anew whenever the lock or the package's description changes.
.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --no-binary pyspark -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

lock: .venv/ready
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
	  --no-emit-trusted-host --no-header --extra dev --extra java --extra highs --extra bench --extra osn -o requirements.lock pyproject.toml

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
