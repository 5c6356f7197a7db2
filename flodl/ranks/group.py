"""The ranks of a training and how they exchange values, through torch.distributed only.

Process groups:

- *control* is always Gloo and carries small values between host memories;
- *data* carries parameters and gradients;
- *reports* is like control, for the exchanges right after an average.

They are separate, so that a small exchange never waits for an average in progress.
"""

from __future__ import annotations

import os
import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from flodl.errors import DistributedError

if TYPE_CHECKING:
    T = TypeVar("T")

_LETTING_GO = 0.02
"""Seconds to wait before groups are destroyed; the interpreter changes threads every 5 ms."""

CONTROL_TIMEOUT = timedelta(minutes=30)
"""Long, because one rank may evaluate or write for minutes while the others wait."""


class Pending(ABC):
    """An exchange that has begun."""

    @abstractmethod
    def done(self) -> bool:
        """Whether :meth:`wait` would return at once; does not block."""

    @abstractmethod
    def wait(self) -> Any:
        """Wait for the exchange and return its result."""


class Group(ABC):
    """All ranks of one training, seen from one of them.

    Every method that exchanges values is collective: all ranks call it, in the same order. A group
    exchanges objects and tensors; here is what follows from that.

    Attributes:
        rank: Number of this process.
        world_size: Number of processes.
        local_rank: Number of this process on its host.
        device: Device on which this process trains.
        is_fixed: Whether the ranks are the same for the whole training, so that they can share
            memory.
        joins: Whether this process has joined a training that others began.
        signature: What this process trains, once the ranks have compared it.
    """

    is_fixed: ClassVar[bool] = True
    joins: bool = False
    signature: dict[str, Any] | None = None
    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @property
    def stream(self) -> int:
        """Number of the random numbers of this rank, which differ between ranks."""
        return self.rank

    def gather(self, values: Sequence[float], *, prompt: bool = False) -> list[list[float]]:  # noqa: ARG002
        """Return the values of every rank as float64; all ranks pass the same number of values.

        Args:
            values: Values of this rank.
            prompt: Whether all ranks call at about the same time. The timeout is then short, as
                for an exchange of parameters.
        """
        return self.gather_objects(list(map(float, values)))

    def gather_later(self, values: Sequence[float], *, prompt: bool = False) -> Pending:
        """Begin a :meth:`gather`."""
        return Done(self.gather(values, prompt=prompt))

    @abstractmethod
    def gather_objects(self, value: T) -> list[T]:
        """Return the object of every rank; objects are pickled between our own processes."""

    def gather_objects_to_first(self, value: T) -> list[T] | None:
        """Return the object of every rank on rank 0, None elsewhere."""
        found = self.gather_objects(value)
        return found if self.leads else None

    def broadcast_object(self, value: T | None) -> T:
        """Return the object of rank 0."""
        return self.gather_objects(value)[0]  # type: ignore[return-value]

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what rank 0 makes; the other ranks do not call the function."""
        return self.broadcast_object(make() if self.leads else None)

    def scatter_objects(self, values: Sequence[T] | None) -> T:
        """Return this rank's item of a list that rank 0 passes."""
        parts: Sequence[T] = self.broadcast_object(values)
        return parts[self.rank]

    @abstractmethod
    def broadcast_(self, tensor: Tensor) -> None:
        """Overwrite a tensor, on any device, with that of rank 0."""

    def all_reduce_(self, tensor: Tensor, *, maximum: bool = False) -> None:
        """Overwrite a tensor with the sum (or the maximum) over the ranks.

        Uses the data group: NCCL for a tensor on a GPU, Gloo for a tensor in host memory.
        """
        self.all_reduce_later(tensor, maximum=maximum).wait()

    @abstractmethod
    def all_reduce_later(self, tensor: Tensor, *, maximum: bool = False) -> Pending:
        """Begin an :meth:`all_reduce_`; do not touch the tensor until it is done."""

    @abstractmethod
    def swap_rows_later(self, given: Tensor, taken: Tensor) -> Pending:
        """Begin to send each rank one row of a tensor, and to take one row from each.

        Args:
            given: A contiguous row for each rank; do not touch it until the exchange is done.
            taken: Takes the rows of the ranks; of the same size.
        """

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.gather_objects(None)

    @property
    @abstractmethod
    def store(self) -> Store:
        """Values that all ranks share, by name."""

    def close(self) -> None:  # noqa: B027 - one rank has no groups to leave
        """Leave the process groups that this object made."""


