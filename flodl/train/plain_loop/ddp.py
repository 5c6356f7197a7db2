"""Explicit exchanges, for loops that need full control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from torch import nn

from flodl.ranks.averaging.buffers import SharedBuffers, broadcast_state
from flodl.ranks.averaging.gradients import StepAverager
from flodl.ranks.launch.launcher import mark_begun, mark_watched
from flodl.ranks.settings import Backend
from flodl.train.plain_loop.shared_loop import joined

if TYPE_CHECKING:
    import torch

    from flodl.ranks.group import Group


@final
class Ddp:
    """Modules of this rank, and explicit exchanges with the other ranks; see :meth:`wrap`."""

    def __init__(self, modules: Sequence[nn.Module], group: Group) -> None:
        mark_watched()
        self._group = group
        # One module that holds all: tied parameters count once, and one exchange covers all.
        self._module = nn.ModuleList(modules).to(group.device)
        self._averager = StepAverager(self._module, group, Backend.NCCL)
        self._buffers = SharedBuffers(self._module, group, Backend.NCCL)
        kinds = group.gather_objects(str(group.device))
        self._devices = tuple(kinds)

    @classmethod
    def wrap(cls, *modules: nn.Module, group: Group | None = None) -> Ddp:
        """Move modules to this rank's device and return an object with the exchanges.

        Every rank must pass the same modules. Call the exchanges yourself: :meth:`sync_params`
        once, and :meth:`all_reduce_gradients` after each ``backward``. In a single process every
        exchange does nothing, so the same loop runs there.

        Args:
            modules: One or more modules, built in the same way on every rank.
            group: The ranks; default: those to which this process belongs.

        Raises:
            ValueError: No module was given.
            DistributedError: The environment names ranks but is incomplete.
        """
        if not modules:
            raise ValueError("Ddp.wrap needs a module, such as Ddp.wrap(model)")
        return cls(modules, group or joined())

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self._group.world_size

    @property
    def device(self) -> torch.device:
        """Device of the modules of this rank; put the batches there."""
        return self._group.device

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of every rank, such as ``"cuda:1"``, as named on its own host."""
        return self._devices

    def sync_params(self) -> None:
        """Overwrite parameters and buffers with those of rank 0; collective."""
        if self.world_size > 1:
            broadcast_state(self._module, self._group)
            self._buffers = SharedBuffers(self._module, self._group, Backend.NCCL)

    def all_reduce_gradients(self) -> None:
        """Replace every gradient with its mean over the ranks; collective.

        A gradient that is missing on some ranks counts as zeros there.
        """
        self.weighted_all_reduce_gradients(1)

    def weighted_all_reduce_gradients(self, counts: int | Sequence[int]) -> None:
        """Replace every gradient with its weighted mean over the ranks; collective.

        Args:
            counts: Number of samples in the mean of each rank's gradient: one number for this
                rank, or one per rank in rank order.

        Raises:
            ValueError: There is not one count per rank.
        """
        own = counts if isinstance(counts, int) else self._own(counts)
        if self.world_size > 1:
            self._averager.reduce(own)
            mark_begun()

    def sync_buffers(self, counts: int | Sequence[int] = 1) -> None:
        """Average floating buffers and take the maximum of the others; collective.

        Args:
            counts: Weights, as in :meth:`weighted_all_reduce_gradients`.

        Raises:
            ValueError: There is not one count per rank, or all counts are 0.
        """
        own = counts if isinstance(counts, int) else self._own(counts)
        if self.world_size == 1:
            return
        if self._buffers.average(own) == 0:
            raise ValueError("every rank counts 0: there is nothing to average")

    def _own(self, counts: Sequence[int]) -> int:
        if len(counts) != self.world_size:
            raise ValueError(
                f"counts={list(counts)!r} for {self.world_size} ranks: give one per rank, or only "
                "that of this rank"
            )
        return counts[self.rank]
