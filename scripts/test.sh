#!/usr/bin/env bash
# The tests, from nothing: bash scripts/test.sh [pytest arguments]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

prepare_development
cd "$here"
# Thousands of tests start fdl: it is compiled once and not each time.
unset PYTHONDONTWRITEBYTECODE
exec python -m pytest "$@"
