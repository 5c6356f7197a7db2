#!/usr/bin/env bash
# From nothing to a trained model: bash scripts/quickstart.sh [DIR]
# Makes .venv, scaffolds a project in DIR (default: demo) unless it is there, and trains it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

project=${1:-demo}
if [ -e "$project" ] && [ ! -f "$project/train/main.py" ]; then
    fail "$project exists and is no project of fdl" "Name another folder: bash $0 my-project"
fi

prepare train

if [ ! -e "$project" ]; then
    mkdir -p "$(dirname "$project")"
    (cd "$(dirname "$project")" && fdl init "$(basename "$project")" --native)
fi
cd "$project"
# -y: the manifests of a new project are copies of its own examples.
fdl -y train

cat <<END

The project is in $PWD. Change train/main.py and train again:

  . $here/.venv/bin/activate
  cd $PWD
  fdl train
END
