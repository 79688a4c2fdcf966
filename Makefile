# Every target works on a fresh machine with git, make and Python >= 3.11: the first one
# that needs it makes .venv and installs what constraints.txt pins.
VENV   := .venv
PYTHON := $(shell for p in $(PYTHON3) python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
CORE   := .venv-core
BIOME  := @biomejs/biome@2.6.8
unexport PYTHONDONTWRITEBYTECODE  # else each start of pytest compiles hypothesis anew: two seconds
NPX    := npm_config_fetch_retries=0 npm_config_fetch_timeout=20000 npx --yes $(BIOME)

.DEFAULT_GOAL := help
.PHONY: help demo test-core test test-all test-gpu test-slurm gpu-report golden lint types arch audit check page docs pictures \
	noise bench bench-lab example release clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "celedger needs Python >= 3.11; set PYTHON3=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch]' --group dev
	@touch $@

demo: $(STAMP)  ## Make a demo repository, find its four planted regressions, draw them
	$(BIN)/celedger demo

$(CORE)/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "celedger needs Python >= 3.11; set PYTHON3=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(CORE)/bin/python -m pip install --quiet --constraint constraints.txt --editable . --group core
	@touch $@

test-core: $(CORE)/installed  ## Run the tests that start no program (a minute; no torch, Ray or Lightning)
	$(CORE)/bin/python -m pytest -q -n 2 --dist loadgroup -m core

test: $(STAMP)  ## Run the quick tests: two minutes on two cores (no GPU needed)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'not matrix and not gpu and not slurm'

test-all: $(STAMP)  ## Run them and the slow ones: every kill, suite, adapter
	$(BIN)/python -m pytest -n 2 --dist loadgroup --hypothesis-profile=long -m 'not gpu and not slurm'

test-gpu: $(STAMP)  ## Run the tests of one GPU (10 minutes; without a GPU there are none)
	$(BIN)/python -m pytest -m gpu tests/gpu/test_known_truth.py || test $$? -eq 5
	$(BIN)/python -m pytest -m gpu -n 4 tests/gpu/test_trainings_on_gpu.py || test $$? -eq 5

test-slurm: $(STAMP)  ## Run the tests of a real Slurm cluster on this machine (as root, with apt-get)
	$(BIN)/python -m pytest -m slurm tests/engines

gpu-report: $(STAMP)  ## Write docs/gpu-report.md: this GPU, what passed, figures beside the CPU's
	$(BIN)/python scripts/make_gpu_report.py

golden: $(STAMP)  ## Write the answers in tests/golden anew; read the difference
	$(BIN)/python -m pytest -q -n 2 tests/golden --update-golden

lint: $(STAMP) page  ## Check style and format with ruff and biome
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## Check types with mypy --strict
	$(BIN)/mypy

arch: $(STAMP)  ## Check the layers of the house
	$(BIN)/python -m pytest -q tests/test_architecture.py

audit: $(STAMP)  ## Check the oldest versions of dependencies for known holes (skipped without the database)
	@$(BIN)/python scripts/audit_dependencies.py

check: test-all lint types arch audit  ## Everything CI runs

page:  ## Check the script and style of the report's page with biome (skipped without npx)
	@if ! command -v npx >/dev/null; then \
		echo "the page's script and style are not checked: there is no npx (it comes with Node.js)"; \
	elif ! $(NPX) --version >/dev/null 2>&1; then \
		echo "the page's script and style are not checked: npm cannot fetch $(BIOME)"; \
	else $(NPX) check; fi

docs: $(STAMP)  ## Make docs/cli.md, celedger.1 and docs/schemas anew
	$(BIN)/python scripts/make_cli_reference.py
	$(BIN)/python scripts/make_schemas.py

pictures: $(STAMP)  ## Make docs/images anew by the commands that draw them (10 minutes)
	$(BIN)/python scripts/make_pictures.py

noise: $(STAMP)  ## Measure the shipped suites' noise anew into docs/noise.md (an hour, a quiet machine)
	$(BIN)/python scripts/make_noise_table.py

bench: $(STAMP)  ## Measure what the manual quotes figures of (hours, a quiet machine)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bisect_calibration.py --cases 2000 --out /tmp/celedger-bisects
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/lives.py --lives 20 --jobs 2
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/hard_worlds.py --cases 120 --jobs 2
	$(BIN)/python benchmarks/kills.py --times 30 --seed 7
	$(BIN)/python benchmarks/hostile.py
	$(BIN)/python benchmarks/reuse.py --mutations 5000

bench-lab: $(STAMP)  ## Plant faults in eleven trainings as people write them (20 minutes)
	$(BIN)/python benchmarks/lab.py --jobs 2

example: $(STAMP)  ## Train the example anew: ledger.db.example and docs/example (10 minutes)
	$(BIN)/python scripts/make_example.py

release: $(STAMP)  ## Rehearse a release: VERSION=0.2.0; with KEEP=1, make it
	@test -n "$(VERSION)" || { echo "say which: make release VERSION=0.2.0" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group release
	$(BIN)/python scripts/release.py $(VERSION) $(if $(KEEP),--keep)

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) $(CORE) .pytest_cache .mypy_cache .ruff_cache .hypothesis
