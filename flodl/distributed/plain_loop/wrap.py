"""Exchanges by hand, for loops that fit no other form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from torch import nn

from flodl.distributed.averaging.buffers import average_buffers, broadcast_state, buffers_of
from flodl.distributed.averaging.gradients import GradientReducer
from flodl.distributed.averaging.wire import wire_for
from flodl.distributed.config import Backend
from flodl.distributed.plain_loop.setup_ranks import joined

if TYPE_CHECKING:
    import torch

    from flodl.distributed.group import Group


@final
class Ddp:
    """Modules of this rank, and the exchanges with their counterparts; see :meth:`wrap`."""

    def __init__(self, modules: Sequence[nn.Module], group: Group) -> None:
        self._group = group
        # One module for all: tied parameters count once, and every exchange is one.
        self._module = nn.ModuleList(modules).to(group.device)
        self._reducer = GradientReducer(self._module, group, Backend.NCCL)
        self._wire = wire_for(group, Backend.NCCL)
        kinds = group.gather_objects(str(group.device))
        self._devices = tuple(kinds)

    @classmethod
    def wrap(cls, *modules: nn.Module, group: Group | None = None) -> Ddp:
        """Take modules that every rank has made alike, and move them to this rank's device.

        Nothing is exchanged by itself: in the loop, call :meth:`sync_params` once, and after each
        ``backward`` :meth:`all_reduce_gradients`. In a program of one process every exchange does
        nothing, so that the same loop runs there.

        Args:
            modules: One or more.
            group: The ranks; those that this process was started as one of, if not given.

        Raises:
            ValueError: No module was given.
            DistributedError: The environment says that there are ranks, and is incomplete.
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
        """Where the modules of this rank are, and its batches belong."""
        return self._group.device

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of every rank, such as ``"cuda:1"``, as it is called on its host."""
        return self._devices

    def sync_params(self) -> None:
        """Overwrite parameters and buffers by those of rank 0; on all ranks."""
        if self.world_size > 1:
            broadcast_state(self._module, self._group)

    def all_reduce_gradients(self) -> None:
        """Replace every gradient by its mean over the ranks; on all ranks.

        A gradient that is missing on some ranks counts as zeros there.
        """
        self.weighted_all_reduce_gradients(1)

    def weighted_all_reduce_gradients(self, counts: int | Sequence[int]) -> None:
        """Replace every gradient by its mean over the ranks, weighted; on all ranks.

        Args:
            counts: Samples behind each rank's gradient: of this rank, or of all in rank order.

        Raises:
            ValueError: There are more or fewer counts than ranks.
        """
        own = counts if isinstance(counts, int) else self._own(counts)
        if self.world_size > 1:
            self._reducer.reduce(own)

    def sync_buffers(self, counts: int | Sequence[int] = 1) -> None:
        """Average floating buffers, and take the maximum of the others; on all ranks.

        Args:
            counts: Weights, as in :meth:`weighted_all_reduce_gradients`.

        Raises:
            ValueError: There are more or fewer counts than ranks, or all are 0.
        """
        own = counts if isinstance(counts, int) else self._own(counts)
        if self.world_size == 1:
            return
        if average_buffers(buffers_of(self._module), self._wire, own) == 0:
            raise ValueError("every rank counts 0: there is nothing to average")

    def _own(self, counts: Sequence[int]) -> int:
        if len(counts) != self.world_size:
            raise ValueError(
                f"counts={list(counts)!r} for {self.world_size} ranks: give one per rank, or only "
                "that of this rank"
            )
        return counts[self.rank]
