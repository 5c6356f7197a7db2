"""ModernBERT, with the parts of its speed told apart: sorting, padding, blocks, libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.huggingface import rates
from benchmarks.huggingface.rates import OURS, REFERENCE, ROUTED, Measured, relative
from benchmarks.measure import interleaved
from flodl.hf import AutoModel, AutoModelForSequenceClassification, set_unpad
from flodl.hf.layers import attention
from flodl.train.step.tuning import routed

PADDED = f"{OURS}, padding computed"
GIVEN, SORTED = f"{REFERENCE}, in the given order", f"{REFERENCE}, sorted by length"
SQUARE = f"{OURS}, all pairs of tokens"
THEIRS = f"{REFERENCE}, products of oneDNN"


Way = Callable[[], AbstractContextManager[None]]
"""Makes a context in which a call runs."""


def classification(folder: Path, texts: Sequence[str], rounds: int) -> Measured:
    """Classify sentences with and without their padding, and as transformers does it."""
    tokenizer, other = rates.reference_of(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    set_unpad(model, False)
    subjects: dict[str, rates.Scoring] = {
        OURS: rates.scores_of(AutoModelForSequenceClassification.from_pretrained(folder)),
        PADDED: rates.scores_of(model),
        GIVEN: lambda rows: rates.logits(other, tokenizer, rows, 32),
        SORTED: lambda rows: rates.by_length(
            rows, lambda some: rates.logits(other, tokenizer, some, 32)
        ),
    }
    return rates.classified(subjects, texts, rounds, OURS)


@contextmanager
def _all_pairs() -> Iterator[None]:
    """Let local layers compare all tokens of a row, behind a mask."""
    with patch.object(attention, "ROWS_WORTH_BLOCKS", 10**9):
        yield


def long_rows(folder: Path, shapes: Sequence[tuple[int, int]], rounds: int) -> list[Measured]:
    """Time an encoder on full rows: local layers in blocks, and with all pairs of tokens."""
    from transformers import AutoModel as Reference

    model = AutoModel.from_pretrained(folder)
    other = Reference.from_pretrained(folder, attn_implementation="sdpa").eval()
    draw = torch.Generator().manual_seed(0)
    found = []
    for rows, length in shapes:
        ids = torch.randint(1000, 30_000, (rows, length), generator=draw)
        subjects = {
            OURS: _states(model, ids, nullcontext),
            SQUARE: _states(model, ids, _all_pairs),
            REFERENCE: _states(other, ids, nullcontext),
        }
        outputs = {name: subject() for name, subject in subjects.items()}
        worst = max(relative(outputs[OURS], one) for one in outputs.values())
        taken = interleaved(subjects, rounds, warmup=0)
        found.append(Measured(f"{rows} × {length} tokens", taken, worst))
    return found


def _states(model: Any, ids: Tensor, how: Way) -> Callable[[], Tensor]:
    mask = torch.ones_like(ids)

    @torch.inference_mode()
    def states() -> Tensor:
        with how():
            found: Tensor = model(ids, attention_mask=mask).last_hidden_state
        return found

    return states


def training_step(folder: Path, rounds: int) -> Measured:
    """Time a step of the same plain loop: rows of 16 to 128 tokens, AdamW.

    The difference is that of the first losses.
    """
    from transformers import AutoModelForSequenceClassification as Reference

    lengths = torch.arange(16, 129, 16)
    mask = (torch.arange(128) < lengths[:, None]).long()
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 30_000, mask.shape, generator=draw).masked_fill(mask == 0, 0)
    labels = torch.arange(len(ids)) % 3
    ours = AutoModelForSequenceClassification.from_pretrained(folder).train()
    theirs = Reference.from_pretrained(folder, attn_implementation="sdpa").train()
    padded = AutoModelForSequenceClassification.from_pretrained(folder).train()
    set_unpad(padded, False)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    losses: dict[str, float] = {}

    def step(name: str, model: Any, how: Way) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        def once() -> None:
            with how():
                loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.setdefault(name, float(loss.detach()))

        return once

    subjects = {
        OURS: step(OURS, ours, nullcontext),
        PADDED: step(PADDED, padded, nullcontext),
        ROUTED: step(ROUTED, ours, routed),
        REFERENCE: step(REFERENCE, theirs, nullcontext),
        THEIRS: step(THEIRS, theirs, routed),
    }
    taken = interleaved(subjects, rounds, warmup=1)
    first = (PADDED, REFERENCE)  # the others continue the training of a model
    worst = max(abs(losses[name] / losses[OURS] - 1) for name in first)
    return Measured(f"a step of {len(ids)} rows of 16 to 128 tokens", taken, worst)
