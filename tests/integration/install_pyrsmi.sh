#!/bin/sh
# install_pyrsmi.sh [PYTHON]: put pyrsmi 0.2.0 where the tests look for it.
# Not into the virtual environment: 0.2.0 loads librocm_smi64 and 1.x loads libamd_smi, so that the two cannot share
# one, and an operator may have the other.
set -eu
cd "$(dirname "$0")/../.."
target=.cache/pyrsmi-0.2.0
[ -f "$target/pyrsmi/rocml.py" ] && exit 0
"${1:-.venv/bin/python}" -m pip install --quiet --no-deps --target "$target" pyrsmi==0.2.0
