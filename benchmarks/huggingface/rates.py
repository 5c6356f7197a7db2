"""In one process: how many texts a second, and how long a batch of a given shape takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import interleaved
from flodl.processor import bfloat16_instructions
from flodl.train.step.tuning import routed

Scoring = Callable[[Sequence[str]], Tensor]
"""Texts -> scores of the classes."""
REFERENCE = "transformers"
OURS = "flodl"
BFLOAT16 = "flodl, bfloat16"
ROUTED = f"{OURS}, products of oneDNN"


@dataclass(frozen=True, slots=True)
class Measured:
    """One comparison.

    Attributes:
        title: What was computed.
        seconds: Of each round, by subject; the first subject is ours.
        difference: Largest difference of the outputs, relative to the largest one.
        amount: How many texts or calls a round has.
        instructions: Those of the processor that multiply in bfloat16, where they matter; empty
            for none.
    """

    title: str
    seconds: Mapping[str, Sequence[float]]
    difference: float
    amount: int = 1
    instructions: str = ""


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest absolute value."""
    return float((found - expected).abs().max() / expected.abs().max())


@torch.inference_mode()
def logits(model: Any, tokenizer: Any, texts: Sequence[str], size: int) -> Tensor:
    """Scores of a model of the reference, in padded batches of some texts."""
    found = []
    for first in range(0, len(texts), size):
        batch = tokenizer(list(texts[first : first + size]), padding=True, return_tensors="pt")
        found.append(model(**batch).logits.float().softmax(-1))
    return torch.cat(found)


def by_length(texts: Sequence[str], function: Callable[[Sequence[str]], Tensor]) -> Tensor:
    """What a function gives for texts, which it gets sorted, longest first."""
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row].split()))
    found = function([texts[row] for row in order])
    return found[torch.tensor(order).argsort()]


def classification(folder: Path, texts: Sequence[str], rounds: int) -> Measured:
    """Classify texts in float32: padded as they come, sorted by length, and without padding."""
    tokenizer, other = reference_of(folder)
    subjects: dict[str, Scoring] = {
        OURS: _scores_of(folder),
        ROUTED: routed()(_scores_of(folder)),
        f"{REFERENCE}, in the given order": lambda rows: logits(other, tokenizer, rows, 32),
        f"{REFERENCE}, sorted by length": lambda rows: by_length(
            rows, lambda some: logits(other, tokenizer, some, 32)
        ),
        f"{REFERENCE}, sorted, batches of 8": lambda rows: by_length(
            rows, lambda some: logits(other, tokenizer, some, 8)
        ),
    }
    return classified(subjects, texts, rounds, OURS)


def in_bfloat16(folder: Path, texts: Sequence[str], rounds: int) -> Measured:
    """Classify texts in bfloat16, beside transformers as it comes, in float32, and in bfloat16."""
    tokenizer, other = reference_of(folder)
    _, short = reference_of(folder, torch.bfloat16)
    subjects: dict[str, Scoring] = {
        BFLOAT16: _scores_of(folder, dtype="bfloat16"),
        f"{REFERENCE}, in the given order": lambda rows: logits(other, tokenizer, rows, 32),
        f"{REFERENCE}, bfloat16, in the given order": lambda rows: logits(
            short, tokenizer, rows, 32
        ),
        f"{REFERENCE}, bfloat16, sorted by length": lambda rows: by_length(
            rows, lambda some: logits(short, tokenizer, some, 32)
        ),
    }
    found = classified(subjects, texts, rounds, BFLOAT16)
    return replace(found, instructions=bfloat16_instructions() or "")


def reference_of(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Tokenizer and classifier of the reference."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(
        folder, attn_implementation="sdpa", dtype=dtype
    )
    return AutoTokenizer.from_pretrained(folder), model.eval()


def _scores_of(folder: Path, **options: Any) -> Scoring:
    from flodl.hf import AutoModelForSequenceClassification

    return scores_of(AutoModelForSequenceClassification.from_pretrained(folder, **options))


def scores_of(model: Any) -> Scoring:
    """What ``predict`` of a classifier gives, as a tensor."""

    def scores(texts: Sequence[str]) -> Tensor:
        rows = [{one.label: one.score for one in found} for found in model.predict(list(texts))]
        return torch.tensor([[row[label] for label in model.labels] for row in rows])

    return scores


