"""Compare the outputs of flodl and ``transformers``, and keep both as fixtures."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fdl.base.files import replacing
from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.errors import need
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import Cell, source_of
from flodl.hf.opening import Opened, open_model
from flodl.hf.reference import (
    LOSS_TOLERANCE,
    Outputs,
    batch_for,
    largest_difference,
    load,
    loss_differences,
    losses_as_text,
    outputs_of_graph,
    outputs_of_reference,
    transformers,
)
from flodl.hf.task_heads import inputs_of
from flodl.hf.verify import TOLERANCE


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between the outputs of one cell.

    Attributes:
        cell: Its name.
        largest: The largest absolute difference at positions that are not padding.
        losses: The difference of each loss of the head, by its name, with padding; empty for an
            encoder without a head.
    """

    cell: str
    largest: float
    losses: Mapping[str, float]

    @property
    def passed(self) -> bool:
        """Whether outputs are within 1e-5 and losses within 1e-6."""
        near = all(apart <= LOSS_TOLERANCE for apart in self.losses.values())
        return near and self.largest <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Parity:
    """The differences between the outputs of several cells."""

    cells: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Whether all cells are within the tolerances."""
        return all(one.passed for one in self.cells)

    def as_text(self) -> str:
        """One line per cell."""
        return "".join(
            f"{'PASS' if one.passed else 'FAIL'}  {one.cell:<20} {one.largest:.2e}"
            f"{losses_as_text(one.losses)}\n"
            for one in self.cells
        )


def parity(cells: Sequence[Cell], *, synthetic: bool = False, out: Path | None = None) -> Parity:
    """Compare the outputs of flodl and of the reference on a batch of mixed lengths.

    Args:
        cells: The models.
        synthetic: Make small random models instead of downloading those of the Hub.
        out: Folder that gets ``<cell>.safetensors`` with the inputs and the reference's outputs.

    Raises:
        MissingDependencyError: ``transformers`` is not installed.
        FlodlError: A model cannot be obtained.
    """
    transformers()
    found = []
    with tempfile.TemporaryDirectory(prefix="flodl-hf-") as folder:
        for cell in cells:
            src = source_of(cell, Path(folder) / cell.name, synthetic=synthetic)
            found.append(_compared(cell, src, out))
    return Parity(tuple(found))


def _compared(cell: Cell, src: str, out: Path | None) -> Difference:
    opened = open_model(src, HeadKind(cell.head), {"dtype": "float32"})
    enc = batch_for(opened.config)
    with tempfile.TemporaryDirectory(prefix="flodl-hf-") as folder:
        # The reference gets the class and the labels that were chosen.
        (Path(folder) / "config.json").write_text(opened.config.to_json_string())
        weights = opened.checkpoint.weight_files().files[0].parent
        model = load(weights, Path(folder)).model
    theirs = outputs_of_reference(model, inputs_of(enc, opened.config))
    if out is not None:
        _keep(out / f"{cell.name}.safetensors", opened, enc, theirs)
    ours = outputs_of_graph(opened.graph, opened.config, enc)
    largest = largest_difference(ours, theirs, enc.attention_mask)
    return Difference(cell.name, largest, loss_differences(model, opened.graph, opened.config, enc))


def _keep(target: Path, opened: Opened, enc: BatchEncoding, theirs: Outputs) -> None:
    """Write one fixture: the inputs, the reference's outputs, and their origin."""
    tensors: dict[str, Tensor] = {
        "inputs.input_ids": enc.input_ids,
        "inputs.attention_mask": enc.attention_mask,
        "inputs.token_type_ids": enc.token_type_ids,
        "inputs.position_ids": torch.arange(enc.input_ids.shape[1]).expand_as(enc.input_ids),
        **{f"outputs.{name}": tensor for name, tensor in theirs.items()},
    }
    metadata = {
        "source_model": "synthetic" if opened.checkpoint.is_local else opened.checkpoint.name,
        "source_sha": opened.checkpoint.commit or "",
        "torch_version": str(torch.__version__),
        "transformers_version": str(transformers().__version__),
        "sdpa_backend": "math",
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    content = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    with replacing(target) as file:
        file.write(need("safetensors.torch", "hf-offline").save(content, metadata=metadata))
