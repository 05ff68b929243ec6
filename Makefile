# The front door. Every target works from a fresh clone with python3 (3.11+), make and the package index.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
EXTRAS := spark,grpc,console,redis,otel,delta,iceberg,dev

# Asked before anything is made: pip would only say that no set of versions fits, and leave the wrong .venv behind.
NEW_ENOUGH = import sys; who, remedy = sys.argv[1:]; sys.version_info >= (3, 11) or sys.exit("ContrailMQ needs \
Python 3.11 or newer, " + who + " is %d.%d.%d: " % tuple(sys.version_info[:3]) + remedy)

.DEFAULT_GOAL := help
.PHONY: help install compile test-compiled pure demo up bench test test-long interop check lint clean

help:           ## Show the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@if test -x $(BIN)/python; \
	then $(BIN)/python -c '$(NEW_ENOUGH)' "the Python in $(VENV)" "make clean removes it, then make install PYTHON=python3.11"; \
	else $(PYTHON) -c '$(NEW_ENOUGH)' "PYTHON=$(PYTHON)" "install one and name it, as in make install PYTHON=python3.11"; fi
	@echo "==> creating $(VENV) with contrailmq and every extra (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@$(BIN)/python -m compileall -q src
	@touch $@

install: $(STAMP) ## Create .venv with the package (editable) and every extra

# The modules of the hot paths. They are plain Python; compiled they take a third less time per message.
HOT := store/commit_log store/queue_state store/batches store/keys store/copying store/dispatch store/index store/index_file \
       store/queue_unit store/consume_queue store/consume_queue_table store/descriptors store/reading store/recent store/residency \
       store/mapped_file store/mapped_file_queue message/hashing message/batch message/property_text message/record broker/send broker/pull broker/handlers \
       broker/statistics broker/offsets broker/long_polling broker/node broker/topics wire/binary_header wire/frame \
       wire/connection store/get_result store/stats store/timer/records store/timer/due store/timer/intake \
       store/timer/timer_store store/putting store/flush store/waking store/clock store/store_clock

compile: $(STAMP) pure ## Compile the hot modules with mypyc, in place (needs a C compiler; `make pure` undoes it)
	@echo "==> mypyc: $(words $(HOT)) modules"
	@cd src && $(abspath $(BIN))/mypyc $(foreach m,$(HOT),contrailmq/$(m).py) > /dev/null && rm -rf build

test-compiled: compile ## What must pass compiled too, then plain Python again
	@echo "==> tests, compiled"
	@$(PYTEST) tests/message tests/store tests/wire tests/broker tests/testing; status=$$?; $(MAKE) --no-print-directory pure; exit $$status

pure:           ## Remove compiled modules: plain Python serves again
	@echo "==> plain Python: compiled modules removed"
	@find src -name '*.so' -delete; rm -rf src/build

demo: $(STAMP)  ## The main job, end to end, in a temporary directory
	@echo "==> demo"
	@$(BIN)/contrailmq demo

up: $(STAMP)    ## A NameServer and a broker in the foreground, until Ctrl-C
	@echo "==> contrailmq up"
	@$(BIN)/contrailmq up

bench: $(STAMP) ## What things cost here (the codec; `contrailmq bench --help` lists the others)
	@echo "==> benchmarks"
	@$(BIN)/contrailmq bench codec

# Two processes, for two cores. Each half prints its own summary; the second one's is held back until the first is done.
PYTEST := $(BIN)/python -m pytest -q -p no:randomly -m "not long and not interop"
HALF   := tests/spark tests/examples tests/client

test: $(STAMP)  ## Everything that must pass
	@echo "==> tests: $(HALF) beside all others"
	@log=$$(mktemp); $(PYTEST) $(HALF) > $$log 2>&1 & half=$$!; \
	$(PYTEST) tests $(HALF:%=--ignore=%); others=$$?; \
	wait $$half; half=$$?; echo "==> tests: $(HALF)"; cat $$log; rm -f $$log; \
	test $$others -eq 0 -a $$half -eq 0

test-long: $(STAMP) ## The full counts of the fault tests
	@echo "==> long tests"
	@CONTRAILMQ_LONG=1 $(BIN)/python -m pytest -q -m "not interop"

interop: $(STAMP) ## Against Apache's own programs (needs Java and Maven; skips with the reason where they are missing)
	@echo "==> interop"
	@$(BIN)/python -m pytest -q tests/interop

check: $(STAMP) ## Format, lint, strict types, tidy
	@echo "==> ruff format --check";     $(BIN)/ruff format --check src tests
	@echo "==> ruff check";              $(BIN)/ruff check src tests
	@echo "==> mypy --strict";           $(BIN)/mypy
	@echo "==> mypy, names in tests";    $(BIN)/mypy --config-file tests/mypy.ini tests
	@echo "==> tidy";                    $(BIN)/python -m pytest -q tests/test_tidy.py

lint: $(STAMP)  ## Format and fix what can be fixed
	@echo "==> ruff format, ruff check --fix"
	@$(BIN)/ruff format src tests
	@$(BIN)/ruff check --fix src tests

clean:          ## Remove caches and the virtual environment
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist
