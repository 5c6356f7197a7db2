#!/usr/bin/env bash
# The lowest version of each dependency that pyproject.toml allows, installed and tested:
#   bash scripts/minimum_versions.sh [core|train|hf] [pytest arguments]
# `core` is fdl alone, `train` has the extras train and hf. `hf` has them too, and the packages that
# models are compared with; these need newer versions of numpy, tokenizers and huggingface_hub.
# Dependencies of dependencies are the newest ones. The lowest torch comes with some gigabytes of
# CUDA.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

which=${1:-train}
[ $# -eq 0 ] || shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=$(find_python)
"$python" -m venv "$folder/tools"
"$folder/tools/bin/pip" install --quiet --disable-pip-version-check uv
uv=("$folder/tools/bin/uv" pip install --quiet --python "$folder/lowest/bin/python")
"$python" -m venv --without-pip "$folder/lowest"

cd "$here"
case $which in
core)
    "${uv[@]}" --resolution lowest-direct --requirement pyproject.toml
    tests=(tests/fdl/manifest tests/fdl/args tests/fdl/schema tests/fdl/fetch tests/fdl/hardware
        tests/fdl/test_help.py tests/fdl/test_run.py tests/fdl/test_plan.py
        # They need torch, or read the programs of packages that only developers have.
        --ignore=tests/fdl/schema/static/test_real_scripts.py
        --deselect=tests/fdl/args/test_ddp_args.py::test_the_defaults_in_the_help_are_those_of_the_framework
        --deselect=tests/fdl/args/test_ddp_args.py::test_the_framework_understands_what_is_handed_to_it)
    ;;
train)
    "${uv[@]}" --resolution lowest-direct --requirement pyproject.toml --extra train --extra hf
    # The two folders compare with packages that only developers have.
    tests=(tests/flodl --ignore=tests/flodl/hf --ignore=tests/flodl/ecosystem
        --ignore=tests/flodl/test_not_loaded.py)
    ;;
hf)
    "${uv[@]}" --resolution lowest-direct --requirement pyproject.toml --extra train --extra hf
    "${uv[@]}" --requirement pyproject.toml --group dev "numpy>=2" "torch==$("$folder/lowest/bin/python" -c \
        'import torch; print(torch.__version__.partition("+")[0])')"
    tests=(tests/flodl/hf tests/flodl/ecosystem)
    ;;
*) fail "no such set: $which" "Type core, train or hf." ;;
esac
"${uv[@]}" --no-deps --editable .
"${uv[@]}" pytest pytest-timeout pytest-xdist hypothesis pyte jsonschema click
"$folder/tools/bin/uv" pip freeze --python "$folder/lowest/bin/python"
[ $# -gt 0 ] || set -- -q
PATH="$folder/lowest/bin:$PATH" "$folder/lowest/bin/python" -m pytest -p no:cacheprovider "$@" "${tests[@]}"
