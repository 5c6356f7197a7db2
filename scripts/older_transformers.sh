#!/usr/bin/env bash
# The forward passes of all models, compared with the oldest transformers that flodl supports.
# The packages go into a folder of their own, so the environment of development stays as it is.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

prepare_development
cd "$here"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Only what differs: the environment has the rest of what transformers needs.
python -m pip install --quiet --no-warn-conflicts --no-compile --no-deps --target "$folder" \
    "transformers==4.57.6" "huggingface_hub==0.36.2" "tokenizers==0.22.2"
# This release gives one layer of the old DeBERTa head another width when embeddings are narrower.
PYTHONPATH="$folder" python -m pytest -q -W ignore::DeprecationWarning \
    tests/flodl/hf/models/test_forward.py -k "every_cell or decoders" \
    --deselect "tests/flodl/hf/models/test_forward.py::test_both_decoders_of_deberta[False-32]"
