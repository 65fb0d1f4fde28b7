#!/usr/bin/env bash
# Train Qwen3.5 0.8B on the sample corpus with TorchTitan, on all GPUs of this machine. Arguments go to TorchTitan.
#
#   scripts/train_torchtitan.sh --training.steps 20
#   NGPU=4 CONFIG=qwen35_sample scripts/train_torchtitan.sh --dataloader.recipe my/recipe.toml --hf_assets_path my/tokenizer
#
# To go on on another number of GPUs, run it again with another NGPU: it finds its last checkpoint in outputs/.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=${VIRTUAL_ENV:-$PWD/.venv}/bin:$PATH
gpus=${NGPU:-$(python -c 'import torch; print(torch.cuda.device_count())')}
if [[ $gpus == 0 ]]; then
    echo "train_torchtitan: torch sees no GPU here; scripts/torchtitan_demo.py trains on a CPU" >&2
    exit 1
fi
[[ -e sample_data/recipe.toml ]] || python scripts/make_sample_data.py --out sample_data
export TOKENIZERS_PARALLELISM=false
exec torchrun --nproc_per_node="$gpus" --local-ranks-filter 0 --role rank --tee 3 -m torchtitan.train \
    --module zephon_vl.torchtitan --config "${CONFIG:-qwen35_sample}" "$@"
