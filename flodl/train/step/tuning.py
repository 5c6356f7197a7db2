"""Changes to a step that do not change what it computes, and the threads that it uses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


@final
@dataclass(frozen=True, slots=True)
class Tuning:
    """A way to compute a step; the default is torch's own way.

    Attributes:
        fused: Use one kernel for the optimizer.
        channels_last: Store weights of convolutions with the channels innermost.
        onednn: Compute float32 matrix products with oneDNN.
        threads: Threads of an operation; 0 for the number that the user has set.
        compiled: Compute forward and backward with torch.compile.
        autotuned: The same after torch.compile has tried many kernels, which takes minutes.
        captured: Repeat the whole step as a CUDA graph.
    """

    fused: bool = False
    channels_last: bool = False
    onednn: bool = False
    threads: int = 0
    compiled: bool = False
    autotuned: bool = False
    captured: bool = False

    def names(self) -> list[str]:
        """Return the differences from torch's own way, in words."""
        words = {
            "fused": "fused optimizer",
            "channels_last": "channels last",
            "onednn": "oneDNN products",
            "threads": thread_words(self.threads),
            "compiled": "compiled",
            "autotuned": "compiled and autotuned",
            "captured": "CUDA graph",
        }
        return [word for field, word in words.items() if getattr(self, field)]

    def __str__(self) -> str:
        return " + ".join(self.names()) or "plain"

    def as_json(self) -> dict[str, Any]:
        """Return the tuning as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Tuning:
        """Read the result of :meth:`as_json`.

        Raises:
            ValueError: It has another form.
        """
        usual = asdict(cls())
        if form.keys() != usual.keys() or any(type(form[n]) is not type(usual[n]) for n in usual):
            raise ValueError(f"not a tuning: {form!r}")
        if form["threads"] < 0:
            raise ValueError(f"not a number of threads: {form['threads']}")
        return cls(**form)


def thread_words(threads: int) -> str:
    """Return a number of threads in words."""
    return f"{threads} thread{'s' if threads != 1 else ''}"


@final
class ThreadLimit:
    """Lets operations use fewer threads inside the context.

    Args:
        threads: Largest number of threads.

    Attributes:
        overruled: Whether the program has set its own number inside the context; that number stays.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._before = 0
        self.overruled = False

    def __enter__(self) -> None:
        """Save the user's number, and set a smaller one."""
        self._before = torch.get_num_threads()
        if self._threads < self._before:
            torch.set_num_threads(self._threads)

    def __exit__(self, *_: object) -> None:
        """Restore the user's number."""
        now = torch.get_num_threads()
        if now != min(self._threads, self._before):
            self.overruled = True
        elif now != self._before:
            torch.set_num_threads(self._before)


def fewer_threads(*, single: bool) -> list[int]:
    """Return the numbers of threads to try: half, and one if a step with one is short enough."""
    threads = torch.get_num_threads()
    return sorted({threads // 2, *((1,) if single else ())} - {0, threads}, reverse=True)


def waited_seconds() -> float:
    """Return how long this thread was ready to run and had no core; 0 where nobody counts."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9
    return 0.0
