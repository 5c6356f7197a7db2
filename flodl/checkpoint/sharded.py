"""Tensors of which every process holds a part: gathered for a file, scattered from it.

``torch.distributed.fsdp.fully_shard`` turns the parameters of a model into DTensors. A file holds
whole tensors, so that it equals the file of the same model on one device. All processes that hold
parts save together: each tensor is gathered by all of them, one at a time, and the process of the
lowest rank writes. To load, every process reads the file and takes its own parts; nobody waits.

What processes tell each other beside the tensors goes through the store of the process group: it
does not get in the way of collectives, and a process that is left alone notices.
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
"""How long a process waits for the others to come to the same save."""
_OUTCOME_SECONDS = 3600.0  # the file is being written meanwhile
_POLL_SECONDS = 0.005
_PLAIN = (nn.Parameter, Tensor)
_saves: Counter[tuple[int, ...]] = Counter()
"""How often each group of ranks has met: the name of the next meeting."""


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor; torch's own module for them is not imported to find out."""
    if type(tensor) in _PLAIN:  # saves ask this of every tensor
        return False
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, sharing its memory."""
    return tensor.to_local().detach() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor; of a sharded one a copy, which all its processes have to ask for."""
    return tensor.full_tensor().detach() if is_sharded(tensor) else tensor


def reshard(module: nn.Module) -> None:
    """Give back the whole parameters that ``fully_shard`` keeps after a forward pass.

    Until then the module has copies in the place of its parameters: perhaps in another dtype, and
    what is loaded into them is lost.
    """
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is not None:
        for part in module.modules():
            if isinstance(part, kind):
                part.reshard()


def has_memory(tensor: Tensor) -> bool:
    """Whether a dense tensor has memory for its elements; FSDP frees that of gathered ones."""
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
    """Spread a whole tensor as another one is; a plain target leaves it as it is.

    Args:
        value: The same in every process, of the shape of ``target``.
        target: Any tensor.
    """
    if not is_sharded(target) or is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = target.device_mesh, target.placements
    return distribute_tensor(value.detach(), mesh, placements, src_data_rank=None)


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into another one, of which this process may hold a part."""
    local_part(target).copy_(local_part(like(value, target)))


def sharing_ranks(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Ranks of the processes that hold parts of some tensors; none where one process holds all."""
    ranks: set[int] = set()
    for mesh in {tensor.device_mesh for tensor in tensors if is_sharded(tensor)}:
        ranks |= set(mesh.mesh.flatten().tolist())
    return tuple(sorted(ranks)) if len(ranks) > 1 else ()


def agreed(value: Any, tensors: Iterable[Tensor], what: str) -> Any:
    """Return the JSON value of the lowest rank in all processes that share some tensors.

    Raises:
        CheckpointError: Other processes did not come to ask.
    """
    ranks = sharing_ranks(tensors)
    if not ranks:
        return value
    meeting = Meeting(ranks, what)
    if meeting.leads:
        meeting.tell("wanted", value)
    return meeting.hear("wanted")


def collected(value: Any, tensors: Iterable[Tensor], what: str) -> list[Any]:
    """Return the JSON value of every process that shares some tensors, by rank.

    Empty where one process holds all of them.

    Raises:
        CheckpointError: Other processes did not come.
    """
    ranks = sharing_ranks(tensors)
    if not ranks:
        return []
    meeting = Meeting(ranks, what)
    meeting.tell(f"value {meeting.rank}", value)
    return [meeting.hear(f"value {rank}") for rank in ranks]


@torch.no_grad()
def everywhere(flags: Tensor, tensors: Iterable[Tensor]) -> Tensor:
    """Return which flags are set in all processes that share some tensors; collective.

    Args:
        flags: Booleans of any shape, on the device of the tensors.
        tensors: Alike in all processes.
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
    """Save tensors together with the processes that hold other parts of them.

    The block runs in every process. In the one whose ``writes`` is true it announces the tensors
    it wants and fetches them; in the others there is nothing left to do. An error of the writing
    process is raised by all.

    Args:
        tensors: By name; alike in all processes.
        what: What is saved, for messages.

    Raises:
        CheckpointError: Other processes did not come, or the one that writes failed.
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
    """The part of one process in a save; made by :func:`gathering`."""

    def __init__(self, tensors: Mapping[str, Tensor], meeting: Meeting | None) -> None:
        self._tensors = tensors
        self._meeting = meeting
        self._wanted: list[str] | None = None
        self._fetched = 0

    @property
    def writes(self) -> bool:
        """Whether this process writes what is saved."""
        return self._meeting is None or self._meeting.leads

    def announce(self, names: Iterable[str]) -> None:
        """Tell the other processes which tensors are fetched, in which order; once."""
        self._wanted = [name for name in names if is_sharded(self._tensors[name])]
        if self._meeting is not None:
            self._meeting.tell("wanted", self._wanted)

    def fetch(self, name: str) -> Tensor:
        """Return a whole tensor: the next of those announced, or one that is not sharded."""
        tensor = self._tensors[name]
        if is_sharded(tensor):
            self._fetched += 1
        return whole(tensor)

    def follow(self) -> None:
        """Take part in what another process fetches.

        Raises:
            CheckpointError: It failed.
        """
        assert self._meeting is not None  # noqa: S101 - one process alone writes
        for name in self._meeting.hear("wanted"):
            whole(self._tensors[name])
        if failure := self._meeting.hear("outcome"):
            raise CheckpointError(
                f"rank {self._meeting.ranks[0]} could not save {self._meeting.what}: {failure}"
            )

    def end(self, failure: str) -> None:
        """Let the other processes go on: with the rest of what was announced, and the outcome."""
        if self._meeting is None:
            return
        if self._wanted is None:
            self.announce([])
        for name in (self._wanted or [])[self._fetched :]:
            whole(self._tensors[name])
        self._meeting.tell("outcome", failure)


@final
class Meeting:
    """Processes that came to the same save; making one waits for all of them.

    Args:
        ranks: Their ranks; this process is one of them.
        what: What they save, for messages.

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
        if self._number:  # all have left the meeting before
            own = (f"{self.rank}", f"value {self.rank}")
            for key in ("arrived", "wanted", "outcome", *own) if self.leads else own:
                self._store.delete_key(f"{self._number - 1}/{key}")

    def tell(self, key: str, value: object) -> None:
        """Tell the other processes a JSON value."""
        self._store.set(f"{self._number}/{key}", json.dumps(value))

    def hear(self, key: str) -> Any:
        """Wait for what a process tells.

        Raises:
            CheckpointError: It told nothing for an hour.
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
                # The last of the others may arrive at this moment, and go on with this one.
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
