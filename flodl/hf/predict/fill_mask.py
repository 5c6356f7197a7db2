"""Predict the tokens for gaps in a text."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from flodl.hf.batch_encoding import Batch
from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import masked_lm_loss
from flodl.hf.model_call import MaskedLMOutput
from flodl.hf.predict.batching import (
    Batching,
    Part,
    ReadingOptions,
    TextEncoding,
    answered,
    device_of,
    listed_texts,
    need_tokenizer,
)
from flodl.hf.task_heads import LabelsTokens, inputs_of
from flodl.hf.text.call_options import check_options
from flodl.hf.text.source import USUAL
from flodl.hf.tokenizer import PreTrainedTokenizerFast


class MaskFill(NamedTuple):
    """A token for a gap.

    Attributes:
        token: The token as spelled in the vocabulary.
        score: Its probability among all tokens.
        token_id: Its id.
        token_str: The token as text.
        sequence: The whole text with this gap filled; with special tokens if it has other gaps.
    """

    token: str
    score: float
    token_id: int
    token_str: str
    sequence: str


class MaskedLM(LabelsTokens):
    """The words at masks: ``fill_mask``, ``compute_loss``."""

    kind = HeadKind.MLM
    output_class = MaskedLMOutput

    def _loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        return masked_lm_loss(logits, labels)

    def logits_at(self, enc: Batch, rows: Tensor, columns: Tensor) -> Tensor:
        """Logits of single positions; only these are decoded, because decoding is most of the work.

        Args:
            enc: On the device of the model.
            rows: ``[N]``.
            columns: ``[N]``.

        Returns:
            ``[N, V]``.
        """
        graph, prefix = self._graph, self.config.prefix
        encoder = graph.get_submodule(prefix)
        states: Tensor = encoder(**inputs_of(enc, self.config))[rows, columns]
        names = [node.prefix for node in graph.topology.nodes if node.prefix]
        for name in names[names.index(prefix) + 1 :]:
            states = graph.get_submodule(name)(states)
        return states

    def fill_mask(
        self,
        text: str,
        top_k: int = 5,
        *,
        targets: Sequence[str] | None = None,
        **options: Unpack[ReadingOptions],
    ) -> list[list[MaskFill]]:
        """Fill the gaps of one text; see :meth:`fill_mask_batch`.

        Returns:
            For each gap, from left to right, the most probable tokens.
        """
        return _fill(self, "fill_mask", [text], top_k, targets, options)[0]

    def fill_mask_batch(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        *,
        targets: Sequence[str] | None = None,
        **options: Unpack[ReadingOptions],
    ) -> list[list[list[MaskFill]]]:
        """Fill the gaps of texts, each gap as if it were the only one.

        A gap is written as the tokenizer's mask token. Only gaps are decoded.

        Args:
            texts: Texts with at least one gap each.
            top_k: Number of tokens for each gap; there may be fewer.
            targets: Only these are candidates. A target that is not a token is replaced by its
                first piece, with a warning. Scores are still those among all tokens.
            **options: See :class:`~flodl.hf.predict.batching.ReadingOptions`.

        Returns:
            For each text, in order, for each gap from left to right, the tokens; the most probable
            token first.

        Raises:
            TokenizerMissingError: The model has no tokenizer.
            ValueError: A text has no gap or is too long, ``top_k`` is below 1, no target is known,
                or the tokenizer has no mask token.
            TypeError: ``texts`` or ``targets`` is a single string, an entry is not a text, or an
                option is unknown.
        """
        return _fill(self, "fill_mask_batch", texts, top_k, targets, options)


def _fill(
    head: MaskedLM,
    method: str,
    texts: Sequence[str],
    top_k: int,
    targets: Sequence[str] | None,
    options: ReadingOptions,
) -> list[list[list[MaskFill]]]:
    check_options(options, ReadingOptions, method)
    texts = listed_texts(texts, method)
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    tokenizer = need_tokenizer(head, method)
    mask_id = mask_id_of(tokenizer)
    candidates = None if targets is None else _target_ids(tokenizer, targets)

    def filled(part: Part) -> list[list[list[MaskFill]]]:
        batch = part.batch.to(device_of(head._graph))
        gaps = batch.input_ids == mask_id
        ids, counts = batch.input_ids.tolist(), gaps.sum(dim=1).tolist()
        if 0 in counts:
            number = min(part.inputs[row] for row, count in enumerate(counts) if not count)
            mask = tokenizer.inner.id_to_token(mask_id)
            raise ValueError(f"text {number} has no {mask} to fill in")
        rows, columns = gaps.nonzero(as_tuple=True)
        best = _best(head.logits_at(batch, rows, columns), candidates, top_k)
        fills: list[list[list[MaskFill]]] = [[] for _ in ids]
        for row, column, scores, tokens in zip(rows.tolist(), columns.tolist(), *best, strict=True):
            alone = counts[row] == 1
            fills[row].append(_spelled(tokenizer, ids[row], column, alone, scores, tokens))
        return fills

    encoding = TextEncoding.of(tokenizer, options)
    return answered(head, texts, encoding, Batching.of(options), filled)


def _best(
    logits: Tensor, candidates: list[int] | None, top_k: int
) -> tuple[list[list[float]], list[list[int]]]:
    """Probabilities and ids of the best tokens of each gap.

    Args:
        logits: ``[G, V]``.
        candidates: The only allowed ids; None for all.
        top_k: Maximum number of tokens.
    """
    logits = logits.float()
    # Compute probabilities only for the tokens shown, not for a whole vocabulary per gap.
    total = logits.logsumexp(dim=-1, keepdim=True)
    index = None if candidates is None else torch.tensor(candidates, device=logits.device)
    looked_at = logits if index is None else logits[:, index]
    best = looked_at.topk(min(top_k, looked_at.shape[1]), dim=-1)
    ids = best.indices if index is None else index[best.indices]
    return (best.values - total).exp().tolist(), ids.tolist()


def _target_ids(tokenizer: PreTrainedTokenizerFast, targets: Sequence[str]) -> list[int]:
    targets = listed_texts(targets, "fill_mask")
    found: dict[int, None] = {}
    for target in targets:
        number = tokenizer.inner.token_to_id(target)
        if number is None:
            pieces = tokenizer.inner.encode(target, add_special_tokens=False)
            instead = f"its first piece {pieces.tokens[0]!r} is taken" if pieces.ids else "left out"
            warnings.warn(f"target {target!r} is not a token: {instead}", stacklevel=4)
            number = pieces.ids[0] if pieces.ids else None
        if number is not None:
            found[number] = None
    if not found:
        raise ValueError(f"none of the targets is a token: {list(targets)}")
    return list(found)


def _spelled(
    tokenizer: PreTrainedTokenizerFast,
    ids: list[int],
    column: int,
    alone: bool,
    scores: list[float],
    tokens: list[int],
) -> list[MaskFill]:
    """The tokens for one gap, with the text that each makes.

    Args:
        tokenizer: Spells tokens.
        ids: The row of the gap.
        column: The place of the gap.
        alone: Whether it is the only gap. If others remain, their mask tokens must be shown.
        scores: Probability of each token.
        tokens: The ids of the tokens.
    """
    inner, pad_id = tokenizer.inner, tokenizer.pad_id
    rows = [[*ids[:column], token, *ids[column + 1 :]] for token in tokens]
    without_padding = [[number for number in row if number != pad_id] for row in rows]
    texts = inner.decode_batch([[token] for token in tokens], skip_special_tokens=False)
    sequences = inner.decode_batch(without_padding, skip_special_tokens=alone)
    return [
        MaskFill(inner.id_to_token(token) or "", score, token, text, sequence)
        for token, score, text, sequence in zip(tokens, scores, texts, sequences, strict=True)
    ]


def mask_id_of(tokenizer: PreTrainedTokenizerFast) -> int:
    """The id of the mask token; if the files name none, one of the usual spellings.

    Raises:
        ValueError: The tokenizer has no mask token.
    """
    number = tokenizer.mask_token_id
    if number is None:
        raise ValueError(
            f"the tokenizer has no mask token: its files name none, and its vocabulary has neither "
            f"{' nor '.join(USUAL['mask'])}"
        )
    return number
