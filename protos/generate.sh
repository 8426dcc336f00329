#!/usr/bin/env bash
# Lints the contract and writes its Python code beside it. Run through `make protos`.
set -euo pipefail
cd "$(dirname "$0")"
bin="${BIN:-$PWD/../.venv/bin}"
"$bin/buf" lint
"$bin/python" -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --pyi_out=. rlctl/v1/*.proto
