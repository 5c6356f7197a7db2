"""The same models in ``transformers``, to compare with; only verification imports this module."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flodl.graph import Graph
from flodl.hf.auto import class_of
from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.errors import need
from flodl.hf.families import EncoderConfig
from flodl.hf.head_kind import HeadKind, saved_head
from flodl.hf.losses import IGNORED
from flodl.hf.task_heads import inputs_of

Outputs = dict[str, Tensor]
"""``last_hidden_state`` and ``pooler_output``, ``logits``, or ``start_logits``, ``end_logits``."""

LOSS_TOLERANCE = 1e-6

_LENGTHS = (12, 5, 9, 1)
"""Tokens of the rows; every second row is padded on the left."""

_BY_POSITION = ("last_hidden_state", "start_logits", "end_logits")
_WEIGHT_SPREAD, _BIAS_SPREAD, _NORM_SPREAD = 0.05, 0.1, 0.1


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model of the reference, and its report on the weights.

    Attributes:
        model: The model, in float32 and evaluation mode.
        missing: Tensors it had to initialise, sorted.
        unexpected: Tensors it had no place for, sorted.
    """

    model: nn.Module
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def transformers() -> Any:
    """The package, with its messages switched off.

    Raises:
        MissingDependencyError: It is not installed.
    """
    package = need("transformers", "hf-verify")
    package.logging.set_verbosity_error()
    package.logging.disable_progress_bar()
    return package


def load(weights: Path, config: Path) -> Loaded:
    """Load a directory as the class that its configuration names, in float32.

    Args:
        weights: Directory of the weights.
        config: Directory of the configuration.

    Raises:
        MissingDependencyError: ``transformers`` is not installed.
    """
    package = transformers()
    settings = package.AutoConfig.from_pretrained(config)
    made = getattr(package, settings.architectures[0])
    model, info = made.from_pretrained(
        weights, config=settings, dtype=torch.float32, output_loading_info=True
    )
    for parameter in model.parameters():
        # Mapped tensors are aligned as in the file, and the last bit of a product depends on that.
        parameter.data = parameter.data.clone()
    wrong = {*info["missing_keys"], *(key for key, *_ in info.get("mismatched_keys", ()))}
    return Loaded(model.eval(), tuple(sorted(wrong)), tuple(sorted(info["unexpected_keys"])))


def outputs_of_reference(model: nn.Module, inputs: Mapping[str, Tensor]) -> Outputs:
    """Run a model of the reference without gradients, with plain attention."""
    given = {name: tensor for name, tensor in inputs.items() if name != "position_ids"}
    return _outputs(model, given)


def outputs_of_graph(graph: Graph, config: EncoderConfig, enc: BatchEncoding) -> Outputs:
    """Run a model of flodl in the same way; outputs have the same names."""
    return _outputs(class_of(config, saved_head(config))(config, graph), inputs_of(enc, config))


def _outputs(model: nn.Module, inputs: Mapping[str, Tensor]) -> Outputs:
    with torch.inference_mode(), plain_attention():
        found = model(**inputs)
    names = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")
    return {name: found[name] for name in names if found.get(name) is not None}


@contextmanager
def plain_attention() -> Iterator[None]:
    """Compute attention by its formula, so that rounding does not depend on the kernels."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


def largest_difference(ours: Outputs, theirs: Outputs, mask: Tensor | None = None) -> float:
    """The largest absolute difference of the outputs that both have; infinite if shapes differ.

    Args:
        ours: The outputs of one side.
        theirs: The outputs of the other side.
        mask: ``[B, S]``; 0 at positions that do not count. An output made only from the first
            position of a row counts if that position counts.
    """
    worst = 0.0
    for name in sorted(set(ours) & set(theirs)):
        left, right = ours[name].double(), theirs[name].double()
        if left.shape != right.shape:
            return float("inf")
        apart = (left - right).abs()
        if mask is not None:
            by_position = name in _BY_POSITION or left.dim() == 3
            apart = apart[mask.bool()] if by_position else apart[mask[:, 0].bool()]
        found = float(apart.max()) if apart.numel() else 0.0
        if math.isnan(found):
            return found
        worst = max(worst, found)
    return worst if set(ours) & set(theirs) else float("inf")


def batch_of_prompt(prompt: str, config: EncoderConfig) -> BatchEncoding:
    """A batch of one row for a model without a tokenizer: one id per byte of the text."""
    first = 1 + max(config.pad_token_id or 0, 2)
    room = max(config.vocab_size - first, 1)
    limit = config.max_position_embeddings - first
    ids = [first + byte % room for byte in prompt.encode()][: max(limit, 1)] or [first]
    row = torch.tensor([ids], dtype=torch.int64)
    return BatchEncoding({"input_ids": row, "attention_mask": torch.ones_like(row)})


def make_synthetic(config: EncoderConfig, kind: HeadKind, folder: Path, name: str) -> None:
    """Save a random checkpoint of the reference.

    Every parameter is drawn: new models have zero biases and LayerNorms of one, which would hide a
    missing tensor. The same name gives the same values.

    Args:
        config: Its configuration.
        kind: Its head.
        folder: The directory to write.
        name: Determines the values.

    Raises:
        MissingDependencyError: ``transformers`` is not installed.
    """
    package = transformers()
    folder.mkdir(parents=True, exist_ok=True)
    architecture = config.class_name(kind)
    (folder / "config.json").write_text(
        config.replace(architectures=(architecture,)).to_json_string()
    )
    model = getattr(package, architecture)(package.AutoConfig.from_pretrained(folder))
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(_drawn(key, parameter, generator))
    model.save_pretrained(folder)


def _drawn(key: str, like: Tensor, generator: torch.Generator) -> Tensor:
    values = torch.randn(like.shape, generator=generator)
    if key.endswith("bias"):
        return values * _BIAS_SPREAD
    is_norm = "norm" in key.lower() and like.dim() == 1
    return 1 + values * _NORM_SPREAD if is_norm else values * _WEIGHT_SPREAD


# --- Losses ------------------------------------------------------------------------------------


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


def batch_for(config: EncoderConfig) -> BatchEncoding:
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
    return BatchEncoding({"input_ids": ids, "attention_mask": mask, "token_type_ids": types})


def loss_cells(kind: HeadKind, config: EncoderConfig, enc: BatchEncoding) -> tuple[LossCell, ...]:
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
    model: nn.Module, graph: Graph, config: EncoderConfig, enc: BatchEncoding
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
    kind = saved_head(config)
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
