#!/usr/bin/env bash
# Train the tiny VLM on one GPU, save, resume, and compare the digests with those of a CPU-only loader. Where there is no
# GPU it says so and ends with status 0. --on-cpu runs the same without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=${VIRTUAL_ENV:-$PWD/.venv}/bin:$PATH
export PYTHONPATH=scripts${PYTHONPATH:+:$PYTHONPATH} TOKENIZERS_PARALLELISM=false
exec python -m torchtitan_demo.gpu "$@"
