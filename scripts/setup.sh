#!/usr/bin/env bash
# Set up this clone: a virtual environment with the project, and pillow-simd where this machine can build it.
#
#   scripts/setup.sh          what running needs
#   scripts/setup.sh dev      what the tests need as well
#
# Uses the active virtual environment, else .venv (made if missing). Does nothing twice.
set -euo pipefail
cd "$(dirname "$0")/.."

extras="jpeg,parquet,compressed,torchtitan,demo"
[[ ${1:-} == dev ]] && extras="$extras,dev"

say() { if [[ -t 1 ]]; then printf '\033[1m%s\033[0m\n' "$*"; else printf '%s\n' "$*"; fi; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

[[ $(uname -s) == Linux ]] || fail "this library runs on Linux; this is $(uname -s)"
if [[ -n ${VIRTUAL_ENV:-} ]]; then
    base=$VIRTUAL_ENV/bin/python
else
    base=${PYTHON:-python3}
fi
command -v "$base" >/dev/null || fail "$base is not there: install Python 3.11 or newer, or set PYTHON to one"
"$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed; $base is $("$base" --version 2>&1). Set PYTHON to a newer one"

if [[ -z ${VIRTUAL_ENV:-} ]]; then
    VIRTUAL_ENV=$PWD/.venv
    # A venv that was made without pip (Debian's Python without python3-venv) is no use: made again.
    if ! "$VIRTUAL_ENV/bin/python" -m pip --version >/dev/null 2>&1; then
        say "making .venv"
        "$base" -m venv --clear "$VIRTUAL_ENV" ||
            fail "$base cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"
    fi
fi
python=$VIRTUAL_ENV/bin/python
"$python" -m pip --version >/dev/null 2>&1 || fail "$VIRTUAL_ENV has no pip: run $python -m ensurepip"
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }

# The marks say for which dependencies and extras the environment was set up; a change sets it up again.
sum() { cksum | cut -d' ' -f1; }
mark_of() { echo "$VIRTUAL_ENV/.zephon-vl-$(printf '%s %s %s' "$1" "$PWD" "$(cksum <pyproject.toml)" | sum)"; }
mark=$(mark_of "$extras")
plain=$VIRTUAL_ENV/.zephon-vl-plain-pillow

install_project() {
    say "installing zephon-vl[$extras] in $VIRTUAL_ENV; the first time this takes minutes"
    # torch first and by itself, so that no other package chooses its build; Pillow first, so that pillow-simd, which
    # replaces its files, has the version that it was made from.
    pip install "torch>=2.10,<2.14" "pillow==12.1.1"
    pip install --editable ".[$extras]"
    touch "$mark"
}

# What building pillow-simd needs and this machine lacks, in words; nothing where all is there.
missing_for_build() {
    command -v cc >/dev/null || { echo "a C compiler"; return; }
    local include header
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    for header in Python.h jpeglib.h zlib.h; do
        printf '#include <stdio.h>\n#include <%s>\n' "$header" | cc -E -I"$include" - >/dev/null 2>&1 || echo "$header"
    done
}

install_headers() {
    local packages=(libjpeg-dev zlib1g-dev libwebp-dev libtiff-dev)
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 0
    dpkg -s "${packages[@]}" >/dev/null 2>&1 && return
    say "installing the headers ${packages[*]}"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "${packages[@]}"; } >/dev/null 2>&1 ||
        say "apt-get could not install them"
}

build_pillow_simd() {
    local missing compiler compilers=(cc)
    install_headers
    missing=$(missing_for_build | paste -sd ' ')
    if [[ -n $missing ]]; then
        say "pillow-simd is not built, Pillow serves. Missing: $missing" \
            "(on Debian and Ubuntu: apt-get install gcc python3-dev libjpeg-dev zlib1g-dev libwebp-dev libtiff-dev)"
        return
    fi
    grep -qw avx2 /proc/cpuinfo && compilers=("cc -mavx2" cc)
    mkdir -p build
    for compiler in "${compilers[@]}"; do
        say "building pillow-simd with $compiler; this takes a minute"
        # The compiler's name carries the flag, since CFLAGS would drop -O3; without --no-cache-dir, a wheel built
        # before for another processor would be taken. A failure leaves Pillow as it is.
        CC=$compiler pip install --no-cache-dir --no-binary pillow-simd --force-reinstall --no-deps \
            pillow-simd==12.1.1.post0 >build/pillow-simd.log 2>&1 && return
    done
    touch "$plain"
    say "pillow-simd could not be built, Pillow serves. Why: build/pillow-simd.log; to try again: rm $plain"
}

simd_is_active() { "$python" -c 'import PIL, sys; sys.exit(".post" not in PIL.__version__)'; }

# An environment that is set up for the tests has all that running needs.
[[ -e $mark || -e $(mark_of "${extras%,dev},dev") ]] || install_project
[[ -e $plain || $(uname -m) != x86_64 ]] || simd_is_active || build_pillow_simd
"$python" - <<'PYTHON'
import PIL
from PIL import features

name = "pillow-simd" if ".post" in PIL.__version__ else "Pillow"
webp = "with" if features.check("webp") else "without"
print(f"ready; images are read by {name} {PIL.__version__}, {webp} WebP")
PYTHON
