"""A fine-tuned model in other programs: its outputs beside those of flodl.

    python -m benchmarks.huggingface.opened FOLDER

``FOLDER`` holds ``task.json``, the model in ``trained``, and its export in ``exported``. Prints one
JSON object: way -> largest difference of an output.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.huggingface.finetune_data import Task

_ROWS = (1, 7, 16)
"""Texts of the batches that are compared, one after the other."""
_WORDS = 100
"""Most words of a text."""


def opened(folder: Path) -> dict[str, float]:
    """Export the model and compare all ways to open it, in a process of its own.

    Raises:
        RuntimeError: It failed.
    """
    shutil.rmtree(folder / "exported", ignore_errors=True)
    words = ["--hub", str(folder / "trained"), "--out", str(folder / "exported")]
    _run("flodl.hf", "export", *words)
    told = _run("benchmarks.huggingface.opened", str(folder))
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def _run(module: str, *words: str) -> str:
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command[1:])}` failed:\n{done.stderr}")
    return done.stdout


def _differences(folder: Path) -> dict[str, float]:
    from flodl.hf import AutoModelForSequenceClassification, SentenceTransformer

    task, exported = Task.read(folder), folder / "exported"
    # Short enough for the limits of all programs.
    batches = _batches([" ".join(text.split()[:_WORDS]) for text, _ in task.test])
    model = AutoModelForSequenceClassification.from_pretrained(folder / "trained")
    logits = [_logits(model, model.tokenizer, texts, task.length) for texts in batches]
    texts = [text for batch in batches for text in batch]
    encoder = SentenceTransformer(folder / "trained")
    vectors = encoder.encode(texts, convert_to_tensor=True)
    names: Mapping[str, Callable[[], list[Tensor]]] = {
        "flodl, logits": lambda: _by_flodl(exported, batches, task.length),
        "transformers, logits": lambda: _by_transformers(exported, batches, task.length),
    }
    found = {name: _apart(logits, read()) for name, read in names.items()}
    found["sentence-transformers, vectors"] = _apart([vectors], [_vectors(exported, texts)])
    return found


def _batches(texts: list[str]) -> list[list[str]]:
    """Batches of several sizes; their rows have different lengths."""
    found, first = [], 0
    for rows in _ROWS:
        found.append(texts[first : first + rows])
        first += rows
    return found


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))


def _logits(model: Any, tokenizer: Any, texts: list[str], length: int) -> Tensor:
    batch = tokenizer(texts, truncation=True, max_length=length, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits: Tensor = model(**batch).logits
    return logits


def _by_flodl(folder: Path, batches: list[list[str]], length: int) -> list[Tensor]:
    from flodl.hf import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    return [_logits(model, model.tokenizer, texts, length) for texts in batches]


def _by_transformers(folder: Path, batches: list[list[str]], length: int) -> list[Tensor]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [_logits(model, tokenizer, texts, length) for texts in batches]


def _vectors(folder: Path, texts: list[str]) -> Tensor:
    """The means over tokens, as sentence-transformers makes them for an encoder."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    vectors: Tensor = model.encode(texts, convert_to_tensor=True)
    return vectors


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_differences(Path(sys.argv[1]))) + "\n")
