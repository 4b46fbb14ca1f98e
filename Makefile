# Two commands do all the set-up on a machine that has Python 3.11 or newer and make:
#
#   make demo    install into .venv, then run tarry's main job on the embedded log over real data
#   make test    install into .venv, then run the whole suite (the core suite on asyncio and on trio)
#
# Everything installs at the versions of constraints.txt. A stamp per set of packages keeps repeated calls quick.
# PYTHON=/path/to/python chooses the interpreter; ARGS="..." goes to pytest, the bench or the tool of the target.

VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
ARGS :=

PYTHON_CANDIDATES = $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)
PIP_INSTALL = $(PY) -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt
SOURCES = $(wildcard src tests examples bench)
# The shipped packages that the checkers must see; a part that needs one more adds it here.
LINT_EXTRAS := cli,kafka
EVERY_EXTRA := server,cli,kafka,postgres,zstd,prometheus,otel,uvloop

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test lint lint-ruff lint-format lint-pyright lint-mypy lint-layers
.PHONY: bench docs trace mutate simulate soak format api pins clean distclean

help:
	@sed -n '3,4p' Makefile | sed 's/^#   //'
	@echo "also: lint trace bench docs mutate simulate soak format api pins clean distclean"

demo: $(STAMPS)/demo
	$(VENV)/bin/tarry demo $(ARGS)

# One of the three processes only waits for the simulated histories, which run in processes of their own.
test: $(STAMPS)/test
	$(PY) -m pytest --numprocesses=3 --dist=loadfile $(ARGS)

# One target per checker, so that `make -k lint` shows what all of them say. The layer test is part of the suite too.
lint: lint-ruff lint-format lint-pyright lint-mypy lint-layers

lint-ruff: $(STAMPS)/lint
	$(PY) -m ruff check $(SOURCES)

lint-format: $(STAMPS)/lint
	$(PY) -m ruff format --check $(SOURCES)

lint-pyright: $(STAMPS)/lint
	$(PY) -m pyright $(SOURCES)

lint-mypy: $(STAMPS)/lint
	$(PY) -m mypy $(SOURCES)

lint-layers: $(STAMPS)/lint
	$(PY) -m pytest -q tests/meta/test_layers.py

bench: $(STAMPS)/bench
	$(PY) -m bench $(ARGS)

# A broken link or anchor fails the build.
docs: $(STAMPS)/docs
	$(VENV)/bin/zensical build --clean --strict

# Which built rules no test cites; `make trace ARGS=--list` prints rule by rule.
trace: $(PY)
	@$(PY) -m tests.tools.trace $(ARGS)

mutate: $(STAMPS)/test
	$(PY) -m tests.tools.mutate $(ARGS)

# SEED=n: one simulated history, event by event. SECONDS=s or SEEDS=n: many of them, a process per core.
simulate: $(STAMPS)/test
	$(PY) -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) \
	    $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) $(if $(BACKEND),--backend $(BACKEND))

# Full length and many rounds: kills, an hour of load, 5,000 examples a property.
soak: $(STAMPS)/test
	$(PY) -m pytest -m soak --timeout=0 --hypothesis-profile=deep $(ARGS)

format: $(STAMPS)/lint
	$(PY) -m ruff check --fix $(SOURCES)
	$(PY) -m ruff format $(SOURCES)

# Take the public names as they are now into the snapshot that tests/meta/test_public_api.py guards.
api: $(STAMPS)/test
	$(PY) -m tests.tools.public_api --update

# Write constraints.txt anew from the newest versions that pyproject.toml allows; use an early release of Python 3.11
# (make distclean pins PYTHON=...), since some packages need a later one than others.
pins: $(PY)
	rm -rf build/pins
	$(PY) -m venv build/pins
	build/pins/bin/python -m pip install --quiet --upgrade pip setuptools
	build/pins/bin/python -m pip install --quiet --editable '.[$(EVERY_EXTRA)]' --group dev hatchling editables
	sed -n '/^#/p' constraints.txt > build/constraints.txt
	build/pins/bin/python -m pip freeze --all --exclude-editable >> build/constraints.txt
	mv build/constraints.txt constraints.txt

clean:
	rm -rf build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

# --- set-up ---

$(PY):
	@for candidate in $(PYTHON_CANDIDATES); do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "creating $(VENV) with $$("$$candidate" --version)"; \
	        "$$candidate" -m venv --clear $(VENV) && exit 0; \
	        rm -rf $(VENV); \
	        echo "$$candidate cannot make a venv; its package for that is often called python3-venv" >&2; \
	        exit 1; \
	    fi; \
	done; \
	echo "tarry needs Python 3.11 or newer; none of these is: $(PYTHON_CANDIDATES)" >&2; \
	echo "install one, or name it: make PYTHON=/path/to/python ..." >&2; \
	exit 1

# pip itself first: older ones know neither dependency groups nor build constraints.
$(STAMPS)/pip: $(PY) constraints.txt
	@echo "installing into $(VENV); the first time takes a minute"
	@$(PY) -m pip install --quiet --constraint constraints.txt pip
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(STAMPS)/pip pyproject.toml
	@$(PIP_INSTALL) --editable '.[cli]'
	@touch $@

$(STAMPS)/test: $(STAMPS)/pip pyproject.toml
	@$(PIP_INSTALL) --editable '.[cli]' --group test
	@touch $@

$(STAMPS)/lint: $(STAMPS)/pip pyproject.toml
	@$(PIP_INSTALL) --editable '.[$(LINT_EXTRAS)]' --group test --group lint --group bench
	@touch $@

$(STAMPS)/bench: $(STAMPS)/pip pyproject.toml
	@$(PIP_INSTALL) --editable '.[cli]' --group bench
	@touch $@

$(STAMPS)/docs: $(STAMPS)/pip pyproject.toml
	@$(PIP_INSTALL) --group docs
	@touch $@
