#!/usr/bin/env bash
# Set up, make the sample corpus, and run it in many ways: simulated ranks; 16 processes that are saved and resumed on other
# numbers of ranks; TorchTitan's own Trainer, which leaves loss_curves.png. The digests of all steps must agree. Arguments go
# to scripts/demo.py.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
PATH=${VIRTUAL_ENV:-$PWD/.venv}/bin:$PATH
[[ -e sample_data/recipe.toml ]] || python scripts/make_sample_data.py --out sample_data
python scripts/demo.py --data sample_data "$@"
python scripts/elastic_demo.py --data sample_data --quick
OMP_NUM_THREADS=1 python scripts/torchtitan_demo.py
