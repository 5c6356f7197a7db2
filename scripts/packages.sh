#!/usr/bin/env bash
# What a release would publish, built and tried: bash scripts/packages.sh [FOLDER]
# It builds wheel and sdist twice and compares the bytes. It checks what an index would show. It
# installs the wheel in an empty environment of each Python that is found, and checks the types
# of a program that uses flodl. FOLDER (default: dist) receives the packages.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$here/scripts/venv.sh"

destination=${1:-$here/dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=$(find_python)

say() { printf '\n== %s\n' "$1"; }

# Paths of interpreters of one version: those of PATH, of pyenv and of uv.
interpreters() {
    local candidate
    for candidate in "python$1" "$HOME"/.pyenv/versions/"$1".*/bin/python \
        "$HOME"/.local/share/uv/python/cpython-"$1".*/bin/python; do
        "$candidate" -c 'import sys, venv; print(sys.executable)' 2>/dev/null || true
    done
}

tools() {
    "$python" -m venv "$work/tools"
    "$work/tools/bin/pip" install --quiet --disable-pip-version-check \
        build hatchling twine mypy 'pyright[nodejs]'
}

# The files that git knows, in another folder each time: neither paths nor times may be in a package.
build_once() {
    mkdir -p "$work/$1/tree"
    git -C "$here" ls-files -z --cached --others --exclude-standard |
        (cd "$here" && xargs -0 tar --create --file -) |
        tar --extract --touch --file - --directory "$work/$1/tree"
    "$work/tools/bin/python" -m build --no-isolation --outdir "$work/$1/dist" \
        "$work/$1/tree" >/dev/null
}

reproducible() {
    SOURCE_DATE_EPOCH=$(git -C "$here" log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    build_once first
    sleep 2
    (umask 077 && build_once second)
    (cd "$work/first/dist" && sha256sum ./*) >"$work/first.sums"
    (cd "$work/second/dist" && sha256sum ./*) >"$work/second.sums"
    cat "$work/first.sums"
    cmp "$work/first.sums" "$work/second.sums" ||
        fail "two builds of the same files differ" "Compare them with diffoscope."
    mkdir -p "$destination"
    cp "$work/first/dist/"* "$destination"
}

installed() {
    local version=$1 interpreter home
    interpreter=$(interpreters "$version" | head -n 1)
    if [ -z "$interpreter" ]; then
        echo "Python $version: not found, not tried"
        return
    fi
    home=$work/python$version
    "$interpreter" -m venv "$home"
    "$home/bin/pip" install --quiet --disable-pip-version-check "$wheel"
    "$home/bin/pip" check
    # Warnings are errors: a syntax that a newer Python refuses or deprecates is found here.
    "$home/bin/python" -W error -m compileall -q -f "$home/lib/python$version/site-packages/"{fdl,flodl}
    (cd "$home" && bin/fdl --version && bin/fdl init demo >/dev/null && cd demo &&
        printf 'commands:\n  hello:\n    run: echo hello\n' >fdl.yml && ../bin/fdl hello)
    echo "Python $("$home/bin/python" -c 'import platform; print(platform.python_version())'): works"
}

typed() {
    local home=$work/typed torch reported
    torch=$(sed -n 's/^torch==//p' "$here/constraints.txt")
    "$python" -m venv "$home"
    "$home/bin/pip" install --quiet --disable-pip-version-check \
        --constraint "$here/constraints.txt" "torch==$torch" "${wheel}[train,hf]"
    "$home/bin/pip" check
    mkdir "$work/consumer"
    cp "$here/tests/consumer/"*.py "$work/consumer"
    cd "$work/consumer"
    mypy=("$work/tools/bin/mypy" --strict --no-incremental --python-executable "$home/bin/python")
    pyright=("$work/tools/bin/pyright" --pythonpath "$home/bin/python")
    "${mypy[@]}" right.py
    "${pyright[@]}" right.py
    for reported in "$("${mypy[@]}" wrong.py)" "$("${pyright[@]}" wrong.py)"; do
        [ "$(grep -cE 'wrong\.py:[0-9:]+( -)? error' <<<"$reported")" = 3 ] ||
            fail "a type checker does not see the types of flodl" "$reported"
    done
    echo "mypy and pyright report the three mistakes, and no others"
}

say "tools"
tools
"$work/tools/bin/python" --version
say "two builds"
reproducible
wheel=$(echo "$destination"/*.whl)
say "what an index shows"
"$work/tools/bin/twine" check --strict "$destination"/*
for version in 3.11 3.12 3.13 3.14; do
    say "Python $version"
    installed "$version"
done
say "types"
typed
