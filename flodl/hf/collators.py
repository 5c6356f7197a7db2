"""Training data: collators for ``torch.utils.data.DataLoader``, and labels of tokens.

Names, arguments, values and random draws of collators are those of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flodl.hf.batch_encoding import Batch, BatchEncoding, TensorKind, samples_of
from flodl.hf.losses import IGNORED
from flodl.hf.text.call_options import PaddingChoice
from flodl.hf.tokenizer import PreTrainedTokenizerFast


def default_data_collator(
    features: Sequence[Mapping[str, Any]], return_tensors: Literal["pt"] = "pt"
) -> dict[str, Tensor]:
    """Stack rows of equal lengths; ``label`` and ``label_ids`` become ``labels``.

    Values that are texts or None are left out. The first row says which values there are, and
    whether labels are classes (int64) or other numbers (float32).

    Args:
        features: One mapping per row.
        return_tensors: ``"pt"``.

    Raises:
        ValueError: There are no rows, or rows have different lengths, or other values are asked
            for.
    """
    if return_tensors != "pt":
        raise ValueError(f"return_tensors={return_tensors!r}: this collator makes 'pt', tensors")
    if not features:
        raise ValueError("there are no rows to collate")
    batch = {}
    for name, first in features[0].items():
        if first is None or isinstance(first, str):
            continue
        labels = name in ("label", "label_ids")
        dtype = _type_of_labels(name, first) if labels else None
        values = [torch.as_tensor(row[name], dtype=dtype) for row in features]
        if len({value.shape for value in values}) > 1:
            raise ValueError(
                f"rows have different lengths of {name!r}: pad them with "
                "DataCollatorWithPadding(tokenizer)"
            )
        batch["labels" if labels else name] = torch.stack(values)
    return batch


def _type_of_labels(name: str, first: Any) -> torch.dtype | None:
    """The type of labels, by the first: that of classes if it is a whole number."""
    if name == "label_ids":
        if isinstance(first, Tensor):
            return None
        first = first[0]
    one = first.item() if isinstance(first, Tensor) and not first.dim() else first
    return torch.int64 if isinstance(one, int | np.integer) else torch.float32


@dataclass
class DataCollatorWithPadding:
    """Pad the rows of a batch to one width; ``label`` and ``label_ids`` become ``labels``.

    Attributes:
        tokenizer: Pads the rows.
        padding: True or ``"longest"``, ``"max_length"``, or False.
        max_length: The width for ``"max_length"``.
        pad_to_multiple_of: The width is a multiple of this.
        return_tensors: ``"pt"`` or ``"np"``.
    """

    tokenizer: PreTrainedTokenizerFast
    padding: PaddingChoice = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: TensorKind = "pt"

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> BatchEncoding:
        """One batch; see ``PreTrainedTokenizerFast.pad`` for its errors."""
        batch = self.tokenizer.pad(
            features,
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors=self.return_tensors,
        )
        for name in ("label", "label_ids"):
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch


@dataclass
class DataCollatorForTokenClassification:
    """Pad rows and their labels of tokens, from the field ``labels`` or ``label``.

    Attributes:
        tokenizer: Pads the rows.
        padding: True or ``"longest"``, ``"max_length"``, or False.
        max_length: The width for ``"max_length"``.
        pad_to_multiple_of: The width is a multiple of this.
        label_pad_token_id: The label of padding; -100 does not count in the loss.
    """

    tokenizer: PreTrainedTokenizerFast
    padding: PaddingChoice = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = IGNORED

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> BatchEncoding:
        """One batch of tensors; see ``PreTrainedTokenizerFast.pad`` for its errors."""
        name = "label" if features and "label" in features[0] else "labels"
        batch = self.tokenizer.pad(
            [{key: row[key] for key in row if key != name} for row in features],
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors="pt",
        )
        if not features or name not in features[0]:
            return batch
        labels = torch.full(batch["input_ids"].shape, self.label_pad_token_id)
        for row, feature in enumerate(features):
            told = torch.as_tensor(feature[name], dtype=torch.int64)
            if self.tokenizer.padding_side == "right":
                labels[row, : len(told)] = told
            else:
                labels[row, labels.shape[1] - len(told) :] = told
        batch[name] = labels
        return batch


@dataclass
class DataCollatorForLanguageModeling:
    """Pad rows and hide tokens for a model to find (Devlin et al. 2019, section 3.1).

    Attributes:
        tokenizer: Pads the rows, and names the mask token.
        mlm_probability: The part of tokens that are chosen, 0 … 1.
        mask_replace_prob: The part of the chosen tokens that become the mask token.
        random_replace_prob: The part that becomes a random token. The rest stays.
        pad_to_multiple_of: The width is a multiple of this.
        seed: Seed of a generator of its own; None for torch's default generator. In the workers of
            a ``DataLoader`` the number of the worker is added.

    Raises:
        ValueError: A number is not a probability, or the tokenizer has no mask token.
    """

    tokenizer: PreTrainedTokenizerFast
    mlm_probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("mlm_probability", "mask_replace_prob", "random_replace_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be 0 … 1, got {getattr(self, name)}")
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise ValueError("mask_replace_prob and random_replace_prob are more than 1 together")
        if self.tokenizer.mask_token_id is None:
            raise ValueError("the tokenizer has no mask token to hide tokens with")
        self._generator: torch.Generator | None = None

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> BatchEncoding:
        """One batch of tensors with ``labels``: the chosen tokens' ids, -100 elsewhere."""
        if self.seed is not None and self._generator is None:
            worker = torch.utils.data.get_worker_info()
            number = 0 if worker is None else worker.id
            self._generator = torch.Generator().manual_seed(self.seed + number)
        batch = self.tokenizer.pad(
            features, pad_to_multiple_of=self.pad_to_multiple_of, return_tensors="pt"
        )
        special = batch.pop("special_tokens_mask", None)
        batch.pop("offset_mapping", None)
        ids = batch["input_ids"]
        if special is None:
            special = torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids))
        batch["input_ids"], batch["labels"] = self._hidden(ids, special.bool())
        return batch

    def _hidden(self, ids: Tensor, special: Tensor) -> tuple[Tensor, Tensor]:
        """Ids with tokens hidden, and labels; the order of the draws is that of transformers."""
        probability = torch.full(ids.shape, float(self.mlm_probability)).masked_fill(special, 0.0)
        chosen = torch.bernoulli(probability, generator=self._generator).bool()
        labels = ids.masked_fill(~chosen, IGNORED)
        masked = self._draw(ids, self.mask_replace_prob) & chosen
        mask_id = self.tokenizer.mask_token_id
        hidden = ids.masked_fill(masked, 0 if mask_id is None else mask_id)
        if self.mask_replace_prob == 1 or self.random_replace_prob == 0:
            return hidden, labels
        share = self.random_replace_prob / (1 - self.mask_replace_prob)
        exchanged = self._draw(ids, share) & chosen & ~masked
        others = torch.randint(len(self.tokenizer), ids.shape, generator=self._generator)
        return hidden.where(~exchanged, others), labels

    def _draw(self, ids: Tensor, probability: float) -> Tensor:
        full = torch.full(ids.shape, float(probability))
        return torch.bernoulli(full, generator=self._generator).bool()


