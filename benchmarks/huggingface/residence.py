"""What a process has in memory after each use of a model, as Linux counts it.

    python -m benchmarks.huggingface.residence SUBJECT CHECKPOINT ROWS LENGTH

prints one JSON object: stage -> bytes of ``RssAnon``, ``RssFile``, and the peak of the stage. With
ROWS 0, the process stops after one prediction. It prints its stages, and waits until its standard
input is closed, so that others can read its ``smaps_rollup``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.huggingface.cold import reset_peak
from benchmarks.huggingface.rates import OURS, REFERENCE

FLOOR = "torch alone"
IMPORTED, OPENED, PREDICTED, TRAINED = "imported", "opened", "one prediction", "fine-tuning"
STAGES = (OPENED, PREDICTED, TRAINED)
STEPS = 3
TEXT = " ".join(["which words a model reads is all the same to its memory"] * 4)

_RATE = 2e-5
_FIELDS = {"anon": "RssAnon", "file": "RssFile", "peak": "VmHWM"}
_SHARES = {"proportional": "Pss", "private": "Private_Clean|Private_Dirty"}

Stage = dict[str, int]
"""``anon``, ``file`` and ``peak``, in bytes."""


def resident() -> Stage:
    """What the process has in memory now, and the peak since the last call, in bytes."""
    found = _kilobytes(Path("/proc/self/status").read_text(encoding="utf-8"), _FIELDS)
    reset_peak()
    return found


def shares(process: int) -> Stage:
    """What a process has for itself, and its part of what it shares with others, in bytes."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
    return _kilobytes(text, _SHARES)


def _kilobytes(text: str, fields: Mapping[str, str]) -> Stage:
    return {
        name: 1024 * sum(int(size) for size in re.findall(rf"^(?:{key}):\s+(\d+) kB", text, re.M))
        for name, key in fields.items()
    }


# --- Subjects ----------------------------------------------------------------------------------


class Subject:
    """A program with a model; making it imports what it uses."""

    model: Any

    def open(self, folder: str) -> None:
        """Open the model, and its tokenizer."""
        raise NotImplementedError

    def predict(self) -> None:
        """Classify one text."""
        raise NotImplementedError

    def loss(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a batch in training mode."""
        loss: torch.Tensor = self.model.train()(input_ids=ids, labels=labels).loss
        return loss

    def parameters(self) -> Iterable[torch.Tensor]:
        """What an optimizer changes."""
        parameters: Iterable[torch.Tensor] = self.model.parameters()
        return parameters


class Ours(Subject):
    """A program that uses flodl."""

    def __init__(self) -> None:
        from flodl.hf import AutoModelForSequenceClassification

        self._class = AutoModelForSequenceClassification

    def open(self, folder: str) -> None:
        """See the base."""
        self.model = self._class.from_pretrained(folder)

    def predict(self) -> None:
        """See the base."""
        self.model.predict([TEXT])


class Theirs(Subject):
    """A program that uses transformers."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer, BertForSequenceClassification

        self._classes: tuple[Any, Any] = (BertForSequenceClassification, AutoTokenizer)

    def open(self, folder: str) -> None:
        """See the base."""
        self.model, self.tokenizer = (one.from_pretrained(folder) for one in self._classes)

    def predict(self) -> None:
        """See the base."""
        with torch.inference_mode():
            self.model.eval()(**self.tokenizer([TEXT], return_tensors="pt")).logits.softmax(-1)


class Floor(Subject):
    """The least there is to do: map the weights, load the tokenizer, multiply; no dropout."""

    def __init__(self) -> None:
        from safetensors import safe_open
        from tokenizers import Tokenizer

        from benchmarks.huggingface.cold import multiplied

        self._imported = safe_open, Tokenizer
        self._multiplied = multiplied

    def open(self, folder: str) -> None:
        """See the base."""
        safe_open, tokenizer = self._imported
        with safe_open(f"{folder}/model.safetensors", "pt") as file:
            self.weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.tokenizer = tokenizer.from_file(f"{folder}/tokenizer.json")

    def predict(self) -> None:
        """See the base."""
        ids = torch.tensor([self.tokenizer.encode(TEXT).ids])
        with torch.inference_mode():
            self._multiplied(self.weights, ids, torch.zeros_like(ids)).softmax(-1)

    def loss(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """See the base."""
        logits = self._multiplied(self.weights, ids, torch.zeros_like(ids))
        return torch.nn.functional.cross_entropy(logits, labels)

    def parameters(self) -> Iterable[torch.Tensor]:
        """See the base."""
        return [one.requires_grad_() for one in self.weights.values()]


SUBJECTS: Mapping[str, Callable[[], Subject]] = {OURS: Ours, REFERENCE: Theirs, FLOOR: Floor}


def train(subject: Subject, rows: int, length: int) -> None:
    """Train a few steps of AdamW on one batch of rows without padding.

    Args:
        subject: With an open model.
        rows: Of the batch.
        length: Tokens of a row.
    """
    torch.manual_seed(0)
    ids, labels = torch.randint(1000, 30_000, (rows, length)), torch.arange(rows) % 2
    optimizer = torch.optim.AdamW(list(subject.parameters()), lr=_RATE, fused=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        subject.loss(ids, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def stages(name: str, folder: str, rows: int, length: int) -> dict[str, Stage]:
    """Use a model, and read the memory of the process after each stage."""
    subject = SUBJECTS[name]()
    # The first optimizer loads torch's compiler. That memory does not belong to the model.
    torch.optim.AdamW([torch.zeros(1)])
    resident()
    found = {IMPORTED: resident()}
    subject.open(folder)
    found[OPENED] = resident()
    subject.predict()
    found[PREDICTED] = resident()
    if rows:
        train(subject, rows, length)
        found[TRAINED] = resident()
    return found


# --- Processes ---------------------------------------------------------------------------------


def measured(name: str, folder: Path, rows: int, length: int) -> dict[str, Stage]:
    """The stages of a process of its own."""
    with _running(name, folder, rows, length) as (_, found):
        return found


def beside_another(name: str, folder: Path) -> dict[str, Stage]:
    """What each of two processes has after one prediction with the same files, in bytes.

    Returns:
        ``one`` for a process alone, ``two`` for the same process beside the other.
    """
    with ExitStack() as stack:
        process, _ = stack.enter_context(_running(name, folder, 0, 0))
        one = shares(process)
        stack.enter_context(_running(name, folder, 0, 0))
        return {"one": one, "two": shares(process)}


@contextmanager
def _running(
    name: str, folder: Path, rows: int, length: int
) -> Iterator[tuple[int, dict[str, Stage]]]:
    """A process that has measured its stages and waits: its id, and the stages."""
    words = ["benchmarks.huggingface.residence", name, str(folder), str(rows), str(length)]
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise RuntimeError(f"{name} failed:\n{process.communicate()[1]}")
        yield process.pid, json.loads(line)
    finally:
        process.communicate()


if __name__ == "__main__":
    subject, checkpoint, rows, length = sys.argv[1:]
    told = stages(subject, checkpoint, int(rows), int(length))
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
