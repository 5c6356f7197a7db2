#!/usr/bin/env bash
# The slow suite in parts of ten minutes: bash scripts/slow.sh [--stale | --parts N | PATH…]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

prepare_development
cd "$here"
exec python scripts/slow_tests.py "$@"
