"""Compare losses of flodl and ``transformers``, on rows that are padded on either side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flodl.graph import Graph
from flodl.hf.auto import class_of
from flodl.hf.encoded import EncodedBatch
from flodl.hf.families import EncoderConfig
from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import IGNORED
from flodl.hf.reference import plain_attention
from flodl.hf.task_heads import inputs_of

LOSS_TOLERANCE = 1e-6

_LENGTHS = (12, 5, 9, 1)
"""Tokens of the rows; every second row is padded on the left."""


class LossCell(NamedTuple):
    """One loss of a head.

    Attributes:
        name: Its name, which says what is special about it.
        labels: The arguments of the reference and of ``compute_loss``, by name.
        problem_type: Problem type of a classifier of rows.
    """

    name: str
    labels: dict[str, Tensor]
    problem_type: str | None = None


def batch_for(config: EncoderConfig) -> EncodedBatch:
    """Rows of several lengths, padded on the right and on the left, with both segments.

    The rows are always the same for the same vocabulary.
    """
    pad = config.pad_token_id or 0
    first = pad + 1
    generator = torch.Generator().manual_seed(config.vocab_size)
    length = max(_LENGTHS)
    ids = torch.full((len(_LENGTHS), length), pad)
    mask = torch.zeros_like(ids)
    for row, count in enumerate(_LENGTHS):
        place = slice(length - count, length) if row % 2 else slice(0, count)
        ids[row, place] = torch.randint(first, config.vocab_size, (count,), generator=generator)
        mask[row, place] = 1
    types = ((torch.arange(length) >= length // 2).long() * mask).contiguous()
    return EncodedBatch(ids, mask, types)


def loss_cells(kind: HeadKind, config: EncoderConfig, enc: EncodedBatch) -> tuple[LossCell, ...]:
    """All losses of a head, with labels for a batch; empty without a head.

    Args:
        kind: The head.
        config: Gives the number of labels or words.
        enc: The batch.
    """
    rows, length = enc.input_ids.shape
    row, column = torch.arange(rows), torch.arange(length)
    classes = len(config.labels_for())
    match kind:
        case HeadKind.SEQCLS:
            targets = ((row[:, None] + torch.arange(classes)) % 3).float()
            return (
                LossCell("single", {"labels": row % classes}, "single_label_classification"),
                LossCell("multi", {"labels": (targets > 0).float()}, "multi_label_classification"),
                LossCell("regression", {"labels": targets - 0.5}, "regression"),
            )
        case HeadKind.QA:
            # One start and one end beyond the row; they do not count.
            starts, ends = row % length, (row + 2) % length
            starts[0], ends[-1] = length, length + 3
            return (LossCell("answers", {"start_positions": starts, "end_positions": ends}),)
        case HeadKind.TOKCLS | HeadKind.MLM:
            count = classes if kind is HeadKind.TOKCLS else config.vocab_size
            labels = ((row[:, None] * 7 + column) % count).masked_fill(column % 4 == 3, IGNORED)
            tokens = labels.masked_fill(enc.attention_mask == 0, IGNORED)
            return (
                LossCell("tokens", {"labels": tokens}),
                LossCell("padding", {"labels": labels}),
            )
    return ()


def loss_differences(
    model: nn.Module, graph: Graph, config: EncoderConfig, enc: EncodedBatch
) -> dict[str, float]:
    """The differences between the losses of the two sides, computed in float64.

    Both models are in float64 afterwards. In float32, rounding alone changes the loss of a large
    model by more than :data:`LOSS_TOLERANCE`.

    Args:
        model: The model of the reference.
        graph: The same model in flodl.
        config: The configuration of the model.
        enc: A batch, on the CPU.

    Returns:
        Name of a loss -> absolute difference; empty without a head.
    """
    known = HeadKind.of_class(config.architectures[0]) if config.architectures else None
    kind = known or HeadKind.BASE
    cells = loss_cells(kind, config, enc)
    if not cells:
        return {}
    head: Any = class_of(config, kind)(config, graph.double())
    reference: Any = model.double()
    inputs = {name: one for name, one in inputs_of(enc, config).items() if name != "position_ids"}
    found, before = {}, reference.config.problem_type
    with torch.inference_mode(), plain_attention():
        for cell in cells:
            reference.config.problem_type = cell.problem_type
            chosen = {} if cell.problem_type is None else {"problem_type": cell.problem_type}
            theirs = reference(**inputs, **cell.labels).loss
            ours = head.compute_loss(enc, **cell.labels, **chosen)
            found[cell.name] = float((ours - theirs).abs())
    reference.config.problem_type = before
    return found


def losses_as_text(losses: Mapping[str, float]) -> str:
    """The largest difference, as text for one line; empty without losses."""
    return f"  loss {max(losses.values()):.2e}" if losses else ""
