#!/usr/bin/env bash
# The tests, from nothing: bash scripts/test.sh [pytest arguments]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

prepare_development
cd "$here"
exec python -m pytest "$@"
