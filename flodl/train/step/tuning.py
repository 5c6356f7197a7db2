"""Changes to a step that do not change what it computes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

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
