"""Batches for models, made of ids or of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.predict.batching import TextEncoding
from flodl.hf.tokenizer import PreTrainedTokenizerFast


def batch_of_ids(input_ids: Tensor, attention_mask: Tensor, **more: Tensor) -> BatchEncoding:
    return BatchEncoding({"input_ids": input_ids, "attention_mask": attention_mask, **more})


def token_fact(batch: BatchEncoding, name: str) -> Tensor:
    """A fact about every token, from the encodings of a batch; -1 for None."""
    rows = [getattr(row, name) for row in batch.encodings or ()]
    return torch.tensor([[-1 if fact is None else fact for fact in row] for row in rows])


def encoded(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str | tuple[str, str]], **options: Any
) -> BatchEncoding:
    """Texts as ``predict`` encodes them, all in one batch."""
    encoding = TextEncoding(tokenizer, **options)
    rows, samples = encoding(texts)
    batch = encoding.batch(rows)
    batch["overflow_to_sample_mapping"] = torch.tensor(samples)
    return batch