@final
class LocalGroup(Group):
    """A group of one rank: every exchange returns the values it was passed."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.rank, self.world_size, self.local_rank = 0, 1, 0
        self.device = device or torch.device("cpu")
        self._store = HashStore()

    def gather_objects(self, value: T) -> list[T]:
        """Return the object."""
        return [value]

    def broadcast_(self, tensor: Tensor) -> None:
        """Leave the tensor unchanged."""

    def all_reduce_later(self, tensor: Tensor, *, maximum: bool = False) -> Pending:  # noqa: ARG002
        """Return the tensor as a finished exchange."""
        return Done(tensor)

    def swap_rows_later(self, given: Tensor, taken: Tensor) -> Pending:
        """Copy the only row."""
        return Done(taken.copy_(given))

    @property
    def store(self) -> Store:
        """A store that only this process uses."""
        return self._store


@final
class ProcessGroups(Group):
    """The ranks that torchrun, a batch system or :func:`torch.multiprocessing` has started.

    Args:
        rank: Number of this process.
        world_size: Number of processes.
        local_rank: Number of this process on its host.
        device: Device on which this process trains.
        sync_timeout: How long an exchange of parameters or gradients may take.
        store: Store through which the processes connect; None: ``MASTER_ADDR`` and
            ``MASTER_PORT``.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        local_rank: int,
        device: torch.device,
        sync_timeout: timedelta = timedelta(seconds=60),
        store: Store | None = None,
    ) -> None:
        self.rank, self.world_size, self.local_rank = rank, world_size, local_rank
        self.device = device
        self._owns_default = not dist.is_initialized()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if self._owns_default:
            dist.init_process_group(
                "gloo",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=CONTROL_TIMEOUT,
            )
        self._control: Any = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        # The exchange after an average needs a short timeout: if a connection breaks, one rank may
        # have the complete average and another may not.
        self._reports: Any = dist.new_group(backend="gloo", timeout=sync_timeout)
        self._host: Any = dist.new_group(backend="gloo", timeout=sync_timeout)
        self._device_group: Any = (
            dist.new_group(backend="nccl", timeout=sync_timeout)
            if device.type == "cuda"
            else self._host
        )
        base: Any = dist.distributed_c10d._get_default_store()
        self._store = PrefixStore("flodl", base)

    def gather(self, values: Sequence[float], *, prompt: bool = False) -> list[list[float]]:
        """Return the values of every rank."""
        found: list[list[float]] = self.gather_later(values, prompt=prompt).wait()
        return found

    def gather_later(self, values: Sequence[float], *, prompt: bool = False) -> Pending:
        """Begin a gather."""
        group = self._reports if prompt else self._control
        mine = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        with _with_others():
            work = dist.all_gather(rows, mine, group=group, async_op=True)
        return Work(work, lambda: [row.tolist() for row in rows])

    def gather_objects(self, value: T) -> list[T]:
        """Return the object of every rank."""
        found: list[Any] = [None] * self.world_size
        with _with_others():
            dist.all_gather_object(found, value, group=self._control)
        return found

    def gather_objects_to_first(self, value: T) -> list[T] | None:
        """Return the object of every rank on rank 0."""
        found: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        with _with_others():
            dist.gather_object(value, found, dst=0, group=self._control)
        return found

    def broadcast_object(self, value: T | None) -> T:
        """Return the object of rank 0."""
        box: list[Any] = [value]
        with _with_others():
            dist.broadcast_object_list(box, src=0, group=self._control)
        result: T = box[0]
        return result

    def scatter_objects(self, values: Sequence[T] | None) -> T:
        """Return this rank's part."""
        box: list[Any] = [None]
        parts: Any = list(values) if values is not None else None
        with _with_others():
            dist.scatter_object_list(box, parts, src=0, group=self._control)
        result: T = box[0]
        return result

    def broadcast_(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of rank 0."""
        group = self._device_group if tensor.device.type == "cuda" else self._control
        with _with_others():
            dist.broadcast(tensor, src=0, group=group)

    def all_reduce_(self, tensor: Tensor, *, maximum: bool = False) -> None:
        """Overwrite a tensor with the sum over the ranks."""
        with _with_others():
            dist.all_reduce(tensor, op=_operation(maximum), group=self._group_of(tensor))

    def all_reduce_later(self, tensor: Tensor, *, maximum: bool = False) -> Pending:
        """Begin a sum over the ranks."""
        group = self._group_of(tensor)
        with _with_others():
            work = dist.all_reduce(tensor, op=_operation(maximum), group=group, async_op=True)
        return Work(work, lambda: tensor)

    def swap_rows_later(self, given: Tensor, taken: Tensor) -> Pending:
        """Begin to send each rank its row."""
        group = self._group_of(given)
        with _with_others():
            work = dist.all_to_all_single(taken, given, group=group, async_op=True)
        return Work(work, lambda: taken)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        # Not dist.barrier: with NCCL in the process it would choose a GPU.
        self.gather([0.0])

    @property
    def store(self) -> Store:
        """Values that all ranks share."""
        return self._store

    def close(self) -> None:
        """Leave the process groups that this object made."""
        # Gloo's threads may still be releasing the tensors of the last exchange. They need the
        # interpreter for that. If it is shutting down, they crash the process.
        time.sleep(_LETTING_GO)
        mine = (self._control, self._reports, self._host, self._device_group)
        for group in {id(g): g for g in mine}.values():
            dist.destroy_process_group(group)
        if self._owns_default:
            dist.destroy_process_group()

    def _group_of(self, tensor: Tensor) -> Any:
        return self._device_group if tensor.device.type == "cuda" else self._host


def group_of_all(ranks: Sequence[int]) -> Group | None:
    """Return a group of processes that are already in a process group, for values in host memory.

    Args:
        ranks: The processes; none if there is only this one.

    Returns:
        The group; None without others, and if only some of the processes are named. Collective.
    """
    if not ranks or len(ranks) != dist.get_world_size():
        return None
    rank = dist.get_rank()
    local = int(os.environ.get("LOCAL_RANK", rank))
    cpu = torch.device("cpu")
    return ProcessGroups(rank=rank, world_size=len(ranks), local_rank=local, device=cpu)


def _operation(maximum: bool) -> Any:
    return dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM


@final
class Done(Pending):
    """An exchange within one rank: always finished."""

    def __init__(self, value: object) -> None:
        self._value = value

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> Any:
        """Return the value."""
        return self._value


@contextmanager
def _with_others() -> Iterator[None]:
    """Turn a failed exchange into an error that names the likely cause.

    Raises:
        DistributedError: The exchange failed.
    """
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^\[\S+\.cc:\d+\] ", "", str(error).partition("\n")[0])
        reason = reason.partition(". This is typically")[0]
        raise DistributedError(
            f"rank {dist.get_rank()} has lost the other ranks: one of them has died, hangs, or "
            f"cannot be reached any more ({reason})"
        ) from error


@final
class Work(Pending):
    """An exchange that torch carries out.

    Args:
        work: The exchange, as torch knows it.
        result: Returns what the ranks exchanged.
        waiting: The context in which to wait.
    """

    def __init__(
        self,
        work: Any,
        result: Callable[[], Any],
        waiting: Callable[[], AbstractContextManager[None]] = _with_others,
    ) -> None:
        self._work, self._result, self._waiting = work, result, waiting

    def done(self) -> bool:
        """Whether torch has finished the exchange."""
        return bool(self._work.is_completed())

    def wait(self) -> Any:
        """Wait through torch; on a GPU the stream waits, not the host."""
        with self._waiting():
            self._work.wait()
        return self._result()


def host_name() -> str:
    """Return the name of this host, for messages and to group ranks by host."""
    return os.environ.get("FLODL_HOST") or socket.gethostname()
