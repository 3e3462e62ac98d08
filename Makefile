# Every target makes .venv first where it is missing, or older than what it is made from.

# One thread for each numeric library: the tests run many processes beside each other.
export OMP_NUM_THREADS := 1

# Every pip call keeps to the pinned versions, also in the environment of its own in which it builds this
# package: there pip reads the first name before 25.3, the second from then on.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt

# The tests start hundreds of processes: what one has compiled, the others read.
unexport PYTHONDONTWRITEBYTECODE

# Tests run beside each other; those that share what there is once run one after the other (tests/conftest.py). The
# quick tests share nothing of the kind: a process gets half of them at once rather than one at a time, and the directory
# of a test that passed is removed, which makes it quicker to find a name for the next one.
PARALLEL := -n auto --dist loadgroup
PARALLEL_FAST := -n auto --dist worksteal -o tmp_path_retention_policy=failed

SOURCES := setup.cfg constraints.txt pyproject.toml
STAMP := .venv/.made
# The demo needs less than the tests: it takes .venv as it is where that has been made for them.
DEMO := $(if $(wildcard $(STAMP)),$(STAMP),.venv/.demo)
FAST := not slow and not long and not spark and not gpu and not notebook and not browser and not example and not e2e and not conformance

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-long test-platforms test-all test-versions lint bench docs clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(DEMO) ## run examples/quickstart.py
	.venv/bin/python examples/quickstart.py

test: $(STAMP) ## run the tests of all parts, with real Spark (those that need a GPU are skipped where there is none)
	.venv/bin/python -m pytest $(PARALLEL)

test-all: test-long test-platforms ## run what make test leaves out: test-long, then test-platforms

test-long: $(STAMP) ## run all examples, all programs of the docs, all random examples, and the longest faults
	HYPOTHESIS_PROFILE=thorough .venv/bin/python -m pytest $(PARALLEL) -m "(long or thorough) and not platform"

test-fast: $(STAMP) ## run the quick tests: no Java, notebook kernel, browser, whole search or suite of an optimizer
	.venv/bin/python -m pytest $(PARALLEL_FAST) -m "$(FAST)"

test-platforms: $(STAMP) ## run a search in every setting of Spark that users have, one after the other (14 minutes)
	.venv/bin/python -m pytest -m platform tests/maggy_like/spark/test_platforms.py

test-versions: ## run the fast tests that need no torch with Python 3.11 to 3.13, the lowest and the newest dependencies
	python3 tests/versions.py

lint: $(STAMP) ## check style, types and the import law
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: $(STAMP) ## run the quick benchmarks on the way of a trial, and say what the last change made slower
	.venv/bin/python -m benchmarks.guard

docs: $(STAMP) ## build the site of the docs in build/docs; a warning is an error
	.venv/bin/mkdocs build

clean: ## remove .venv, caches and build results
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* build dist *.egg-info

# $(1): the extras. What pip downloads and installs is printed line by line: torch alone is 200 MB.
define install
	@python=; \
	for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	    if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "No Python 3.11 or newer on the PATH (python3 is: $$(python3 --version 2>&1)); install one." >&2; exit 1; \
	fi; \
	echo "Making .venv with $$($$python --version)."; \
	$$python -m venv .venv
	@echo "Installing maggy_like[$(1)] into .venv, with the versions of constraints.txt:"
	.venv/bin/python -m pip install --disable-pip-version-check --config-settings editable_mode=compat -e '.[$(1)]'
	@echo ".venv is ready."
endef

$(STAMP): $(SOURCES)
	$(call install,dev)
	@touch $@

.venv/.demo: $(SOURCES)
	$(call install,demo)
	@touch $@