def align_labels(
    word_labels: Sequence[Sequence[int]], enc: Batch, all_pieces: bool = False
) -> Tensor:
    """Turn labels of words into labels of tokens, for ``token_classification_loss``.

    Words are those that the tokenizer found in the text, ``enc.word_ids(row)``. Many tokenizers
    also split at punctuation, so a text of the words ``["U.S.", "GDP"]`` can have more than two.

    Args:
        word_labels: For each input, the label of each of its words. Rows that are windows of one
            input (``overflow_to_sample_mapping``) share its labels. In pairs, the first text is
            labelled.
        enc: The encoded texts.
        all_pieces: Whether all pieces of a word get its label, or only the first piece.

    Returns:
        Labels ``[B, S]``, int64; -100, which does not count, for all positions without a label.

    Raises:
        ValueError: An input has no labels, or a text has more words than labels.
    """
    samples = samples_of(enc)
    if len(word_labels) <= max(samples, default=-1):
        raise ValueError(
            f"labels of {len(word_labels)} inputs were given for a batch with a row of input "
            f"{max(samples)} (from 0)"
        )
    ids = enc["input_ids"]
    labels = [[IGNORED] * ids.shape[1] for _ in samples]
    # A batch that was not made from texts has no encodings, and knows no words.
    for row, encoding in enumerate(getattr(enc, "encodings", None) or ()):
        known, before = word_labels[samples[row]], None
        for column, (word, text) in enumerate(
            zip(encoding.word_ids, encoding.sequence_ids, strict=True)
        ):
            if word is None or text != 0:
                continue
            if word >= len(known):
                raise ValueError(
                    f"row {row} has a word number {word} (from 0) and only {len(known)} labels: "
                    "label words as the tokenizer divides the text, which is often at punctuation "
                    "too"
                )
            if all_pieces or word != before:
                labels[row][column] = known[word]
            before = word
    return torch.tensor(labels, dtype=torch.int64, device=ids.device).reshape(ids.shape)
