#!/usr/bin/env bash
# Everything a change must pass: lint, format, types, tests. Arguments go to pytest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

prepare_development
cd "$here"
ruff check .
ruff format --check .
mypy
exec python -m pytest "$@"
