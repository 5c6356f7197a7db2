"""Count the functions of flodl that a training enters: in one step, and in set-up and five epochs.

Run it as ``python scripts/functions.py``. Functions of torch and of Python do not count.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import flodl
from flodl import Callback, Trainer

ROOT = str(Path(flodl.__file__).parent)
STEPS = 64
"""Steps of an epoch."""


class Calls:
    """The calls of functions of flodl while it listens.

    Attributes:
        seen: How often each function was entered, by file and name.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of an event of the interpreter."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            file = Path(code.co_filename).relative_to(ROOT)
            self.seen[f"{file}:{code.co_qualname}"] += 1


def train(engine: str, epochs: int, *callbacks: Callback) -> None:
    """Train a small model."""
    data = TensorDataset(torch.randn(8 * STEPS, 4), torch.randn(8 * STEPS, 1))
    (
        Trainer.builder(
            lambda _: nn.Linear(4, 1),
            lambda parameters: torch.optim.SGD(parameters, 0.01),
            lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        )
        .dataset(data)
        .batch_size(8)
        .num_epochs(epochs)
        .engine(engine)
        .progress(False)
        .callbacks(*callbacks)
        .run()
    )


def counted(engine: str, epochs: int) -> Counter[str]:
    """Return the functions that a training of some epochs enters."""
    calls = Calls()
    sys.setprofile(calls)
    try:
        train(engine, epochs)
    finally:
        sys.setprofile(None)
    return calls.seen


def main() -> None:
    """Print the numbers of both engines."""
    train("eager", 1)  # what is imported late
    for engine in ("eager", "auto"):
        seen = counted(engine, 5)
        each = [name for name, count in seen.items() if count >= 5 * STEPS]
        calls = sum(seen[name] for name in each) / (5 * STEPS)
        sys.stdout.write(f"{engine}: a step enters {len(each)} functions, {calls:.1f} calls\n")
        sys.stdout.write(f"{engine}: set-up and five epochs enter {len(seen)} functions\n")
        if "-v" in sys.argv:
            sys.stdout.write("\n".join(sorted(each)) + "\n")


if __name__ == "__main__":
    main()
