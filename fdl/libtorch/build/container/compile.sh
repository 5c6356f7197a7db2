#!/bin/sh
# Compiles libtorch: compile.sh CACHE TARGET
#
# CACHE keeps the sources and one tree per set of architectures between calls; TARGET gets lib,
# include and share. Read from the environment: REPOSITORY, TORCH_VERSION, TORCH_CUDA_ARCH_LIST,
# MAX_JOBS.
set -eu

cache=$1
target=$2
sources=$cache/pytorch
python=$cache/python
tree=$cache/$TORCH_VERSION-$(printf %s "$TORCH_CUDA_ARCH_LIST" | tr ';+' '-_')

run() {
    printf '$ %s\n' "$*"
    "$@"
}

fetch() {
    tag=refs/tags/v$TORCH_VERSION
    run git init --quiet "$sources"
    # A git that was killed leaves its locks behind.
    find "$sources/.git" -name '*.lock' -delete
    cd "$sources"
    run git config remote.origin.url "$REPOSITORY"
    run git fetch --depth 1 --force origin "$tag:$tag"
    run git checkout --quiet --force --detach "$tag"
    run git clean -ffdxq
    run git submodule sync --quiet --recursive
    run git submodule update --init --recursive --force --depth 1 --jobs "$MAX_JOBS"
}

prepare_python() {
    run python3 -m venv --clear "$python"
    for list in requirements-build.txt requirements.txt; do
        if [ -f "$sources/$list" ]; then
            run "$python/bin/python" -m pip install --no-cache-dir -r "$sources/$list"
            return
        fi
    done
}

# once MARK SETTINGS COMMAND: runs it unless the mark says that it was done with these settings.
once() {
    if [ "$(cat "$1" 2>/dev/null)" != "$2" ]; then
        rm -f "$1"
        "$3"
        printf '%s\n' "$2" >"$1"
    fi
}

# The CUDA libraries that the result needs, so that it also works where no toolkit is installed.
add_cuda_libraries() {
    ldd "$target"/lib/*.so | awk '$1 ~ /^lib(cu|nv)/ && $3 ~ /^\// { print $3 }' | sort -u |
        while read -r library; do
            case $library in
            "$target"/*) ;;
            *) run cp -L "$library" "$target/lib/" ;;
            esac
        done
    # Not linked, but loaded by name once the libraries above run.
    for pair in "libcudnn.so.9:libcudnn_*.so.9" "libnvrtc.so.12:libnvrtc-builtins.so.12.?"; do
        [ -e "$target/lib/${pair%%:*}" ] || continue
        find /usr/lib /usr/local/cuda/lib64/ -name "${pair#*:}" -exec cp -L {} "$target/lib/" \;
    done
}

once "$sources/.git/flodl-sources" "$REPOSITORY v$TORCH_VERSION" fetch
once "$python/flodl-packages" "v$TORCH_VERSION" prepare_python

export USE_CUDA=1 BUILD_PYTHON=0 BUILD_TEST=0 PYTHONUNBUFFERED=1
export CMAKE_POLICY_VERSION_MINIMUM=3.5 NINJA_STATUS='[%f/%t] '
export PATH="$python/bin:$PATH"
mkdir -p "$tree"
cd "$sources"
run git clean -ffdxq -- torch/bin torch/lib torch/include torch/share
cd "$tree"
run "$python/bin/python" "$sources/tools/build_libtorch.py"

mkdir -p "$target/lib"
# Among the built libraries stand folders with sources.
find "$sources/torch/lib" -mindepth 1 -maxdepth 1 ! -type d -exec cp -P {} "$target/lib/" \;
cp -R "$sources/torch/include" "$sources/torch/share" "$target/"
add_cuda_libraries
