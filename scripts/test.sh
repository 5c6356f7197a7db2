#!/usr/bin/env bash
# The tests, from nothing: bash scripts/test.sh [pytest arguments]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

prepare_development
cd "$here"
# Several processes run the tests. Each would compile all of them, so that is done before.
if [ $# -eq 0 ] && [ ! -d tests/__pycache__ ]; then
    collect() { python -m pytest --collect-only -qq "$@" >/dev/null 2>&1 || true; }
    collect tests/flodl tests/benchmarks &
    collect tests/fdl tests/browser tests/journeys tests/test_*.py
    wait
fi
exec python -m pytest "$@"
