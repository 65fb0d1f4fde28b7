#!/usr/bin/env bash
# Pyright over the tree as it installs: operators/ and pipelines/ stand at the top of the repository but are installed
# inside the package, a mapping that pyright cannot be told. So it is shown a folder of links.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
tree=build/typecheck
rm -rf "$tree"
mkdir -p "$tree/zephon_vl"
for path in zephon_vl/*; do
    [[ $path == *__pycache__ ]] || ln -s "$root/$path" "$tree/zephon_vl/"
done
ln -s "$root/operators" "$root/pipelines" "$tree/zephon_vl/"
ln -s "$root/scripts" "$root/bench" "$tree/"
cat > "$tree/pyrightconfig.json" <<'EOF'
{ "include": ["zephon_vl", "scripts", "bench"], "extraPaths": ["scripts"], "pythonVersion": "3.11", "typeCheckingMode": "standard" }
EOF
exec python -m pyright -p "$tree" "$@"
