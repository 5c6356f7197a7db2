"""OpenMP in this process: how its threads wait for work, and one thread for background work."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Each of them says how threads wait."""

_LEAST_OF_A_THREAD = 1 << 15
"""Elements for which torch uses one more thread."""

_LOOKS = 3
_BETWEEN_LOOKS = 0.0005
"""Seconds; what runs for a moment only is in few of the looks."""

_LIBRARIES = {
    "libgomp*": "libgomp",
    "libomp*": "libomp",
    "libiomp5*": "libiomp5",
}
"""Pattern of a file beside torch's own libraries -> the OpenMP that it is."""

_HOLDERS = ("libtorch_cpu.so", "libtorch_cpu.dylib", "libiomp5md.dll")
"""A library that has torch's OpenMP in reach, on Linux, macOS and Windows."""


def other_programs_run() -> bool:
    """Whether other threads than the calling one have something to do on this machine.

    Asks Linux a few times within two milliseconds; False on other systems.
    """
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_LOOKS)
        if _runnable_threads() < 2:
            return False
    return True


def _runnable_threads() -> int:
    """Return how many threads of the machine run or could run; 0 if the system does not say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/loadavg", "rb") as file:  # noqa: PTH123
        return int(file.read().split()[3].split(b"/")[0])
    return 0


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


@final
class ShortSpin:
    """While it is held, threads of libgomp spin briefly before they sleep.

    libgomp lets threads spin 1000 turns instead of 300000 while a process has more of them than
    cores (``gomp_throttled_spin_count_var`` in its ``wait.h``). So a thread keeps a team without
    work. The numbers of threads that operations use stay as they are, and so do their results.
    Nothing happens with another OpenMP, or if the user has chosen how threads wait.
    """

    def __init__(self) -> None:
        self._end: threading.Event | None = None

    def hold(self) -> None:
        """Hold it; a second call changes nothing."""
        chose = any(os.environ.get(name) for name in VARIABLES)
        if self._end is not None or chose or _library() != "libgomp":
            return
        self._end = threading.Event()
        threading.Thread(
            target=_keep_team, args=(self._end,), name="flodl-spin", daemon=True
        ).start()

    def release(self) -> None:
        """Let threads spin as before."""
        if self._end is not None:
            self._end.set()
            self._end = None


def _keep_team(end: threading.Event) -> None:
    import torch

    # With the threads of the program, one more than cores. Each needless one could hit a limit of
    # the system, at which libgomp ends the process.
    count = max(2, usable_cores() - torch.get_num_threads() + 2)
    for set_threads in _setters():
        set_threads(count)
    torch.zeros(count * _LEAST_OF_A_THREAD).add_(1.0)
    end.wait()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
