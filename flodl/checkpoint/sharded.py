"""Tensors split over several processes: gather them for a file, distribute them after reading.

``torch.distributed.fsdp.fully_shard`` turns the parameters of a model into DTensors. A file holds
whole tensors, so it equals the file of the same model on one device.

To save, all processes with parts work together: they gather one tensor at a time, and the process
of the lowest rank writes. To load, every process reads the file and takes its own parts, without
waiting.

Besides tensors, processes exchange messages through the store of the process group. This does not
interfere with collectives, and a process notices when the others do not come.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, final

import torch
from torch import Tensor, nn

from flodl.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

PATIENCE_SECONDS = 300.0
"""Time that a process waits for the others to start the same save."""
_OUTCOME_SECONDS = 3600.0  # the file is written during this time
_POLL_SECONDS = 0.005
_PLAIN = (nn.Parameter, Tensor)
_saves: Counter[tuple[int, ...]] = Counter()
"""Number of meetings of each group of ranks so far; it names the next meeting."""


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor; does not import torch's module for them."""
    if type(tensor) in _PLAIN:  # quick, because a save asks this of every tensor
        return False
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor in this process, sharing its memory."""
    return tensor.to_local().detach() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor; for a sharded one a copy, for which all its processes must call this."""
    return tensor.full_tensor().detach() if is_sharded(tensor) else tensor


def reshard(module: nn.Module) -> None:
    """Release the whole parameters that ``fully_shard`` keeps after a forward.

    Until then the module has copies in place of its parameters, perhaps in another dtype. Values
    loaded into them would be lost.
    """
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is not None:
        for part in module.modules():
            if isinstance(part, kind):
                part.reshard()


def has_memory(tensor: Tensor) -> bool:
    """Whether a dense tensor has memory for its elements; FSDP frees that of gathered tensors."""
    local = local_part(tensor)
    if local.numel() == 0 or local.is_meta or local.layout is not torch.strided:
        return True
    size = local.untyped_storage().nbytes()
    if local.is_contiguous():
        return local.storage_offset() * local.element_size() + local.nbytes <= size
    strides = zip(local.shape, local.stride(), strict=True)
    last = local.storage_offset() + sum((size - 1) * stride for size, stride in strides)
    return (last + 1) * local.element_size() <= size


def like(value: Tensor, target: Tensor) -> Tensor:
    """Shard a whole tensor like ``target``; if that is not sharded, return the tensor unchanged.

    Args:
        value: The same in every process, with the shape of ``target``.
        target: Any tensor.
    """
    if not is_sharded(target) or is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = target.device_mesh, target.placements
    return distribute_tensor(value.detach(), mesh, placements, src_data_rank=None)


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into ``target``; this process may hold only a part of it."""
    local, part = local_part(target), local_part(like(value, target))
    if local.layout is not torch.strided:  # it may get another number of elements
        local.resize_as_sparse_(part)
    local.copy_(part)


@torch.no_grad()
def become(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into ``target``, which takes its shape and type.

    Modules may replace or resize their buffers while they train, so a new model may have them in
    another size than a trained one.
    """
    if target.dtype is not value.dtype or target.shape != value.shape:
        target.data = torch.empty_like(value, device=target.device)
    fill(target, value)


