"""A model's checkpoint with all the state that a training needs to resume exactly.

To other readers the file is a checkpoint of the model. The rest is stored in two places: tensors
whose names begin with ``.training/``, and the metadata string ``training``. That string is a JSON
object in the form of :mod:`flodl.checkpoint.values`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flodl.checkpoint.container import (
    EXTRA_PREFIX,
    TRAINING,
    TRAINING_PREFIX,
    Container,
    Entry,
)
from flodl.checkpoint.extra_state import extra_name, extra_text, stored_extra, tensor_finder
from flodl.checkpoint.files import is_compressed, read_file, writing
from flodl.checkpoint.forms import Parted
from flodl.checkpoint.store import check_hash, checkpoint_strings, describe_misfits, write_parted
from flodl.checkpoint.values import decode, encode
from flodl.errors import CheckpointError, ShapeMismatch

_OWN_PREFIXES = (TRAINING_PREFIX, EXTRA_PREFIX)
_FIELDS = ("position", "optimizer", "random", "carried", "observed", "registered", "extra")


def describe_training(facts: Mapping[str, object], tensors: dict[str, Tensor]) -> dict[str, object]:
    """Return facts as JSON data; their tensors are collected under names with the reserved prefix.

    Raises:
        ValueError: A fact contains an object that a checkpoint cannot keep.
    """
    return {
        name: encode(value, f"{TRAINING_PREFIX}{name}", tensors) for name, value in facts.items()
    }


def save_training_file(
    path: str | os.PathLike[str],
    named: Mapping[str, Tensor],
    description: Mapping[str, object] | None,
    hash: str | None,
    *,
    label: str,
    config: Mapping[str, Any] | None,
    epoch: int,
    metrics: Mapping[str, float],
    metadata: Mapping[str, str],
    extra_state: Mapping[str, object],
) -> None:
    """Write the file atomically.

    Args:
        path: Where to write.
        named: Tensors of the model by qualified name, and those of the training.
        description: The rest of the training's state, as JSON data; None leaves it out.
        hash: Structural hash of the model.
        label: Name of the model.
        config: As for :func:`~flodl.checkpoint.save_checkpoint_file`.
        epoch: As for :func:`~flodl.checkpoint.save_checkpoint_file`.
        metrics: As for :func:`~flodl.checkpoint.save_checkpoint_file`.
        metadata: As for :func:`~flodl.checkpoint.save_checkpoint_file`.
        extra_state: Described extra states of modules, whose tensors are among ``named``.

    Raises:
        CheckpointError: The file cannot be written.
        ValueError: A tensor cannot be stored.
    """
    strings = checkpoint_strings(
        hash, label, config=config, epoch=epoch, metrics=metrics, metadata=metadata
    )
    strings |= extra_text(extra_state)
    if description is not None:
        strings[TRAINING] = json.dumps(description, separators=(",", ":"), allow_nan=False)
    with writing(path) as dest:
        write_parted(dest, Parted.of(named), strings, rewindable=not is_compressed(path))


@dataclass(frozen=True, slots=True)
class TrainingFile:
    """The content of such a file, read and checked for consistency.

    Attributes:
        where: The file, for messages.
        container: Header and tensors.
        description: The state of the training; its values are not decoded yet.
    """

    where: str
    container: Container
    description: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TrainingFile:
        """Read a file.

        Raises:
            CheckpointError: The file is unreadable or damaged, or holds only a model.
        """
        where = f"checkpoint {os.fspath(path)}"
        container = read_file(path)
        text = container.header.metadata.get(TRAINING)
        if text is None:
            raise CheckpointError(
                f"{where} holds a model and no state of a training to resume; a run keeps that in "
                "its last.fdl. To begin with these weights, load them in the model factory"
            )
        try:
            description = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise CheckpointError(f"{where} has a damaged training state: {problem}") from None
        fields = description.keys() if isinstance(description, dict) else ()
        missing = [name for name in _FIELDS if name not in fields]
        if missing:
            raise CheckpointError(
                f"{where} has a damaged training state, or one of another version of flodl: it "
                f"lacks {', '.join(missing)}"
            )
        return cls(where, container, description)

    def value(self, field: str) -> Any:
        """Decode one field; its tensors are copies.

        Raises:
            ValueError: The field is damaged.
        """
        return decode(self.description[field], self.tensor)

    def tensor(self, name: str) -> Tensor:
        """Copy a tensor of the training, so that the file need not stay mapped.

        Raises:
            ValueError: The file has no tensor with this name.
        """
        return tensor_finder(self.container, TRAINING_PREFIX)(name)

    def model_values(
        self, model: Mapping[str, Tensor], hash: str | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Pair every tensor of a model with its value in the file.

        Parameters must match exactly. Buffers may have another shape or type.

        Args:
            model: Tensors by qualified name, including further names of shared ones.
            hash: Structural hash of the model.

        Returns:
            ``(tensor of the model, value in the file)``; nothing has been copied yet.

        Raises:
            ArchitectureMismatch: Both sides have a structural hash and they differ.
            ShapeMismatch: Tensors have the same name but another shape.
            CheckpointError: One side has tensors that the other lacks, or of another dtype.
        """
        header = self.container.header
        check_hash(header.metadata.get("structural_hash", ""), hash)
        entries = self._entries()
        stored = {entry.name: entry for entry in header.model_entries}
        stored |= {alias: entries[name] for alias, name in header.aliases.items()}
        self._check_names(stored, model)
        fixed = {name: one for name, one in model.items() if isinstance(one, nn.Parameter)}
        misfits = [name for name, tensor in fixed.items() if stored[name].shape != tensor.shape]
        if misfits:
            raise ShapeMismatch(describe_misfits(misfits, stored, model))
        for name, tensor in model.items():
            kept, own = _kind(stored[name]), _kind(tensor)
            if kept != own and (name in fixed or stored[name].layout is not tensor.layout):
                raise CheckpointError(
                    f"{self.where} cannot be resumed: {name} is {kept} in the file and {own} in "
                    "the model; build the model the way it was built"
                )
        return [(tensor, self.container.tensor(stored[name])) for name, tensor in model.items()]

    def extra_states(self, modules: Mapping[str, nn.Module]) -> dict[str, Any]:
        """Return the extra states of modules, by path.

        Raises:
            CheckpointError: One side has extra state that the other lacks, or it is damaged.
        """
        states = stored_extra(self.container)
        own, kept = map(extra_name, modules), map(extra_name, states)
        self._check_names(dict.fromkeys(kept), dict.fromkeys(own))
        return states

    def _check_names(self, stored: Mapping[str, object], model: Mapping[str, object]) -> None:
        missing = [name for name in model if name not in stored]
        surplus = [
            name for name in stored if name not in model and not name.startswith(_OWN_PREFIXES)
        ]
        if missing or surplus:
            facts = [("lacks", missing), ("has besides", surplus)]
            told = "; ".join(
                f"the file {verb} {', '.join(names[:3])}{' and more' if names[3:] else ''}"
                for verb, names in facts
                if names
            )
            raise CheckpointError(
                f"{self.where} cannot be resumed with this model: {told}; build the model the way "
                "it was built"
            )

    def _entries(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.container.header.entries}


def _kind(tensor: Entry | Tensor) -> str:
    layout = "" if tensor.layout is torch.strided else f" ({tensor.layout})"
    return f"{tensor.dtype}{layout}"
