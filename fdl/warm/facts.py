"""What a process inherits when it starts. A fork inherits it from the server, so both must agree.

The client and the server run this module, each for itself. Standard library only.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH115, PTH116, PTH118, PTH120, PTH123, PTH208
from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    # A file as it was: modification time in ns, size in bytes, inode.
    Stamp = list[int]

VERSION = 1
"""Of the requests and answers. A client of another version starts the program itself."""

ROOM_VARIABLE = "FDL_WARM_ROOM"
"""Its value is room in the memory where the kernel shows a process's variables."""

_STARTS = (
    # The interpreter, the C library and the dynamic loader.
    "PYTHON", "HOME", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "LOCPATH", "GCONV_PATH",
    # Threads and linear algebra.
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "TBB_", "ONEDNN_",
    "DNNL_", "VECLIB_",
    # torch and devices.
    "TORCH", "PYTORCH", "ATEN_", "CAFFE2_", "C10_", "KINETO_", "CUDA", "CUBLAS", "CUDNN", "CUFFT",
    "NVIDIA_", "NCCL_", "NVFUSER_", "TRITON_", "GLOO_", "UCX_", "HIP_", "HSA_", "ROC", "MIOPEN_",
    "XLA_", "SYCL_", "ZE_",
    # Compiled libraries beside it.
    "NPY_", "NUMPY_", "OPENSSL_", "SSL_", "ASAN_", "TSAN_", "UBSAN_", "LSAN_", "RUST_",
    "TQDM_",
)  # fmt: skip
"""Beginnings of variables that compiled code may read while it is loaded.

Those that Python code reads are observed by :mod:`.trial`.
"""

_STATUS_LINES = (
    "Uid:", "Gid:", "Groups:", "NoNewPrivs:", "Seccomp:", "CapInh:", "CapPrm:", "CapEff:",
    "CapBnd:", "CapAmb:", "Cpus_allowed:", "Mems_allowed:", "THP_enabled:",
)  # fmt: skip
_FILES = {
    "cgroup": "cgroup",
    "limits": "limits",
    "oom_score_adj": "oom_score_adj",
    "personality": "personality",
    "core dump filter": "coredump_filter",
    "security label": "attr/current",
    "timer slack": "timerslack_ns",
}


def is_read_early(name: str) -> bool:
    """Whether a variable may be read by compiled code while modules are imported."""
    return name.startswith(_STARTS)


def facts() -> dict[str, str]:
    """What this process would hand on to a program that it starts, besides its environment."""
    found = {name: _text(path) for name, path in _FILES.items()}
    kept = [line for line in _text("status").splitlines() if line.startswith(_STATUS_LINES)]
    found["credentials or processors"] = "\n".join(kept)
    found["root folder"] = _link("root")
    for name in sorted(_names("ns")):
        found[f"namespace {name}"] = _link(f"ns/{name}")
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    how, what = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    found["nice or scheduling"] = f"{priority} {how} {what}"
    # numactl sets it: `7f… default file=…`.
    found["memory policy"] = _text("numa_maps", 64).partition(" ")[2].partition(" ")[0]
    return found


def stamp(path: str) -> Stamp | None:
    """A file as it is now; None without one."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size, found.st_ino]


def interpreter(path: str) -> dict[str, object]:
    """The interpreter at a path, with what tells that it was replaced."""
    real = os.path.realpath(path)
    settings = os.path.join(os.path.dirname(os.path.dirname(path)), "pyvenv.cfg")
    return {"path": path, "real": real, "file": stamp(real), "settings": stamp(settings)}


def differing_variable(
    mine: Mapping[str, str], theirs: Mapping[str, str], read: Iterable[str]
) -> str:
    """The first variable that matters while modules are imported and differs; empty for none.

    Args:
        mine: Those that the server was started with: only the ones that matter.
        theirs: All variables of a run.
        read: The names that Python code has read while it was imported.
    """
    early = {name for name in theirs if is_read_early(name)}
    for name in sorted({*mine, *early, *read}):
        if mine.get(name) != theirs.get(name):
            return name
    return ""


def _text(name: str, most: int = -1) -> str:
    try:
        with open(f"/proc/self/{name}", encoding="utf-8", errors="replace") as stream:
            return stream.read(most)
    except OSError:
        return ""


def _link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/{name}")
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(f"/proc/self/{folder}")
    except OSError:
        return []
