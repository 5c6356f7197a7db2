"""A group of ranks that come and go: torchft decides who takes part, at the end of each window.

A rank begins alone. At a *meeting*, all living ranks agree on who they are; ranks that have just
come get the state of the training from one of the others. Between two meetings, the group is like
any other.

If a rank dies in an exchange of small values, the others meet, repeat the exchange, and continue. A
rank that has got the values already passes them on, so all continue with the same ones. If a rank
dies inside :meth:`ElasticGroup.together`, where a window is exchanged, :class:`RankLost` is raised.
The window is then exchanged again by those that are left.
"""

from __future__ import annotations

import logging
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    ReduceOp,
    Store,
    TCPStore,
)

from flodl.errors import DistributedError, StateError
from flodl.ranks.elastic.healing import Healing
from flodl.ranks.elastic.meeting_place import MeetingPlace, load_torchft
from flodl.ranks.group import Done, Group, Pending, Work

if TYPE_CHECKING:
    T = TypeVar("T")

_FIRST_EXCHANGE = 60.0
"""Seconds that the first exchange may take. One with a dead rank ends at once, so this ends only
one with a rank that hangs or is out of reach."""

_LEAST_EXCHANGE, _TIMES_LONGEST = 5.0, 10.0
"""Later ones may take at least so many seconds, and so many times what the longest average has
taken. Where ranks only wait for one that evaluates, they meet then, and repeat the exchange."""

_PATIENCE = timedelta(seconds=15)
"""After so long without an answer, a rank looks whether the lighthouse and the others are there.

Not sooner: the lighthouse counts a rank that asks again as one that has come already, and the
others would wait for it in vain.
"""

_CONNECT = 10.0
"""Seconds in which the ranks of a meeting connect; a rank that dies meanwhile lets all wait."""

_MOST_FAILED = 4
"""Failures in a row after which the next exchange or connection may take longer."""

_JOINED = "joined."
"""In the names of the ranks that joined."""


@final
class RankLost(DistributedError):  # noqa: N818 - the name says what happened
    """A rank has died in an exchange; those that are left can repeat it."""


@final
@dataclass(frozen=True, slots=True)
class _Present:
    """What a rank tells the others at a meeting."""

    name: str
    done: int
    """Exchanges of small values that it has completed."""
    at_window: bool
    """Whether it has come to exchange a window; else it repeats an exchange of small values."""
    address: str
    """Where it answers other ranks."""
    longest: float
    """Seconds of the longest exchange of a window that it has completed; 0 if there was none."""


