"""Predict the tokens for gaps in a text."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flodl.hf.batch_encoding import Batch, BatchEncoding
from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import masked_lm_loss
from flodl.hf.model_call import MaskedLMOutput
from flodl.hf.predict.batching import (
    Batching,
    TextEncoding,
    encoded_batches,
    listed_texts,
    need_tokenizer,
    running,
)
from flodl.hf.task_heads import LabelsTokens, inputs_of
from flodl.hf.text.call_options import TruncationChoice
from flodl.hf.tokenizer import PreTrainedTokenizerFast

_USUAL_MASKS = ("[MASK]", "<mask>")


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
        truncation: TruncationChoice = False,
        max_length: int | None = None,
    ) -> list[list[MaskFill]]:
        """Fill the gaps of one text; see :meth:`fill_mask_batch`.

        Returns:
            For each gap, from left to right, the most probable tokens.
        """
        encoding = TextEncoding(need_tokenizer(self, "fill_mask"), truncation, max_length)
        texts = listed_texts([text], "fill_mask")
        return _fill(self, texts, encoding, top_k, targets, Batching())[0]

    def fill_mask_batch(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        *,
        targets: Sequence[str] | None = None,
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
    ) -> list[list[list[MaskFill]]]:
        """Fill the gaps of texts, each gap as if it were the only one.

        A gap is written as the tokenizer's mask token. Only gaps are decoded.

        Args:
            texts: Texts with at least one gap each.
            top_k: Number of tokens for each gap; there may be fewer.
            targets: Only these are candidates. A target that is not a token is replaced by its
                first piece, with a warning. Scores are still those among all tokens.
            truncation: Whether texts that are too long are cut; otherwise they raise an error.
            max_length: Tokens to cut to; None for the limit of the model.
            batch_size: See :class:`Batching`.
            max_tokens: See :class:`Batching`.
            bucket: See :class:`Batching`.

        Returns:
            For each text, in order, for each gap from left to right, the tokens; the most probable
            token first.

        Raises:
            TokenizerMissingError: The model has no tokenizer.
            ValueError: A text has no gap or is too long, ``top_k`` is below 1, no target is known,
                or the tokenizer has no mask token.
            TypeError: ``texts`` or ``targets`` is a single string, or an entry is not a text.
        """
        texts = listed_texts(texts, "fill_mask_batch")
        encoding = TextEncoding(need_tokenizer(self, "fill_mask_batch"), truncation, max_length)
        batching = Batching(batch_size, max_tokens, bucket)
        return _fill(self, texts, encoding, top_k, targets, batching)


def _fill(
    head: MaskedLM,
    texts: Sequence[str],
    encoding: TextEncoding,
    top_k: int,
    targets: Sequence[str] | None,
    batching: Batching,
) -> list[list[list[MaskFill]]]:
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    tokenizer = encoding.tokenizer
    mask_id = mask_id_of(tokenizer)
    candidates = None if targets is None else _target_ids(tokenizer, targets)
    fills: list[list[list[MaskFill]]] = [[] for _ in texts]
    with running(head._graph) as device:
        for inputs, _, batch in encoded_batches(texts, encoding, batching.on(device)):
            gaps = batch.input_ids == mask_id
            _check_gaps(gaps, inputs, tokenizer.inner.id_to_token(mask_id))
            rows, columns = gaps.nonzero(as_tuple=True)
            logits = head.logits_at(batch.to(device), rows.to(device), columns.to(device))
            scores, ids = _best(logits, candidates, top_k)
            spelling = _Spelling(tokenizer, batch, rows.tolist(), columns.tolist())
            for row, gap in zip(rows.tolist(), spelling.fills(scores, ids), strict=True):
                fills[inputs[row]].append(gap)
    return fills


def _check_gaps(gaps: Tensor, inputs: Sequence[int], mask: str | None) -> None:
    without = [inputs[row] for row in (~gaps.any(dim=1)).nonzero()[:, 0].tolist()]
    if without:
        raise ValueError(f"text {min(without)} has no {mask} to fill in")


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


class _Spelling:
    """Builds the texts with filled gaps of one batch.

    Args:
        tokenizer: Spells tokens.
        batch: The texts.
        rows: Row of each gap.
        columns: Column of each gap.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        batch: BatchEncoding,
        rows: list[int],
        columns: list[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._ids = batch.input_ids.tolist()
        self._gaps = list(zip(rows, columns, strict=True))
        self._single = {row for row in rows if rows.count(row) == 1}

    def fills(self, scores: list[list[float]], ids: list[list[int]]) -> list[list[MaskFill]]:
        """One list of fills per gap, given probabilities and ids of each."""
        inner = self._tokenizer.inner
        spelled: list[list[MaskFill]] = []
        for (row, column), gap_scores, gap_ids in zip(self._gaps, scores, ids, strict=True):
            texts = inner.decode_batch([[token] for token in gap_ids], skip_special_tokens=False)
            # If other gaps remain, their mask tokens must be shown.
            sequences = inner.decode_batch(
                [self._filled(row, column, token) for token in gap_ids],
                skip_special_tokens=row in self._single,
            )
            spelled.append(
                [
                    MaskFill(inner.id_to_token(token) or "", score, token, text, sequence)
                    for token, score, text, sequence in zip(
                        gap_ids, gap_scores, texts, sequences, strict=True
                    )
                ]
            )
        return spelled

    def _filled(self, row: int, column: int, token: int) -> list[int]:
        ids = self._ids[row]
        whole = [*ids[:column], token, *ids[column + 1 :]]
        return [number for number in whole if number != self._tokenizer.pad_id]


def mask_id_of(tokenizer: PreTrainedTokenizerFast) -> int:
    """The id of the mask token; if the files name none, one of the usual spellings.

    Raises:
        ValueError: The tokenizer has no mask token.
    """
    if tokenizer.mask_token_id is not None:
        return tokenizer.mask_token_id
    for token in _USUAL_MASKS:
        number = tokenizer.inner.token_to_id(token)
        if number is not None:
            return number
    raise ValueError(
        f"the tokenizer has no mask token: its files name none, and its vocabulary has neither "
        f"{' nor '.join(_USUAL_MASKS)}"
    )
