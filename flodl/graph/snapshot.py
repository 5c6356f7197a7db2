"""A copy of a model's weights on the CPU, to be saved while training continues."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch import Tensor

from flodl.checkpoint import persistent_buffers, save_checkpoint_file
from flodl.checkpoint.sharded import reshard
from flodl.checkpoint.snapshot import snapshot
from flodl.graph.base import GraphBase


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """Parameters and buffers of a model at one moment; later changes do not affect them.

    Attributes:
        params: Qualified name and CPU tensor of every parameter; a shared one under all its names.
        buffers: The same for persistent buffers.
        metrics: Last value of every metric.
        epoch: Number of epochs flushed so far.
        structural_hash: Hash of the model's architecture.
        label: Name of the graph.
        writes: Whether :meth:`save_file` writes; False if another rank has the tensors.
    """

    params: tuple[tuple[str, Tensor], ...]
    buffers: tuple[tuple[str, Tensor], ...]
    metrics: tuple[tuple[str, float], ...]
    epoch: int
    structural_hash: str
    label: str
    writes: bool = True

    def save_file(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint for ``Graph.load_checkpoint``, atomically.

        Raises:
            CheckpointError: The file cannot be written.
        """
        if not self.writes:
            return
        save_checkpoint_file(
            path,
            self.params,
            self.buffers,
            self.structural_hash,
            label=self.label,
            metrics=dict(self.metrics),
            epoch=self.epoch,
        )


class Snapshots(GraphBase):
    """The part of a graph's interface that copies its weights."""

    def snapshot_cpu(self) -> ModelSnapshot:
        """Copy parameters and persistent buffers to the CPU, with the metadata of a checkpoint.

        Tensors shared in the model are copied once and shared in the snapshot.

        Under ``fully_shard`` call this on every rank: the ranks gather one tensor at a time. The
        snapshot of rank 0 has the tensors. Snapshots of other ranks have none and save nothing.

        Raises:
            ValueError: A tensor has no values: it is on the meta device, or its memory was freed.
            CheckpointError: Other ranks with parts of the parameters did not call this.
        """
        reshard(self)
        params = dict(self.named_parameters(remove_duplicate=False))
        buffers = dict(persistent_buffers(self, tied=True))
        copies = snapshot({**params, **buffers})
        held = copies or {}
        return ModelSnapshot(
            params=tuple((name, held[name]) for name in params if name in held),
            buffers=tuple((name, held[name]) for name in buffers if name in held),
            metrics=tuple(self.latest_metrics()),
            epoch=self.flush_count,
            structural_hash=self.structural_hash(),
            label=self.label or "",
            writes=copies is not None,
        )

    def latest_metrics(self) -> list[tuple[str, float]]:
        """Name and last value of every metric."""
        raise NotImplementedError

    @property
    def flush_count(self) -> int:
        """Number of flushes that added a point."""
        raise NotImplementedError
