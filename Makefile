# The front door. Every target works from a fresh clone with python3 (3.11+), make and the package index.
# Without PYTHON=..., make install takes the first Python on PATH that was built with optimisations, or python3.
PYTHON ?=
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CLASSES := $(VENV)/.spark-classes
EXTRAS := console,spark,redis,otel,delta,iceberg,avro,protobuf,docs,dev

# Asked before anything is made: pip would only say that no set of versions fits, and leave the wrong .venv behind.
NEW_ENOUGH = import sys; who, remedy = sys.argv[1:]; sys.version_info >= (3, 11) or sys.exit("ContrailMQ needs \
Python 3.11 or newer, " + who + " is %d.%d.%d: " % tuple(sys.version_info[:3]) + remedy)

.DEFAULT_GOAL := help
.PHONY: help install compile pure wheels simulate test-plain demo up docs screenshots bench test test-long interop check types test-types tidy lint clean

help:           ## Show the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@if test -x $(BIN)/python; \
	then $(BIN)/python -c '$(NEW_ENOUGH)' "the Python in $(VENV)" "make clean removes it, then make install PYTHON=python3.11"; \
	else python=$(or $(PYTHON),$$(python3 tools/best_python.py)) && \
	$$python -c '$(NEW_ENOUGH)' "PYTHON=$$python" "install one and name it, as in make install PYTHON=python3.11" && \
	echo "==> creating $(VENV) with contrailmq and every extra (once; a few minutes)" && $$python -m venv $(VENV); fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@$(BIN)/python -m compileall -q src
	@$(BIN)/contrailmq --version
	@touch $@

install: $(STAMP) ## Create .venv with the package (editable) and every extra

# make install has compiled them. After an edit the sources run, with a warning, until they are compiled again.
compile: $(STAMP) ## Compile the hot modules of tools/hot-modules.txt again, in place (needs a C compiler)
	@echo "==> mypyc, and a C compiler for each core"
	@$(BIN)/python tools/compile_hot.py

pure: $(STAMP)  ## Remove compiled modules: plain Python serves again
	@$(BIN)/python tools/compile_hot.py --remove
	@echo "==> plain Python: compiled modules removed"

wheels: $(STAMP) ## A compiled wheel and a pure one in dist/, each tried in an empty environment
	@echo "==> wheels"
	@$(BIN)/python tools/wheels.py dist

demo: $(STAMP)  ## The main job, end to end, in a temporary directory
	@echo "==> demo"
	@$(BIN)/contrailmq demo

up: $(STAMP)    ## A NameServer and a broker in the foreground, until Ctrl-C
	@echo "==> contrailmq up"
	@$(BIN)/contrailmq up

docs: $(STAMP)  ## The documentation as a site, in build/site
	@echo "==> docs"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(STAMP) ## What things cost here (the codec; `python -m bench --help` lists the others)
	@echo "==> benchmarks"
	@$(BIN)/python -m bench codec

screenshots: $(STAMP) ## The console's pictures for the documents, taken by its tests (needs chromium)
	@echo "==> screenshots"
	@CONTRAILMQ_SCREENSHOTS=docs/images $(BIN)/python -m pytest -q -p no:randomly tests/console/test_console_browser.py

# One process more than there are cores, since some tests wait; the tests of a file stay together, in the order of
# tests/conftest.py. A process that dies ends the run with a failure: with another in its place the run would never end.
CORES   := $(shell nproc 2> /dev/null || echo 2)
JOBS    ?= $(shell expr $(CORES) + 1)
PYTEST  := $(BIN)/python -m pytest -q -p no:randomly
AT_ONCE  = -n $(JOBS) --dist loadgroup --no-loadscope-reorder --max-worker-restart=0
PLAIN   := CONTRAILMQ_PURE=1 CONTRAILMQ_EXPECT=plain
# The rooms with compiled modules.
HOT     := tests/message tests/store tests/wire tests/broker

# What the JVMs of the Spark tests load; made again when a version of Spark may have changed.
$(CLASSES): constraints.txt | $(STAMP)
	@echo "==> classes of Spark (once; half a minute)"
	@$(BIN)/python tools/spark_classes.py $(VENV)
	@touch $@

