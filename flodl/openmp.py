"""OpenMP in this process: how its threads wait for work, and one thread for background work."""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Each of them says how threads wait."""

_LIBRARIES = {
    "libgomp*": "libgomp",
    "libomp*": "libomp",
    "libiomp5*": "libiomp5",
}
"""Pattern of a file beside torch's own libraries -> the OpenMP that it is."""

_HOLDERS = ("libtorch_cpu.so", "libtorch_cpu.dylib", "libiomp5md.dll")
"""A library that has torch's OpenMP in reach, on Linux, macOS and Windows."""


def openmp_report(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return how threads of OpenMP wait for work in this process.

    Args:
        environ: The environment variables of the process.

    Returns:
        ``library`` (``libgomp``, ``libomp`` or ``libiomp5``; None if it is unknown) and ``waiting``
            (variables and their values; empty for the library's own choice).
    """
    waiting = {name: environ[name] for name in VARIABLES if environ.get(name)}
    return {"library": _library(), "waiting": waiting}


def use_one_thread() -> None:
    """Let operations of torch that the calling thread starts run on this thread alone.

    ``torch.set_num_threads`` would also change the number of all threads that start later. Nothing
    happens with a torch whose OpenMP is not found.
    """
    import torch

    # The first operation of a thread takes over the number of the process, so it must come first.
    torch.get_num_threads()
    for set_threads in _setters():
        set_threads(1)


@functools.cache
def _setters() -> Sequence[Callable[[int], object]]:
    """Return the functions that set the number of threads for the calling thread only."""
    import ctypes

    folder = _torch_libraries()
    for name in _HOLDERS:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(folder / name))
            found = [library.omp_set_num_threads]
            with suppress(AttributeError):
                found.append(library.MKL_Set_Num_Threads_Local)
            for function in found:
                function.argtypes = [ctypes.c_int]
            return found
    return ()


def _library() -> str | None:
    folder = _torch_libraries()
    # A process may have given up the rights with which it imported torch.
    with suppress(OSError):
        return next((name for file, name in _LIBRARIES.items() if any(folder.glob(file))), None)
    return None


def _torch_libraries() -> Path:
    return Path(sys.modules["torch"].__file__ or "").parent / "lib"
