"""The best model of a run, loaded for predictions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from torch import nn

from flodl.checkpoint import checkpoint_keys, load_checkpoint_file, persistent_buffers, qualify
from flodl.checkpoint.extra_state import extra_modules
from flodl.errors import CheckpointError
from flodl.graph.graph import Graph
from flodl.train.run.run_directory import RunDirectory
from flodl.train.run.run_records import BEST, LAST

Model = TypeVar("Model", bound=nn.Module)


def load_best(run: str | os.PathLike[str] | RunDirectory, model: Model) -> Model:
    """Load the best model of a run, and put it into evaluation mode.

    The file is ``best.fdl``, which a Trainer writes if it was told to :meth:`keep_best`. Its values
    are copied into the model, which stays on its device.

    Args:
        run: The folder of a run, such as ``"runs/2026-11-28T10-00-00"``, or its object. Or another
            checkpoint, such as the ``model.fdl`` beside it.
        model: A model built as the training built it.

    Returns:
        The model.

    Raises:
        CheckpointError: The run has no best model, or the file does not fit the model. The model
            is unchanged.
        ArchitectureMismatch: The file was saved from a graph of another architecture.
        ShapeMismatch: Tensors of the same name differ in shape.
    """
    folder = run.path if isinstance(run, RunDirectory) else Path(run)
    best = folder if folder.is_file() else folder / BEST
    if not best.is_file():
        raise CheckpointError(_missing(folder))
    _require_all(best, model)
    load_checkpoint_file(
        best,
        model.named_parameters(),
        persistent_buffers(model),
        model.structural_hash() if isinstance(model, Graph) else None,
        extra_modules=extra_modules(model),
    )
    return model.eval()


def _missing(folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no run in {folder}: `fdl runs` lists the folders of runs"
    others = [folder / name for name in ("model.fdl", LAST) if (folder / name).is_file()]
    if not others:
        return f"{folder} has no {BEST}: it is no run of a Trainer, or no epoch of it is complete"
    return (
        f"{folder} has no {BEST}, because its Trainer was not told to keep_best(...); its newest "
        f'weights are loaded by load_best("{others[0]}", model)'
    )


def _require_all(best: Path, model: nn.Module) -> None:
    """Refuse a file without a tensor of the model, or with one that the model lacks.

    Raises:
        CheckpointError: They differ.
    """
    held = set(checkpoint_keys(best))
    once = [*model.named_parameters(), *persistent_buffers(model)]
    own = {qualify(name) for name, _ in once}
    for told, names in (("lacks", own - held), ("has besides", held - own)):
        if names:
            raise CheckpointError(
                f"{best} does not fit the model: the file {told} {', '.join(sorted(names)[:3])}"
                f"{' and more' if len(names) > 3 else ''}; build the model as the training did"
            )
