"""One epoch of fine-tuning: the same sentences, batch size and optimizer on both sides."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.huggingface.rates import OURS, REFERENCE, Measured

_BATCH = 16
_RATE = 2e-5
_LABELS = 3


def epoch(folder: Path, texts: Sequence[str], rounds: int) -> Measured:
    """Fine-tune a classifier for one epoch, each round from the same checkpoint.

    The difference told is that of the losses of a batch before training, dropout off. An optimizer
    is made before: torch's first one loads its compiler, which transformers does when imported.
    """
    torch.optim.AdamW([torch.zeros(1)])
    labels = [len(text) % _LABELS for text in texts]
    taken: dict[str, list[float]] = {OURS: [], REFERENCE: []}
    for number in range(rounds):
        subjects = [(OURS, _flodl), (REFERENCE, _transformers)]
        for name, subject in subjects if number % 2 == 0 else reversed(subjects):
            taken[name].append(subject(folder, texts, labels))
    difference = abs(_first_loss(folder, texts, labels) / _their_loss(folder, texts, labels) - 1)
    return Measured(f"one epoch of {len(texts)} sentences", taken, difference, len(texts))


def _flodl(folder: Path, texts: Sequence[str], labels: Sequence[int]) -> float:
    from flodl import Trainer
    from flodl.hf import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    start = time.perf_counter()
    Trainer.setup_head(model, None, lambda ps: torch.optim.AdamW(list(ps), lr=_RATE, fused=True))
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    for first in range(0, len(order), _BATCH):
        rows = order[first : first + _BATCH]
        batch = tokenizer([texts[row] for row in rows], padding=True, return_tensors="pt")
        loss = model.compute_loss(batch, torch.tensor([labels[row] for row in rows]))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.graph.parameters(), 1.0)
        model.graph.step()
    return time.perf_counter() - start


def _transformers(folder: Path, texts: Sequence[str], labels: Sequence[int]) -> float:
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    start = time.perf_counter()
    encoded = tokenizer(list(texts))
    samples: Any = [
        {"labels": label, **{name: values[row] for name, values in encoded.items()}}
        for row, label in enumerate(labels)
    ]
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out,
            num_train_epochs=1,
            per_device_train_batch_size=_BATCH,
            learning_rate=_RATE,
            lr_scheduler_type="constant",
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(
            model,
            arguments,
            train_dataset=samples,
            data_collator=DataCollatorWithPadding(tokenizer),
        ).train()
        return time.perf_counter() - start


def _first_loss(folder: Path, texts: Sequence[str], labels: Sequence[int]) -> float:
    from flodl.hf import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.tokenizer is not None
    batch = model.tokenizer(list(texts[:_BATCH]), padding=True, return_tensors="pt")
    return float(model.compute_loss(batch, torch.tensor(labels[:_BATCH])).detach())


def _their_loss(folder: Path, texts: Sequence[str], labels: Sequence[int]) -> float:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    batch = AutoTokenizer.from_pretrained(folder)(
        list(texts[:_BATCH]), padding=True, return_tensors="pt"
    )
    return float(model(**batch, labels=torch.tensor(labels[:_BATCH])).loss.detach())
