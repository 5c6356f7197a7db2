"""Find answers: search the most probable spans of tokens, and widen them to words."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from flodl.hf.encoded import EncodedBatch

# Score before the softmax of positions that cannot be part of an answer. They vanish; unlike with
# -inf, the result is a number even if there are no other positions.
_EXCLUDED = -10000.0


class Spans(NamedTuple):
    """The best spans of each row, best first.

    Attributes:
        starts: First token of each span ``[B, K]``.
        ends: Last token of each span ``[B, K]``.
        scores: Probability of the start times that of the end ``[B, K]``; negative if a row has
            fewer than K spans.
        null_scores: The same for the position that means "there is no answer" ``[B]``.
    """

    starts: Tensor
    ends: Tensor
    scores: Tensor
    null_scores: Tensor


def best_spans(logits: Tensor, context: Tensor, null: Tensor, count: int, longest: int) -> Spans:
    """Find the most probable spans.

    Start and end each have a distribution over the context and the null position. The probability
    of a span is that of its start times that of its end. Work and memory grow with ``S * longest``.

    Args:
        logits: Start and end, ``[B, S, 2]``.
        context: The positions that an answer can contain, boolean ``[B, S]``.
        null: The position that means no answer, boolean ``[B, S]``, at most one per row.
        count: Number of spans per row, K.
        longest: Maximum number of tokens of a span.
    """
    length = logits.shape[1]
    reach = min(longest, length)
    excluded = ~(context | null)[..., None]
    probabilities = logits.float().masked_fill(excluded, _EXCLUDED).softmax(dim=1)
    null_scores = probabilities.masked_fill(~null[..., None], 0.0).sum(dim=1).prod(dim=-1)
    # [B, S, reach]: one row per start, one column per number of tokens after it.
    ends = F.pad(probabilities[..., 1], (0, reach - 1)).unfold(1, reach, 1)
    inside = context[..., None] & F.pad(context, (0, reach - 1)).unfold(1, reach, 1)
    scores = (probabilities[..., :1] * ends).masked_fill(~inside, -1.0).flatten(1)
    best = scores.topk(min(count, scores.shape[1]), dim=1)
    starts = best.indices // reach
    # Entries that are not spans may end behind the row.
    ends_at = (starts + best.indices % reach).clamp(max=length - 1)
    return Spans(starts, ends_at, best.values, null_scores)


def answer_positions(enc: EncodedBatch) -> tuple[Tensor, Tensor]:
    """The positions of answers: the tokens of the second text, and the first special token.

    Args:
        enc: Pairs of a question and a context.

    Returns:
        Context and null position, each boolean ``[B, S]``.
    """
    attended = enc.attention_mask != 0
    special = attended & (enc.special_mask != 0)
    first = special & (special.cumsum(dim=1) == 1)
    return attended & (enc.sequence_ids == 1), first


def whole_words(enc: EncodedBatch, spans: Spans) -> Spans:
    """Widen spans to the words in which they begin and end.

    A span stays as it is if the tokenizer knows no word there.

    Args:
        enc: The rows.
        spans: Their spans.
    """
    words = enc.word_ids
    if words.shape[1] == 0:
        return spans
    texts = enc.sequence_ids
    same = (words[:, 1:] == words[:, :-1]) & (texts[:, 1:] == texts[:, :-1])
    parted = F.pad(~same, (1, 1), value=True)
    columns = torch.arange(words.shape[1], device=words.device).expand_as(words)
    # The last start of a word at or before each token, and the next end at or after it.
    first = columns.where(parted[:, :-1], columns.new_zeros(())).cummax(dim=1).values
    beyond = columns.new_full((), words.shape[1])
    last = columns.where(parted[:, 1:], beyond).flip(1).cummin(dim=1).values.flip(1)
    known = (words.gather(1, spans.starts) >= 0) & (words.gather(1, spans.ends) >= 0)
    return spans._replace(
        starts=first.gather(1, spans.starts).where(known, spans.starts),
        ends=last.gather(1, spans.ends).where(known, spans.ends),
    )
