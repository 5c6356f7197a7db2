"""OpenMP in this process: how its threads wait for work, and one thread for background work."""

from __future__ import annotations

import functools
import json
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flodl_shared.waiting import VARIABLES, chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_LIBRARIES = {
    "libgomp*": "libgomp",
    "libomp*": "libomp",
    "libiomp5*": "libiomp5",
}
"""Pattern of a file beside torch's own libraries -> the OpenMP that it is."""

_HOLDERS = ("libtorch_cpu.so", "libtorch_cpu.dylib", "libiomp5md.dll")
"""A library that has torch's OpenMP in reach, on Linux, macOS and Windows."""

_added: dict[str, str] = {}
"""What was in the environment only while this process loaded torch."""


@contextmanager
def waiting_shortly() -> Iterator[None]:
    """Let threads of OpenMP spin shortly and then sleep, if torch is loaded inside the context.

    The environment is as before at the end: programs that this process starts choose for
    themselves. Nothing happens if the user has chosen, or if torch is loaded already.
    """
    added = {} if "torch" in sys.modules else chosen(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        _added.update(added)


def openmp_report(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return how threads of OpenMP wait for work in this process, and who has chosen that.

    Args:
        environ: The environment variables of the process.

    Returns:
        ``library`` (``libgomp``, ``libomp`` or ``libiomp5``; None if it is unknown), ``waiting``
            (variables and their values; empty for the library's own choice) and ``chosen_by``:
            ``flodl``, ``you`` for a variable that the user has set, ``default`` for the library.
    """
    waiting = {name: environ[name] for name in VARIABLES if environ.get(name)}
    by = "flodl" if waiting and waiting.keys() <= _set_by_fdl(environ) else "you"
    if not waiting:
        waiting, by = dict(_added), "flodl" if _added else "default"
    return {"library": _library(), "waiting": waiting, "chosen_by": by}


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
    return next((name for file, name in _LIBRARIES.items() if any(folder.glob(file))), None)


def _torch_libraries() -> Path:
    return Path(sys.modules["torch"].__file__ or "").parent / "lib"


def _set_by_fdl(environ: Mapping[str, str]) -> set[str]:
    """Return the variables that ``fdl`` has added by itself, as its plan says."""
    with suppress(ValueError, KeyError, TypeError):
        variables = json.loads(environ.get("FDL_PLAN", ""))["variables"]
        return {one["name"] for one in variables if one["origin"] == "fdl"}
    return set()