def sharing_ranks(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Ranks of the processes that hold parts of tensors; empty if one process holds everything."""
    ranks: set[int] = set()
    for mesh in {tensor.device_mesh for tensor in tensors if is_sharded(tensor)}:
        ranks |= set(mesh.mesh.flatten().tolist())
    return tuple(sorted(ranks)) if len(ranks) > 1 else ()


def agreed(value: Any, tensors: Iterable[Tensor], what: str) -> Any:
    """Return the JSON value of the lowest rank, in all processes that share the tensors.

    Raises:
        CheckpointError: Other processes did not call this.
    """
    ranks = sharing_ranks(tensors)
    if not ranks:
        return value
    meeting = Meeting(ranks, what)
    if meeting.leads:
        meeting.tell("wanted", value)
    return meeting.hear("wanted")


def collected(value: Any, tensors: Iterable[Tensor], what: str) -> list[Any]:
    """Return the JSON values of all processes that share the tensors, by rank.

    Empty if one process holds everything.

    Raises:
        CheckpointError: Other processes did not call this.
    """
    ranks = sharing_ranks(tensors)
    if not ranks:
        return []
    meeting = Meeting(ranks, what)
    meeting.tell(f"value {meeting.rank}", value)
    return [meeting.hear(f"value {rank}") for rank in ranks]


@torch.no_grad()
def everywhere(flags: Tensor, tensors: Iterable[Tensor]) -> Tensor:
    """Return which flags are set in all processes that share the tensors; a collective.

    Args:
        flags: Booleans of any shape, on the device of the tensors.
        tensors: The same in all processes.
    """
    meshes = dict.fromkeys(t.device_mesh for t in tensors if is_sharded(t))
    if not meshes:
        return flags
    from torch.distributed import ReduceOp, all_reduce

    numbers = flags.to(torch.int32)
    for mesh in meshes:
        for dimension in range(mesh.ndim):
            if mesh.size(dimension) > 1:
                all_reduce(numbers, ReduceOp.MIN, group=mesh.get_group(dimension))
    return numbers.bool()


@contextmanager
def gathering(tensors: Mapping[str, Tensor], what: str) -> Iterator[Gathering]:
    """Save tensors together with the processes that hold their other parts.

    The block runs in every process. In the process with ``writes`` set, the block announces the
    tensors it needs and fetches them. In the others it has nothing left to do. If the writing
    process fails, all processes raise an error.

    Args:
        tensors: By name; the same in all processes.
        what: The object to save, for messages.

    Raises:
        CheckpointError: Other processes did not call this, or the writing process failed.
    """
    ranks = sharing_ranks(tensors.values())
    if not ranks:
        yield Gathering(tensors, None)
        return
    gathering = Gathering(tensors, Meeting(ranks, what))
    if not gathering.writes:
        gathering.follow()
        yield gathering
        return
    try:
        yield gathering
    except BaseException as error:
        gathering.end(f"{type(error).__name__}: {error}")
        raise
    gathering.end("")


@final
class Gathering:
    """The part of one process in a save; :func:`gathering` makes it."""

    def __init__(self, tensors: Mapping[str, Tensor], meeting: Meeting | None) -> None:
        self._tensors = tensors
        self._meeting = meeting
        self._wanted: list[str] | None = None
        self._fetched = 0

    @property
    def writes(self) -> bool:
        """Whether this process writes the file."""
        return self._meeting is None or self._meeting.leads

    def announce(self, names: Iterable[str]) -> None:
        """Tell the other processes which tensors will be fetched, in order; call it once."""
        self._wanted = [name for name in names if is_sharded(self._tensors[name])]
        if self._meeting is not None:
            self._meeting.tell("wanted", self._wanted)

    def fetch(self, name: str) -> Tensor:
        """Return a whole tensor: the next announced one, or one that is not sharded."""
        tensor = self._tensors[name]
        if is_sharded(tensor):
            self._fetched += 1
        return whole(tensor)

    def follow(self) -> None:
        """Take part in gathering the tensors that another process fetches.

        Raises:
            CheckpointError: The other process failed.
        """
        assert self._meeting is not None  # noqa: S101 - a single process never follows
        for name in self._meeting.hear("wanted"):
            whole(self._tensors[name])
        if failure := self._meeting.hear("outcome"):
            raise CheckpointError(
                f"rank {self._meeting.ranks[0]} could not save {self._meeting.what}: {failure}"
            )

    def end(self, failure: str) -> None:
        """Finish: gather the announced tensors that are left, then tell the others the outcome."""
        if self._meeting is None:
            return
        if self._wanted is None:
            self.announce([])
        for name in (self._wanted or [])[self._fetched :]:
            whole(self._tensors[name])
        self._meeting.tell("outcome", failure)


@final
class Meeting:
    """A meeting of processes for one save; the constructor waits for all of them.

    Args:
        ranks: Their ranks, including that of this process.
        what: The object to save, for messages.

    Raises:
        CheckpointError: Some did not come within :data:`PATIENCE_SECONDS`.
    """

    def __init__(self, ranks: tuple[int, ...], what: str) -> None:
        from torch._C._distributed_c10d import PrefixStore
        from torch.distributed import get_rank
        from torch.distributed.distributed_c10d import _get_default_store

        self.ranks, self.what = ranks, what
        self.rank = get_rank()
        self.leads = self.rank == ranks[0]
        self._number = _saves[ranks]
        name = f"flodl/save/{','.join(map(str, ranks))}"
        self._store = PrefixStore(name, _get_default_store())
        self._wait_for_all(self.rank)
        _saves[ranks] += 1
        if self._number:  # all processes have left the previous meeting
            own = (f"{self.rank}", f"value {self.rank}")
            for key in ("arrived", "wanted", "outcome", *own) if self.leads else own:
                self._store.delete_key(f"{self._number - 1}/{key}")

    def tell(self, key: str, value: object) -> None:
        """Send a JSON value to the other processes."""
        self._store.set(f"{self._number}/{key}", json.dumps(value))

    def hear(self, key: str) -> Any:
        """Wait for the value of a process.

        Raises:
            CheckpointError: The process sent nothing for an hour.
        """
        limit = time.monotonic() + _OUTCOME_SECONDS
        while not self._store.check([f"{self._number}/{key}"]):
            if time.monotonic() > limit:
                raise CheckpointError(f"another rank did not finish saving {self.what}")
            time.sleep(_POLL_SECONDS)
        return json.loads(self._store.get(f"{self._number}/{key}"))

    def _wait_for_all(self, rank: int) -> None:
        arrived = f"{self._number}/arrived"
        self._store.set(f"{self._number}/{rank}", "here")
        count = self._store.add(arrived, 1)
        limit = time.monotonic() + PATIENCE_SECONDS
        while count < len(self.ranks):
            if time.monotonic() > limit:
                # The last other process may arrive just now and continue with this one.
                if self._store.add(arrived, -1) == len(self.ranks) - 1:
                    return
                self._give_up(rank)
            time.sleep(_POLL_SECONDS)
            count = self._store.add(arrived, 0)

    def _give_up(self, rank: int) -> None:
        keys = {other: f"{self._number}/{other}" for other in self.ranks}
        missing = [str(other) for other, key in keys.items() if not self._store.check([key])]
        self._store.delete_key(keys[rank])
        raise CheckpointError(
            f"cannot save {self.what}: its tensors are sharded over the ranks "
            f"{', '.join(map(str, self.ranks))}, and rank {', '.join(missing)} did not come to "
            f"save within {PATIENCE_SECONDS:g} s. Call the save on every rank, not only where "
            f"rank == 0: all gather, and rank {self.ranks[0]} writes the file"
        )
