#!/usr/bin/env bash
# Set up this clone: a virtual environment with the project, and pillow-simd where this machine can build it.
#
#   scripts/setup.sh          what running needs
#   scripts/setup.sh dev      what the tests need as well
#
# Uses the active virtual environment, else .venv (made if missing). Does nothing twice.
set -euo pipefail
cd "$(dirname "$0")/.."

extras="jpeg,parquet,compressed"
[[ ${1:-} == dev ]] && extras="$extras,dev"

say() { printf '\033[1m%s\033[0m\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

[[ $(uname -s) == Linux ]] || fail "this library runs on Linux; this is $(uname -s)"
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed; $python is $("$python" --version 2>&1). Set PYTHON to a newer one"

if [[ -z ${VIRTUAL_ENV:-} ]]; then
    [[ -x .venv/bin/python ]] || { say "making .venv"; "$python" -m venv .venv; }
    VIRTUAL_ENV=$PWD/.venv
fi
python=$VIRTUAL_ENV/bin/python
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }

# The mark says for which dependencies and extras the environment was set up; a change sets it up again.
mark=$VIRTUAL_ENV/.zephon-vl-$(printf '%s %s %s' "$extras" "$PWD" "$(cksum <pyproject.toml)" | cksum | cut -d' ' -f1)

install_project() {
    say "installing zephon-vl[$extras]"
    # torch first and by itself, so that no other package chooses its build; Pillow first, so that pillow-simd, which
    # replaces its files, has the version that it was made from. See the order in build_pillow_simd.
    pip install "torch>=2.10,<2.14" "pillow==12.1.1"
    pip install --editable ".[$extras]"
}

build_pillow_simd() {
    "$python" -c 'import PIL, sys; sys.exit(".post" not in PIL.__version__)' && return
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        headers=(libjpeg-dev zlib1g-dev libwebp-dev libtiff-dev)
        dpkg -s "${headers[@]}" >/dev/null 2>&1 ||
            { apt-get -qq update && apt-get -qq install -y "${headers[@]}"; } >/dev/null 2>&1 ||
            say "the headers of ${headers[*]} could not be installed"
    fi
    compiler=cc
    grep -qw avx2 /proc/cpuinfo && compiler="cc -mavx2"
    say "building pillow-simd ($compiler); this takes a minute"
    # The compiler's name carries the flag, since CFLAGS would drop -O3; without --no-cache-dir, a wheel built before
    # for another processor would be taken. A failure leaves Pillow as it is.
    CC=$compiler pip install --no-cache-dir --no-binary pillow-simd --force-reinstall --no-deps \
        pillow-simd==12.1.1.post0 >/dev/null 2>&1 ||
        say "pillow-simd could not be built: it needs a C compiler and the headers of libjpeg and zlib. Pillow serves"
}

if [[ ! -e $mark ]]; then
    install_project
    build_pillow_simd
    touch "$mark"
fi
"$python" - <<'EOF'
import PIL
from PIL import features
simd = ".post" in PIL.__version__
print(f"images: {'pillow-simd' if simd else 'Pillow'} {PIL.__version__}, WebP {'yes' if features.check('webp') else 'no'}")
EOF