# The simulation exchanges doors that compiled modules do not go through: it runs on the plain sources, whatever is installed.
test: $(STAMP) $(CLASSES) ## Everything that must pass, on the modules as make install left them; the simulation on the plain ones
	@echo "==> tests"
	@$(PYTEST) $(AT_ONCE) -m "not long and not interop" --ignore=tests/simulation tests
	@echo "==> tests of the simulation"
	@$(PLAIN) $(PYTEST) $(AT_ONCE) -m "not long" tests/simulation

test-plain: $(STAMP) ## The tests of the rooms with compiled modules on the plain sources, without kills and whole servers
	@echo "==> tests, plain Python"
	@$(PLAIN) CONTRAILMQ_SECOND_RUN=1 $(PYTEST) $(AT_ONCE) -m "not long and not interop and not kills and not servers" $(HOT)

SEEDS   ?= 10
FIRST   ?= 1
MINUTES ?= 10
SAVE    ?=
# As many at once as there are cores, or as JOBS says.
SIMULATE = PYTHONPATH=tests CONTRAILMQ_PURE=1 PYTHONHASHSEED=0 $(BIN)/python -m simulation.runs \
	--jobs $(if $(filter command environment,$(origin JOBS)),$(JOBS),$(CORES))
simulate: $(STAMP) ## Whole clusters under faults on virtual time: SEEDS=10 seeds of MINUTES=10, added to the file SAVE
	$(if $(SEED),$(error SEED=$(SEED) is not known here: FIRST=$(SEED) SEEDS=1 runs that seed))
	@echo "==> simulation"
	@$(SIMULATE) --first $(FIRST) --seeds $(SEEDS) --minutes $(MINUTES) $(if $(SAVE),--save $(SAVE) --resume)

LONG_SEEDS ?= 20000
test-long: $(STAMP) ## The full counts of the fault tests, the benchmarks, what is measured in CPU time, and LONG_SEEDS=20000 seeds
	@echo "==> long tests"
	@CONTRAILMQ_LONG=1 $(BIN)/python -m pytest -q -m "not interop" --ignore=tests/simulation
	@$(PLAIN) CONTRAILMQ_LONG=1 $(PYTEST) $(AT_ONCE) tests/simulation
	@echo "==> simulation of $(LONG_SEEDS) seeds; interrupted, it goes on where it was (build/simulation.jsonl)"
	@mkdir -p build
	@$(SIMULATE) --seeds $(LONG_SEEDS) --minutes $(MINUTES) --save build/simulation.jsonl --resume --brief

# Apache's programs wait most of the time, for a retry or for a slave's minute. INTEROP names some of the files.
INTEROP ?= tests/interop
interop: JOBS = $(shell expr $(CORES) + $(CORES))
interop: $(STAMP) ## Against Apache's own programs, and write docs/compatibility.md (needs Java and Maven; else skips with the reason)
	@echo "==> interop"
	@$(PYTEST) -p interop_page $(AT_ONCE) $(INTEROP)

check: $(STAMP) ## Format, lint, strict types, tidy
	@echo "==> ruff format --check";     $(BIN)/ruff format --check src tests tools bench
	@echo "==> ruff check";              $(BIN)/ruff check src tests tools bench
	@echo "==> blocking clients";        $(BIN)/python tools/blocking_clients.py --check
	@echo "==> page of admin";           $(BIN)/python tools/admin_page.py --check
	@$(MAKE) --no-print-directory --jobs 2 types test-types tidy

# Two at once: each takes one core for half a minute in a fresh clone.
types:
	@echo "==> mypy --strict";           $(BIN)/mypy && $(BIN)/mypy -p bench && $(BIN)/mypy tools/compile_hot.py tools/wheels.py tools/blocking_clients.py

test-types:
	@echo "==> mypy, names in tests";    $(BIN)/mypy --config-file tests/mypy.ini tests

tidy:
	@echo "==> tidy";                    $(BIN)/python -m pytest -q -p no:cacheprovider tests/test_tidy.py

lint: $(STAMP)  ## Format and fix what can be fixed
	@echo "==> ruff format, ruff check --fix"
	@$(BIN)/python tools/blocking_clients.py
	@$(BIN)/ruff format src tests tools bench
	@$(BIN)/ruff check --fix src tests tools bench

clean:          ## Remove caches and the virtual environment
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist
