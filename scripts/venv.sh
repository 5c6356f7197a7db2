# Sourced by the other scripts: one virtual environment at .venv, installed with the constraints.
# Needs: $here (the checkout). Gives: prepare, prepare_development, and .venv/bin first on PATH.

fail() {
    printf '\nerror: %s\n' "$1" >&2
    [ -z "${2:-}" ] || printf '%s\n' "$2" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "flodl needs Python 3.11 or newer; found $(${PYTHON:-python3} --version 2>&1 | head -n 1)" \
        "Install a newer Python, or name one: PYTHON=/path/to/python3.12 bash $0"
}

make_venv() {
    local python
    [ -x "$here/.venv/bin/python" ] && return
    python=$(find_python)
    echo "Making .venv with $("$python" --version)"
    "$python" -m venv "$here/.venv" ||
        fail "could not make a virtual environment" \
            "On Debian and Ubuntu: apt install python3-venv. Then run this again."
    # The launchers of pip before 25 start `fdl` a third of an interpreter's start more slowly.
    "$here/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade \
        --constraint "$here/constraints.txt" pip || echo "Keeping the pip that came with Python"
}

pip_install() {
    # shellcheck disable=SC2086 # one word per option
    "$here/.venv/bin/python" -m pip install --quiet --disable-pip-version-check ${pip_options:-} \
        --constraint "$here/constraints.txt" "$@" ||
        fail "the installation failed; see the messages of pip above" \
            "Without a network, point pip at a mirror or a folder of wheels (PIP_INDEX_URL, PIP_FIND_LINKS). Then run this again; installed packages are kept."
}

has_gpu() {
    [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null 2>&1
}

answers() {
    "$here/.venv/bin/python" - "$1" 2>/dev/null <<'PY'
import sys
import urllib.request

urllib.request.urlopen(sys.argv[1], timeout=4).close()
PY
}

# Without a GPU, avoid the gigabytes of CUDA in the default wheel of Linux. Only torch: the installation
# that follows takes what it needs from the usual index, and another may unpack that at the same time.
install_torch() {
    local python=$here/.venv/bin/python version index
    "$python" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null && return
    version=$(sed -n 's/^torch==//p' "$here/constraints.txt")
    set -- --no-deps "torch==$version"
    index=${FLODL_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
    if [ "$(uname -s)" != Linux ] || has_gpu; then
        echo "Installing PyTorch $version"
        pip_install "$@"
    elif "$python" -m pip index versions torch 2>/dev/null | grep -q "[ (]$version+cpu"; then
        echo "Installing PyTorch $version (the CPU build that pip offers)"
        pip_install "$@"
    elif answers "$index/torch/"; then
        echo "Installing PyTorch $version (CPU build)"
        pip_install "$@" --index-url "$index"
    else
        echo "Installing PyTorch $version. No CPU build was found. This is the default"
        echo "build, with several gigabytes of CUDA libraries. Press Ctrl-C to stop."
        pip_install "$@"
    fi
}

# pip unpacks one package after another. The constraints name all that the tools need, so a second pip unpacks the
# others beside torch. Where it cannot, the installation that follows does it, or says why not.
unpack_pinned() {
    (pip_install --no-deps --requirement <(grep -v "^torch==" "$here/constraints.txt")) >/dev/null 2>&1
}

# prepare PROFILE [REQUIREMENT…]: flodl[train] and the requirements. What was installed is
# remembered, so that a second run starts at once; every profile includes that of `train`.
prepare() {
    local profile=$1 state
    shift
    make_venv
    export PATH="$here/.venv/bin:$PATH"
    state=$(cat "$here/pyproject.toml" "$here/constraints.txt" | cksum)
    if [ "$(cat "$here/.venv/.installed-$profile" 2>/dev/null)" != "$state" ]; then
        [ "$profile" != development ] || unpack_pinned &
        install_torch
        wait "$!" || true
        echo "Installing flodl"
        pip_install --editable "$here[train]" "$@"
        printf '%s\n' "$state" | tee "$here/.venv/.installed-train" >"$here/.venv/.installed-$profile"
    fi
}

# The requirements of some dependency groups. pip reads groups since 25.1; older ones are everywhere.
requirements_of() {
    "$here/.venv/bin/python" - "$here/pyproject.toml" "$@" <<'PY'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    groups = tomllib.load(file)["dependency-groups"]
print(*(requirement for name in sys.argv[2:] for requirement in groups[name]))
PY
}

# The same with what builds the documentation.
prepare_docs() {
    local tools
    make_venv
    tools=$(requirements_of docs)
    # shellcheck disable=SC2086 # one word per requirement
    prepare docs $tools
}

# The same with the development tools. They include those of the documentation, which a test builds.
prepare_development() {
    local tools pip_options
    # Python compiles modules when it imports them. Most modules of the tools are never imported.
    pip_options=--no-compile
    # Thousands of tests start a program: what it imports is compiled once, and not each time.
    unset PYTHONDONTWRITEBYTECODE
    make_venv
    tools=$(requirements_of dev docs)
    # shellcheck disable=SC2086 # one word per requirement
    prepare development $tools
}
