# Needs only make and a Python of at least 3.11: every target makes its own virtual environment first.
# `make demo` and `make test` are the two commands that a newcomer needs; `make help` lists the rest.

VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?=
# How long `make soak` takes.
SECONDS ?= 1800
ARGS   ?=
# Tests wait for disks, servers and each other more than they compute.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
# The tests start hundreds of processes: compiling the library anew would take each as long as all the rest of its start.
unexport PYTHONDONTWRITEBYTECODE

# Installing takes pip as long as a good part of the tests: it looks at every file of every release, and compiles modules
# that nobody will import. uv takes a fraction of that, with pip's index and the certificates of the system. It comes from
# pip; where it does not, or finds no way to the packages, pip does the work.
PIP     := -m pip install --quiet --disable-pip-version-check --no-compile
UV      := UV_NATIVE_TLS=true UV_SYSTEM_CERTS=true UV_HTTP_TIMEOUT=20
install  = $(BIN)/python $(PIP) uv 2>/dev/null && $(UV) UV_DEFAULT_INDEX=$${PIP_INDEX_URL:-https://pypi.org/simple} \
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[$(1)]' 2>/dev/null || $(BIN)/python $(PIP) -e '.[$(1)]'

# What a stamp stands for: reinstall when the metadata changes, not when the sources do (the install is editable).
MADE        := $(VENV)/.made
DEMO_STAMP  := $(VENV)/.installed-cli
TEST_STAMP  := $(VENV)/.installed-test
BENCH_STAMP := $(VENV)/.installed-bench

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check coverage defects versions soak format bench clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_STAMP) ## Four processes sell a shop's orders, without and with Interlock (ARGS="--seed 7")
	@$(BIN)/interlock demo $(ARGS)

test: $(TEST_STAMP) ## All tests (ARGS="-k sqlite")
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: $(TEST_STAMP) ## Lint, format, types; continuous integration runs this and the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

defects: $(TEST_STAMP) ## Put defects into the library on purpose, and show which test catches each (a few minutes)
	PYTHONPATH=tests $(BIN)/python -m defects.run --write docs/defects.md $(ARGS)

versions: $(TEST_STAMP) ## The PostgreSQL tests on versions 13 to 18, fetched by npm (ARGS="13 17")
	$(BIN)/python tests/postgresql_versions.py $(ARGS)

coverage: $(TEST_STAMP) ## Which branches of commits, recovery and fencing the tests take (docs/coverage.md)
	$(BIN)/python tests/branches.py $(ARGS)

soak: $(TEST_STAMP) ## Histories with faults, simulation, fuzzing and kills at length (SECONDS=1800 ARGS="--json soak.json")
	PYTHONPATH=tests $(BIN)/python -m soaking.run --seconds $(SECONDS) $(ARGS)

format: $(TEST_STAMP) ## Bring the sources into the form that `make check` asks for
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH_STAMP) ## Measure against hand-written floors (ARGS="sqlite --peers")
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## Remove the virtual environment and everything that tools leave behind
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The newest Python that all dependencies are known to have wheels for comes first.
$(MADE):
	@for candidate in "$(PYTHON)" python3.13 python3.12 python3.11 python3.14 python3 python; do \
		[ -n "$$candidate" ] || continue; \
		"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		echo "making $(VENV) with $$candidate"; \
		"$$candidate" -m venv --clear $(VENV) && touch $@ && exit 0; \
		echo "'$$candidate -m venv' failed (on Debian and Ubuntu: apt install python3-venv)" >&2; \
	done; \
	echo "Interlock needs Python 3.11 or newer with venv and found none." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2; \
	exit 1

$(DEMO_STAMP): $(MADE) pyproject.toml
	@$(call install,cli)
	@touch $@

$(TEST_STAMP): $(MADE) pyproject.toml
	@$(call install,test)
	@touch $@ $(DEMO_STAMP)

$(BENCH_STAMP): $(MADE) pyproject.toml
	@$(call install,bench)
	@touch $@ $(DEMO_STAMP)
