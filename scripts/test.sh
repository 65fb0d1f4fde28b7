#!/usr/bin/env bash
# Set up, then run every check and test. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh dev
PATH=${VIRTUAL_ENV:-$PWD/.venv}/bin:$PATH
code=(zephon_vl operators pipelines bench scripts tests)
ruff check "${code[@]}"
ruff format --check "${code[@]}"
scripts/typecheck.sh
python -m pytest -n 2 --dist loadfile "$@"