def classified(
    subjects: Mapping[str, Scoring], texts: Sequence[str], rounds: int, ours: str
) -> Measured:
    """Time ways to classify the same texts, and compare their scores."""
    found: dict[str, Tensor] = {}

    def timed(name: str) -> Callable[[], object]:
        subjects[name](texts[:8])
        return lambda: found.update({name: subjects[name](texts)})

    taken = interleaved({name: timed(name) for name in subjects}, rounds, warmup=0)
    worst = max(relative(found[ours], one) for one in found.values())
    return Measured(f"{len(texts)} sentences classified", taken, worst, len(texts))


def embedding(folder: Path, texts: Sequence[str], rounds: int, title: str) -> Measured:
    """Embed texts: beside sentence-transformers, which sorts, and transformers, which does not."""
    import sentence_transformers
    from transformers import AutoModel, AutoTokenizer

    from flodl.hf import SentenceTransformer

    encoder = SentenceTransformer(folder)
    sentence = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    normal = bool(encoder.settings.normalize)
    cut = {"truncation": True, "max_length": sentence.max_seq_length}

    @torch.inference_mode()
    def padded() -> Tensor:
        vectors = []
        for first in range(0, len(texts), 32):
            rows = list(texts[first : first + 32])
            batch = tokenizer(rows, padding=True, return_tensors="pt", **cut)
            mask = batch["attention_mask"][..., None]
            mean = (plain(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            vectors.append(torch.nn.functional.normalize(mean) if normal else mean)
        return torch.cat(vectors)

    subjects: dict[str, Callable[[], Tensor]] = {
        OURS: lambda: encoder.encode(list(texts), convert_to_tensor=True),
        "sentence-transformers": lambda: sentence.encode(list(texts), convert_to_tensor=True),
        f"{REFERENCE}, in the given order": padded,
    }
    found = {name: subject().float() for name, subject in subjects.items()}
    worst = max(relative(found[OURS], one) for one in found.values())
    return Measured(title, interleaved(subjects, rounds, warmup=0), worst, len(texts))


def batches(folder: Path, shapes: Sequence[tuple[int, int]], rounds: int) -> list[Measured]:
    """Time an encoder on full batches without padding."""
    from transformers import AutoModel as Reference

    from flodl.hf import AutoModel

    model = AutoModel.from_pretrained(folder)
    other = Reference.from_pretrained(folder, attn_implementation=None).eval()
    draw = torch.Generator().manual_seed(0)
    return [
        _batch(model, other, torch.randint(1000, 30_000, shape, generator=draw), rounds)
        for shape in shapes
    ]


def _batch(model: Any, other: Any, ids: Tensor, rounds: int) -> Measured:
    mask = torch.ones_like(ids)
    ours = _without_gradients(lambda: model(ids, mask).last_hidden_state)
    theirs = _without_gradients(lambda: other(ids, attention_mask=mask).last_hidden_state)
    difference = relative(ours(), theirs())
    taken = interleaved({OURS: ours, REFERENCE: theirs}, rounds)
    rows, length = ids.shape
    return Measured(f"{type(other).__name__}, {rows} × {length} tokens", taken, difference)


def fill_mask(folder: Path, rounds: int, length: int = 128) -> Measured:
    """Score all words of a large vocabulary for one hidden token."""
    from transformers import AutoModelForMaskedLM as Reference

    from flodl.hf import AutoModelForMaskedLM, BatchEncoding

    model = AutoModelForMaskedLM.from_pretrained(folder)
    other = Reference.from_pretrained(folder, attn_implementation="sdpa").eval()
    ids = torch.randint(5, 250_000, (1, length), generator=torch.Generator().manual_seed(0))
    mask, place = torch.ones_like(ids), torch.tensor([length // 2])
    row = torch.zeros_like(place)
    batch = BatchEncoding({"input_ids": ids, "attention_mask": mask})
    ours = _without_gradients(lambda: model.logits_at(batch, row, place))
    theirs = _without_gradients(lambda: other(ids, attention_mask=mask).logits[row, place])
    difference = relative(ours(), theirs())
    taken = interleaved({OURS: ours, REFERENCE: theirs}, rounds)
    return Measured(f"one hidden token among {length}, 250,002 words", taken, difference)


def _without_gradients(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def called() -> Tensor:
        with torch.inference_mode():
            return function()

    return called
