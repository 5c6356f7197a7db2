#!/usr/bin/env bash
# Build the documentation site in site/, or stop at the first broken link: bash scripts/docs.sh
# Then `fdl docs` serves it. Arguments go to `mkdocs build`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

prepare_docs
cd "$here"
python scripts/reference.py --check
export NO_MKDOCS_2_WARNING=1
exec python -m mkdocs build --strict --clean "$@"
