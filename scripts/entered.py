"""How many functions and files of ``flodl`` a call enters, and how often it moves between files.

    python scripts/entered.py

trains a small model with both engines, makes a tiny BERT, opens it with ``from_pretrained`` and
predicts with it, each once before, so that imports do not count.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import flodl
from flodl import Trainer
from flodl.hf import AutoModelForSequenceClassification, write_tiny_model

_ROOT = str(Path(flodl.__file__).parent)


STEPS = 64
"""Steps of an epoch."""


def entered(call: Callable[[], object]) -> tuple[Counter[CodeType], int, int]:
    """Functions that a call enters with their calls, its files, and moves between files."""
    functions: Counter[CodeType] = Counter()
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_ROOT) or code.co_name == "<module>":
            return
        functions[code] += 1
        if not files or files[-1] != code.co_filename:
            files.append(code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions, len(set(files)), len(files)


def train(engine: str) -> None:
    """Train a small model for five epochs."""
    data = TensorDataset(torch.randn(8 * STEPS, 4), torch.randn(8 * STEPS, 1))
    builder = Trainer.builder(
        lambda _: nn.Linear(4, 1),
        lambda parameters: torch.optim.SGD(parameters, 0.01),
        lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
    )
    builder.dataset(data).batch_size(8).num_epochs(5).engine(engine).progress(False).run()


def main() -> None:
    """Print all rows."""
    train("eager")
    for engine in ("eager", "auto"):
        found, files, moves = entered(lambda engine=engine: train(engine))  # type: ignore[misc]
        each = sum(calls >= 5 * STEPS for calls in found.values())
        sys.stdout.write(f"a step with {engine}: {each} functions\n")
        told = f"{len(found)} functions in {files} files, {moves} moves"
        sys.stdout.write(f"set-up and five epochs with {engine}: {told}\n")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "tiny"
        write_tiny_model(source, head="seqcls", words=["some", "text"])
        model = AutoModelForSequenceClassification.from_pretrained(source)
        model.predict(["some text"])
        calls: dict[str, Callable[[], object]] = {
            "from_pretrained": lambda: AutoModelForSequenceClassification.from_pretrained(source),
            "predict": lambda: model.predict(["some text"]),
        }
        for name, call in calls.items():
            found, files, moves = entered(call)
            sys.stdout.write(f"{name}: {len(found)} functions in {files} files, {moves} moves\n")


if __name__ == "__main__":
    main()
