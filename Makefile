# Two commands: `make demo` and `make test`. Each sets up all it needs: a Python 3.11 or newer
# (PYTHON=...) is enough; Java and Maven are used where the system has them (docs/install.md).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Thousands of processes start in a run of the tests: without bytecode each compiles all it imports.
export PYTHONDONTWRITEBYTECODE :=

# What a user's shell holds for pytest is no part of these commands.
export PYTEST_ADDOPTS :=
PYTEST := $(BIN)/python -m pytest
NOT_LONG := not campaign and not helm

.PHONY: demo install test lint unit quick campaign helm cuts simulate nemesis fuzz model docs lock dist sbom audit clean

# The demo has a small environment of its own, unless there is the whole one. Without Maven it needs
# the whole one: Ivy, which pyspark brings, fetches Kafka's jars.
DEMO := $(if $(wildcard .venv/ready),.venv,$(if $(shell command -v mvn),.venv-demo,.venv))

demo: $(DEMO)/ready
	$(DEMO)/bin/python -m amcast demo

test: lint unit

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Many tests wait for brokers, so four run on two cores. What fails is run once more, alone: a test
# that starved on a busy machine passes then, a broken one does not. The last lines name it.
unit: .venv/ready
	$(PYTEST) -n 4 --whole-run --durations=10 -m "$(NOT_LONG)" \
	  || $(PYTEST) --last-failed --last-failed-no-failures none -v -m "$(NOT_LONG)"

# What needs no broker.
quick: lint
	$(PYTEST) -n 4 --durations=10 -m "$(NOT_LONG) and not kafka and not slow"

# What is long, or a test of the tests: all of it, or a part of tests/parts.toml (PART=planner).
PART ?=
campaign: .venv/ready
	AMCAST_CAMPAIGN=$(PART) $(PYTEST) -n 3 --whole-run --durations=10 -m campaign \
	  || AMCAST_CAMPAIGN=$(PART) $(PYTEST) --last-failed --last-failed-no-failures none -v -m campaign

# Brokers that are killed and lose ends of partitions, and whether readers that go on ever differ.
CUTS ?= 20
cuts: .venv/ready
	CUTS=$(CUTS) $(PYTEST) -m campaign tests/system/tails/cuts.py

# Schedules of faults on the real cores in virtual time; a failure prints the command to repeat it.
SCHEDULES ?= 30000
simulate: .venv/ready
	$(BIN)/python -m bench.simulator --schedules $(SCHEDULES) --processes 2

# Real faults on a whole system, in network namespaces: root, iproute2 and util-linux. What happens
# beside its load (asides) the tests try one by one. A violation ends with 3 and fails; a recovery that
# took longer than is allowed ends with 1 and is told only: a busy machine is not a broken one.
FAULTS ?= 60
nemesis: .venv/ready
	$(BIN)/amcast bench nemesis --seed 8 --faults $(FAULTS) --without 'aside-*' --rate 60 --patience 180 \
	  || [ $$? -eq 1 ]

# Bytes that nobody of ours wrote, to every decoder of bytes (bench/fuzz/); a failure prints the
# command to repeat it.
fuzz: .venv/ready
	$(BIN)/python -m bench.fuzz --inputs 1000000

# Every state of the protocol at small scope: the real cores by Python, a model of them by spin
# (Debian: apt-get install spin gcc).
model: .venv/ready
	$(BIN)/python -m bench.search
	spec/check

# The pages and the docstrings as a site in build/site. Sphinx has an environment of its own, so that
# what it needs does not bind what the product needs.
docs: .venv-docs/ready
	.venv-docs/bin/python -m sphinx --nitpicky --fail-on-warning --quiet -b html -c docs . build/site

.venv-docs/ready: docs/requirements.lock
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install --quiet --require-hashes --only-binary :all: -r $<
	touch $@

.venv-demo/ready: requirements.lock pyproject.toml bench/demo/setup.py
	$(PYTHON) -m bench.demo.setup .venv-demo
	touch $@

# For users: amcast with these extras into the environment TO, by the lock's hashes.
install: EXTRAS := all
install:
	$(PYTHON) -m bench.demo.setup $(or $(TO),$(error name the folder of the environment: TO=~/amcast)) $(EXTRAS)

# The environment is made anew whenever the lock or the package's description changes. pyspark has no
# wheel: the lock's setuptools builds it, as the build of an isolated environment is not locked.
.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear .venv
	sed -n '/^setuptools==/,/[^\]$$/p' requirements.lock > .venv/build.lock
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: -r .venv/build.lock
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

lock: .venv/ready
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --no-header --extra dev --extra bench --extra all -o requirements.lock pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --no-header -o docs/requirements.lock docs/requirements.in

# The wheel and the source distribution, as tests/system/test_wheel.py builds and tries them, and the
# lock of an image with collectors.
dist: .venv/ready
	rm -rf build dist
	mkdir dist
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')" >/dev/null
	$(PYTHON) -m bench.demo.setup --lock collectors,planner,osn > dist/amcast.lock

# The generated chart, checked by Helm, which Go builds from its source, once.
helm: .venv/ready .helm/helm
	$(BIN)/python -m pytest -m helm tests/collectors/deploy

.helm/helm:
	GOBIN=$(CURDIR)/.helm go install helm.sh/helm/v3/cmd/helm@v3.16.4

# All that the lock installs, with versions and hashes, as CycloneDX 1.6. It is made when it is needed:
# a file in the repository would be a second lock, and would go stale.
sbom: .venv/ready
	mkdir -p dist
	$(PYTHON) -m venv .venv/sbom
	.venv/sbom/bin/python -m pip install --quiet cyclonedx-bom==7.5.0
	.venv/sbom/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml \
	  --output-reproducible -o dist/amcast.cdx.json

# Known vulnerabilities of what is locked; where nobody answers for the advisories, it says so.
audit: .venv/ready
	mkdir -p dist
	rm -f dist/audit.txt
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet pip-audit==2.10.1
	.venv/audit/bin/pip-audit --vulnerability-service osv --progress-spinner off --disable-pip \
	  --require-hashes -r requirements.lock --output dist/audit.txt 2> dist/audit.log \
	  || if [ -s dist/audit.txt ]; then cat dist/audit.txt; exit 1; \
	  else echo "NOT AUDITED: the advisories cannot be had here (dist/audit.log)"; fi

clean:
	rm -rf .venv .venv-demo .venv-docs .helm dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
