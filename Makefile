# The same words that CI uses. A second run reuses what the first set up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A smaller torch without CUDA libraries, where an index of CPU wheels is at hand: make install TORCH_INDEX=URL
TORCH_INDEX ?=
# What `make check` leaves to `make test`.
QUICK := not system and not thorough
CHECKERS := 3
# Where tests of real processes lie: collecting all others takes a minute of a processor (tests/contract/test_house.py).
SYSTEM := tests/system tests/contract
EVERYWHERE := --doctest-modules --ignore=tests/scripts --ignore=examples \
	trainwarden tests
# So many system tests at once: most wait half of their time, so four keep two cores busy.
WORKERS ?= 4
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Tests start hundreds of interpreters: without byte code each would compile all it imports, and pytest every test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install system demo test first check bench gpu-check house dashboards kafka image kubernetes release up constraints clean

# NCCL's profiler plug-in is compiled where there is a C compiler, and again when its sources are newer.
install: $(STAMP)
	@$(BIN)/python collectors/nccl_profiler/build.py

$(STAMP): pyproject.toml constraints.txt
	@echo "Fetching $$(grep -c == constraints.txt) packages into $(VENV), once: $(if $(TORCH_INDEX),torch for CPUs from $(TORCH_INDEX),about 7 GB on disk with torch's CUDA libraries). Two to four minutes where the network is good."
	$(if $(TORCH_INDEX),,@command -v nvidia-smi > /dev/null || echo "No GPU is seen here. Where an index of CPU wheels is at hand, make install TORCH_INDEX=URL fetches less.")
	@df -Pk . | awk 'NR == 2 && $$4 < 9000000 {printf "Only %.1f GB are free here.\n", $$4 / 1e6}'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt pip setuptools wheel
	$(if $(TORCH_INDEX),$(PIP) install --constraint constraints.txt --index-url $(TORCH_INDEX) torch)
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@; echo "Installed: $$(du -sh $(VENV) | cut -f1) in $(VENV)."

# What tests of real servers need beyond Python: Java and Maven for Kafka, a C compiler for the fake NVML, Prometheus.
# Taken from Debian's packages where this may be done; elsewhere those tests skip and say why.
system:
	@docker/system-packages.sh

demo: install
	$(BIN)/trainwarden demo

# Everything CI runs: style, types, layers, unit, contract, property, doctest, and real processes and servers beside them.
# These wait a third of their time for each other: the first part takes what they leave of the processors, and is shown
# when they are done. Real processes on a shared machine can be starved: what failed is shown, then run once more and
# must pass. The last two lines name the tests that were run twice, and those that were not run with the reason.
AGAIN = || { echo "--- what failed, once more ---"; \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(1); }
SERVERS := -o cache_dir=.cache/pytest-system -m system $(SYSTEM)
test: export TRAINWARDEN_THOROUGH ?= 1
test: export TRAINWARDEN_NOT_RUN := .cache/not-run.log
test: install system
	@mkdir -p .cache; rm -f $(TRAINWARDEN_NOT_RUN); \
	nice -n 19 make --no-print-directory first > .cache/first.log 2>&1 & first=$$!; \
	trap 'kill $$first; exit 130' INT TERM; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=25 $(SERVERS) $(call AGAIN,$(SERVERS)); \
	code=$$?; wait $$first || code=$$?; cat .cache/first.log; \
	$(BIN)/python -m tests.not_run $(TRAINWARDEN_NOT_RUN); exit $$code

first: QUICK := not system
first: CHECKERS := 2
first: ONCE_MORE = $(call AGAIN,-m '$(QUICK)' $(EVERYWHERE))
first: check

# Three processes, as some tests wait; under three minutes on two cores; a quarter of the drawn cases and no test marked
# `thorough`; no network, no servers. Types are looked at beside the tests, 50 s the first time, and are shown after them.
check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	@mkdir -p .cache; $(BIN)/mypy > .cache/types.log 2>&1 & types=$$!; \
	trap 'kill $$types; exit 130' INT TERM; \
	$(BIN)/python -m pytest -n $(CHECKERS) --dist worksteal -m '$(QUICK)' $(EVERYWHERE) $(ONCE_MORE); \
	code=$$?; wait $$types || code=$$?; cat .cache/types.log; exit $$code

bench: install
	$(BIN)/trainwarden bench

# What can only be known with a GPU: gpu-check.json, and recordings of its jobs in gpu-check/. Without one it says so.
gpu-check: install
	$(BIN)/python -m tests.gpu_check

# The drawing of rooms and imports in docs/architecture.md, from the code.
house: install
	$(BIN)/python -m tests.house --write

# Prometheus' rules, Grafana's dashboards and alerts, from dashboards/*.py.
dashboards: install
	$(BIN)/python -m trainwarden.dashboards.generated --write

kafka: install system
	$(BIN)/python -m tests.servers.kafka

# The image's Dockerfile, its steps done in a chroot over a Debian of our own (root, buildah, debootstrap; minutes).
image: export TRAINWARDEN_REQUIRE_SERVERS := 1
image: export TRAINWARDEN_IMAGE_EXTRAS ?= detect,train,serve,signing,kubernetes,compression
image: install
	docker/system-packages.sh all
	$(BIN)/python -m pytest tests/system/test_image.py

# The Helm chart and the Kubernetes launcher against a real API server, built from Go modules (minutes the first time) and
# kept in .cache.
kubernetes: export TRAINWARDEN_KUBERNETES := 1
kubernetes: install
	docker/system-packages.sh all
	$(BIN)/python -m pytest tests/system/test_helm.py tests/system/test_kubernetes_launcher.py
	$(BIN)/python -m pytest tests/contract/test_launchers.py -k kubernetes

# Wheels, source distribution, bill of materials and sums in dist/, each tried in an empty environment (minutes).
RELEASE := .cache/release
release: install
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet "pip>=25.1"
	$(RELEASE)/bin/python -m pip install --quiet --group release
	$(BIN)/python -m tests.release

up: install
	$(BIN)/trainwarden up

constraints: install
	{ echo "# Every version that \`make install\` uses, so that a set-up is the same tomorrow. Remake: make constraints"; \
	  $(PIP) freeze --exclude-editable --all | grep -v '^trainwarden'; } > constraints.new && mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) .cache build dist *.egg-info
