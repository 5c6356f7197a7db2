"""What a training writes into its run directory, and when it must not."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, final

import torch

from flodl import log
from flodl.checkpoint import persistent_buffers, save_checkpoint_file
from flodl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

    from flodl.train.run_directory import RunDirectory


@final
class CheckpointKeeper:
    """Keeps the last good state of a model in a run directory, if there is one.

    The caller asks only for states whose losses and parameters are finite, see
    :func:`non_finite_parameters`.
    """

    def __init__(self, model: nn.Module, run: RunDirectory | None) -> None:
        self._model = model
        self._run = run
        self._last: Path | None = None
        self._moment = ""

    def save_last(self, epoch: int, metrics: Mapping[str, float], *, step: int = 0) -> None:
        """Replace the newest checkpoint; a disk that refuses is reported and training goes on.

        Args:
            epoch: Epochs completed.
            metrics: Those of the last epoch.
            step: Steps done in the epoch that was under way.
        """
        if self._run is None:
            return
        try:
            self._save(self._run.last_checkpoint, epoch, metrics, step)
        except CheckpointError as error:
            log.warning(f"{error}; training goes on without it")
            return
        self._last = self._run.last_checkpoint
        self._moment = f"{epoch} complete epochs" + (f" and {step} steps" if step else "")

    def save_final(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Write the trained model.

        Raises:
            CheckpointError: It cannot be written.
        """
        if self._run is not None:
            self._save(self._run.model_checkpoint, epoch, metrics, 0)

    def whereabouts(self) -> str:
        """Say where the last good state is, for the message of a run that ends early."""
        if self._last is None:
            return "no checkpoint had been written"
        return f"the last good checkpoint is {self._last} (after {self._moment})"

    def _save(self, path: Path, epoch: int, metrics: Mapping[str, float], step: int) -> None:
        model = self._model
        identify = getattr(model, "structural_hash", None)
        finite = {name: v if math.isfinite(v) else None for name, v in metrics.items()}
        save_checkpoint_file(
            path,
            model.named_parameters(remove_duplicate=False),
            persistent_buffers(model, tied=True),
            str(identify()) if callable(identify) else None,
            label=str(getattr(model, "label", None) or ""),
            config=self._run.config if self._run else None,
            metadata={"epoch": str(epoch), "step": str(step), "metrics": json.dumps(finite)},
        )


@torch.no_grad()
def non_finite_parameters(model: nn.Module) -> list[str]:
    """Return the names of the parameters that hold a nan or an infinity; reads the device once."""
    named = dict(model.named_parameters())
    if not named:
        return []
    finite = torch.stack([parameter.isfinite().all() for parameter in named.values()]).tolist()
    return [name for name, good in zip(named, finite, strict=True) if not good]
