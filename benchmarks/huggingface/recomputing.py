"""One training step of a classifier in a process of its own: its memory and its time.

    python -m benchmarks.huggingface.recomputing SUBJECT LAYERS ROWS LENGTH

prints one JSON object: the peak in bytes over the model with its gradients, the seconds of a step,
the loss, and the size of the gradient.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any, TypedDict

import torch

from benchmarks.huggingface.cold import peak, reset_peak

_STEPS = 3


class Found(TypedDict):
    """What one process found."""

    bytes: int
    seconds: float
    loss: float
    gradient: float


def _model(library: str, layers: int) -> Any:
    if library == "flodl":
        from flodl.hf import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=30_522,
            hidden_size=768,
            num_hidden_layers=layers,
            num_attention_heads=12,
            intermediate_size=3072,
            max_position_embeddings=512,
        )
        return BertForSequenceClassification.from_config(config, num_labels=2)
    import transformers

    return transformers.BertForSequenceClassification(
        transformers.BertConfig.from_dict({"num_hidden_layers": layers, "num_labels": 2})
    )


def step(subject: str, layers: int, rows: int, length: int) -> Found:
    """Train a few steps.

    Args:
        subject: The library, then ``kept`` or ``recomputed``.
        layers: Of bert-base's width.
        rows: Of a batch.
        length: Of every row.
    """
    library, how = subject.split(", ")
    torch.manual_seed(0)
    model = _model(library, layers).train()
    if how == "recomputed":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids, labels = torch.randint(1000, 30_000, (rows, length)), torch.arange(rows) % 2
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    seconds: list[float] = []
    before, loss = 0, torch.zeros(())
    # The first step is one token per row: it loads what a step needs once.
    for number, batch in enumerate([ids[:, :1], *[ids] * _STEPS]):
        torch.manual_seed(number)
        before = reset_peak() if number == 1 else before
        start = time.perf_counter()
        out = model(input_ids=batch, attention_mask=torch.ones_like(batch), labels=labels)
        loss = out.loss
        loss.backward()
        seconds.append(time.perf_counter() - start)
        del out
    return {
        "bytes": max(1, peak() - before),
        "seconds": statistics.median(seconds[1:]),
        "loss": loss.item(),
        "gradient": sum(float(one.grad.abs().sum()) for one in model.parameters()),
    }


def measured(subject: str, layers: int, rows: int, length: int) -> Found:
    """Ask a process of its own."""
    sizes = [str(size) for size in (layers, rows, length)]
    command = [sys.executable, "-m", "benchmarks.huggingface.recomputing", subject, *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{subject} failed:\n{done.stderr}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(step(sys.argv[1], *map(int, sys.argv[2:]))) + "\n")
