#!/usr/bin/env bash
# Set up, make the sample corpus, and run it on 4, 2 and 3 simulated ranks: the digests of all steps must agree.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
PATH=${VIRTUAL_ENV:-$PWD/.venv}/bin:$PATH
[[ -e sample_data/recipe.toml ]] || python scripts/make_sample_data.py --out sample_data
python scripts/demo.py --data sample_data "$@"
