#!/usr/bin/env bash
# From nothing to a trained model: bash scripts/quickstart.sh [DIR]
# Makes .venv, creates a project in DIR (default: demo) unless it exists, and trains it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

project=${1:-demo}
if [ -e "$project" ] && [ ! -f "$project/train/main.py" ]; then
    fail "$project exists and is not an fdl project" "Name another folder: bash $0 my-project"
fi

prepare train

if [ ! -e "$project" ]; then
    mkdir -p "$(dirname "$project")"
    (cd "$(dirname "$project")" && fdl -q init "$(basename "$project")")
fi
cd "$project"
fdl train

cat <<END

The project is in $PWD. Change train/main.py and train again:

  . $here/.venv/bin/activate
  cd $PWD
  fdl train
END