@final
class ElasticGroup(Group):
    """The ranks of one training that come and go, seen from one of them.

    Args:
        place: Where they meet.
        rank: Number of this process among those that the program started; None if it joins later.
        restart: How often the program has started its ranks again.
        device: Device on which this process trains.
        local_rank: Number of this process on its host.
        starters: A store of the ranks that the program started, and their number: they wait for
            each other at their first meeting.

    Attributes:
        members: The name of each rank.
        succeed: Called if this rank is to write files and print from now on.
        step_down: Called if the others have gone on without this rank, which writes no more then.
        lighthouse_gone: Whether the lighthouse did not answer any more at the last meeting.
    """

    is_fixed = False

    def __init__(
        self,
        place: MeetingPlace,
        *,
        rank: int | None,
        restart: int = 0,
        device: torch.device,
        local_rank: int = 0,
        starters: tuple[Store, int] | None = None,
    ) -> None:
        load_torchft()
        self.rank, self.world_size, self.local_rank = rank or 0, 1, local_rank
        self.device, self.joins = device, rank is None
        # The lighthouse orders ranks by their names: those that joined follow in their order.
        number = f"{rank:06d}" if rank is not None else f"{_JOINED}{time.time_ns():020d}"
        self.name = f"{restart:04d}.{number}"
        self.members: tuple[str, ...] = (self.name,)
        self._addresses: list[str] = []
        self.lighthouse_gone = False
        self._place, self._starters = place, starters
        self._leader = self.name if rank == 0 else ""
        self.succeed: Callable[[], object] = lambda: None
        self.step_down: Callable[[], object] = lambda: None
        self._done, self._last = 0, b""
        self._longest, self._failed = 0.0, 0
        self._together = self._entered = False
        self._connected = True
        self._counted = (0, 1)
        self._stream = rank if rank is not None else time.time_ns()
        self._manager: Any = None
        self._groups: Any = None
        self._healing: Healing | None = None
        self._received: Path | None = None

    @property
    def leads(self) -> bool:
        """Whether this rank writes files and prints: the lowest that the program started."""
        return self._leader == self.name

    @property
    def stream(self) -> int:
        """Number of the random numbers of this rank, which no other rank has."""
        return self._stream

    # --- Meetings ------------------------------------------------------------------------------

    def begin(self, state: Callable[[Path], object]) -> None:
        """Let the others know that this rank lives.

        Args:
            state: Writes the state of this rank into a file, for ranks that join.
        """
        torchft = load_torchft()
        if not self._place.answers():
            raise self._no_lighthouse()
        # It logs each error that it reports; flodl says itself what follows from one.
        logging.getLogger("torchft.manager").setLevel(logging.CRITICAL)
        host = self._place.own_host
        assert self.signature is not None  # noqa: S101 - compared before the first window
        healing = self._healing = Healing(host, self._place.token, self.signature)
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)

        def offered() -> str:
            file = healing.folder / "state.fdl"
            try:
                state(file)
            except Exception as error:
                raise DistributedError(f"a rank cannot join: {error}") from error
            return str(file)

        def receive(file: str) -> None:
            self._received = Path(file)

        connecting = timedelta(seconds=_FIRST_EXCHANGE)
        self._groups = torchft.ProcessGroupGloo(timeout=connecting)
        self._manager = torchft.Manager(
            pg=self._groups,
            load_state_dict=receive,
            state_dict=offered,
            min_replica_size=1,
            use_async_quorum=False,
            timeout=connecting,
            connect_timeout=_PATIENCE,
            rank=0,
            world_size=1,
            store_addr=host,
            store_port=self._store.port,
            lighthouse_addr=self._place.lighthouse,
            replica_id=self.name,
            hostname=host,
            checkpoint_transport=healing,
        )
        if self._starters is not None:
            store, count = self._starters
            if store.add("here", 1) == count:
                store.set("all here", "")
            store.wait(["all here"])

    def meet(self) -> Path | None:
        """Agree with all living ranks on who takes part from now on.

        Without a lighthouse, the ranks stay as they are.

        Returns:
            A file with the state of the training if this rank has none or an older one.

        Raises:
            DistributedError: This rank cannot take part, or no rank is left that can write files.
                Or ranks have to leave, and the lighthouse is gone.
        """
        self._received = None
        while not self.lighthouse_gone:
            try:
                if not self._count(shrink=False):
                    break
                repeating = [one for one in self._tell(at_window=True) if not one.at_window]
            except RankLost:
                continue
            if not self._entered and not self._is_complete():
                continue
            # They finish their exchange and come to this window, too.
            if repeating and self._received is None:
                continue
            break
        if self.lighthouse_gone and not self._connected:
            raise self._alone()
        return self._received

    def _lacks_starters(self) -> bool:
        """Whether a first meeting lacks a rank that the program has started."""
        starters = 0 if self._entered or self._starters is None else self._starters[1]
        return len(self.members) < starters

    def _is_complete(self) -> bool:
        """Whether a first meeting has all ranks that it needs."""
        return not self._lacks_starters() and (self.leads or self._received is not None)

    def enter(self) -> None:
        """Exchange values with the others from now on; before, this group is a group of one."""
        self._entered = True
        self.rank, self.world_size = self._counted

    def commit(self) -> None:
        """Count a window as exchanged: this rank has its result."""
        self._manager.should_commit()
        self._failed = 0

    def _count(self, *, shrink: bool) -> bool:
        """Let torchft find the ranks that live; return False if there is no lighthouse any more.

        Raises:
            RankLost: One of them has died since.
            DistributedError: This rank is refused.
        """
        assert self._healing is not None  # noqa: S101 - begun
        while True:
            self._groups.set_timeout(timedelta(seconds=_CONNECT * 2**self._failed))
            try:
                if not self._place.answers():
                    raise ConnectionError
                with warnings.catch_warnings():
                    # torchft's own; as an error it would look like the loss of a rank.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    self._manager.start_quorum(shrink_only=shrink, timeout=_PATIENCE)
                break
            except (TimeoutError, RuntimeError, ConnectionError) as error:
                self._manager._quorum_future = None
                if self._place.answers():
                    if self._entered and self._healing.is_left_out(self.name, self._addresses):
                        raise self.left_out() from error
                    continue
                if not self._entered:
                    raise self._no_lighthouse() from error
                self.lighthouse_gone = True
                return False
        if (failed := self._manager.errored()) is not None:
            self._failed = min(self._failed + 1, _MOST_FAILED)
            problem = failed.original_exception
            self._break_off(problem)
            if isinstance(problem, DistributedError):
                raise problem
            if not isinstance(problem, RuntimeError | TimeoutError | OSError):
                raise DistributedError(f"the ranks cannot meet: {problem}") from problem
            raise RankLost(str(problem)) from problem
        self._connected = True
        self._counted = self._manager.participating_rank(), self._manager.num_participants()
        if self._entered:
            self.rank, self.world_size = self._counted
        return True

    def left_out(self) -> DistributedError:
        """Write no more, and return the error for a rank without which the others have gone on."""
        self.step_down()
        return DistributedError(
            "this rank was out of reach, and the others have gone on without it; started again, it "
            "joins them"
        )

    def _no_lighthouse(self) -> DistributedError:
        return DistributedError(
            f"the lighthouse {self._place.lighthouse} does not answer: the training has ended, or "
            "the address is another one"
        )

    def _alone(self) -> DistributedError:
        return DistributedError(
            f"a rank and the lighthouse {self._place.lighthouse} are gone; started again, the "
            "training continues from its last checkpoint"
        )

    def _tell(self, *, at_window: bool) -> list[_Present]:
        """Compare with the others, and bring those up to date that lack the newest values."""
        assert self._healing is not None  # noqa: S101 - begun
        address = self._healing.metadata()
        mine = _Present(self.name, self._done, at_window, address, self._longest)
        ranks: list[_Present] = [pickle.loads(one) for one in self._all_gather(pickle.dumps(mine))]  # noqa: S301
        self._longest = max(one.longest for one in ranks)
        newest = max(one.done for one in ranks)
        if any(one.done != newest for one in ranks):
            last = self._all_gather(self._last)
            source = next(at for at, one in enumerate(ranks) if one.done == newest)
            self._last, self._done = last[source], newest
        self.members = self._healing.members = tuple(one.name for one in ranks)
        self._addresses = [one.address for one in ranks if one.name != self.name]
        if self._leader not in self.members and not self._lacks_starters():
            self._follow(self.members[0])
        return ranks

    def _follow(self, first: str) -> None:
        """Let the lowest rank write files and print, because the one before is gone."""
        if _JOINED not in first:
            self._leader = first
            if self.leads and self._entered:
                self.succeed()
        elif self._entered:
            raise DistributedError(
                "all ranks that the program started are gone, and only they can write the files of "
                "the training; started again, it continues from its last checkpoint"
            )

    def _break_off(self, error: Exception) -> None:
        """Leave the connections of an exchange that failed, so that nobody waits for this rank."""
        self._connected = False
        self._manager.report_error(error)
        self._groups.abort()
        self._manager.should_commit()  # False: torchft connects the ranks anew

    # --- Exchanges -----------------------------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """Exchange a window: inside, a rank that dies raises :class:`RankLost`."""
        self._together = True
        try:
            yield
        finally:
            self._together = False

    def gather_objects(self, value: T) -> list[T]:
        """Return the object of every rank."""
        if not self._entered:
            return [value]
        mine = pickle.dumps(value)
        if self._together:
            return [pickle.loads(one) for one in self._all_gather(mine)]  # noqa: S301
        wanted = self._done + 1
        while self._done < wanted:
            try:
                self._last = pickle.dumps(self._all_gather(mine))
                self._done = wanted
            except RankLost:
                self._go_on()
        return [pickle.loads(one) for one in pickle.loads(self._last)]  # noqa: S301

    def _go_on(self) -> None:
        """Meet those that are left, to repeat an exchange of small values."""
        while True:
            try:
                if not self._count(shrink=True):
                    raise self._alone()
                self._tell(at_window=False)
                return
            except RankLost:
                continue

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what the first rank makes; if it dies, the next one makes it again."""
        while True:
            found = self.gather_objects([make()] if self.leads else [])
            if (made := next(filter(None, found), None)) is not None:
                return made[0]

    def broadcast_(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of the first rank."""
        if self._entered:
            tensor.copy_(self._gather(tensor)[0])

    def all_reduce_later(self, tensor: Tensor, *, maximum: bool = False) -> Pending:
        """Begin a sum over the ranks."""
        if self.world_size == 1:
            return Done(tensor)
        options: Any = AllreduceOptions()
        options.reduceOp = ReduceOp.MAX if maximum else ReduceOp.SUM
        options.timeout = self._limit()
        with self._with_others():
            work = self._groups.allreduce([tensor], options)
        return Work(work, lambda: tensor, self._with_others)

    def swap_rows_later(self, given: Tensor, taken: Tensor) -> Pending:
        """Begin to send each rank its row."""
        options: Any = AllToAllOptions()
        options.timeout = self._limit()
        with self._with_others():
            work = self._groups.alltoall_base(taken, given, [], [], options)
        return Work(work, lambda: taken, self._with_others)

    @property
    def store(self) -> Store:
        """Ranks that come and go have no common store.

        Raises:
            StateError: Always.
        """
        raise StateError("ranks that come and go have no common store")

    def close(self) -> None:
        """Leave the training."""
        if self._manager is not None:
            self._manager.shutdown(wait=False)
            self._groups.abort()
            self._manager = None

    def _all_gather(self, mine: bytes) -> list[bytes]:
        if self._counted[1] == 1:
            return [mine]
        sizes = [int(size) for size in self._gather(torch.tensor([len(mine)]))]
        padded = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
        padded[: len(mine)] = torch.frombuffer(bytearray(mine or b"\0"), dtype=torch.uint8)[
            : len(mine)
        ]
        rows = self._gather(padded)
        return [bytes(row[:size].numpy()) for row, size in zip(rows, sizes, strict=True)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        rows = [torch.empty_like(tensor) for _ in range(self._counted[1])]
        options: Any = AllgatherOptions()
        options.timeout = self._limit()
        with self._with_others():
            self._groups.allgather([rows], [tensor], options).wait()
        return rows

    def _limit(self) -> timedelta:
        """Return how long an exchange may take; twice as long after each that has failed."""
        usual = max(_TIMES_LONGEST * self._longest, _LEAST_EXCHANGE)
        return timedelta(seconds=(usual if self._longest else _FIRST_EXCHANGE) * 2**self._failed)

    @contextmanager
    def _with_others(self) -> Iterator[None]:
        """Leave an exchange that fails.

        Raises:
            RankLost: It has failed.
        """
        began = time.perf_counter()
        try:
            yield
        except (RuntimeError, AssertionError) as error:
            self._failed = min(self._failed + 1, _MOST_FAILED)
            self._break_off(error if isinstance(error, RuntimeError) else RuntimeError(str(error)))
            raise RankLost(str(error)) from error
        if self._together:  # else it may have waited for rank 0, which evaluates or writes
            self._longest = max(self._longest, time.perf_counter() - began)
