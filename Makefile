# make help lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
BUILD ?= cpu
VENV := .venv
BIN := $(VENV)/bin
# uv does not read pip's find-links; a CPU build of torch may lie there.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: help setup quickstart test test-optional bench lint protos docs lock clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## install everything into .venv (BUILD=cpu or gpu)

$(VENV)/.ready: deploy/locks/$(BUILD).txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'uv>=0.9'
	@echo "installing the locked packages ($(BUILD)) ..."
	@$(BIN)/uv pip install -q -p $(BIN)/python --no-deps -r deploy/locks/$(BUILD).txt 2>/tmp/rlctl-setup.$$$$ \
	  || $(BIN)/uv pip install -q -p $(BIN)/python --no-deps -r deploy/locks/$(BUILD).txt \
	       --extra-index-url $(TORCH_CPU_INDEX) --index-strategy unsafe-best-match \
	  || { cat /tmp/rlctl-setup.$$$$; exit 1; }
	@$(BIN)/uv pip install -q -p $(BIN)/python --no-deps -e .
	@touch $@
