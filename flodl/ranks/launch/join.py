"""Join the ranks that a launcher started, once, and choose the device of this process."""

from __future__ import annotations

import atexit
import os
import secrets
import time
from collections.abc import Mapping
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from flodl.device import select_device, why_unusable
from flodl.errors import DistributedError
from flodl.ranks.elastic.meeting_place import MeetingPlace
from flodl.ranks.group import CONTROL_TIMEOUT, Group, LocalGroup, ProcessGroups
from flodl.ranks.launch.launcher import JOIN_VARIABLE, Launched, detect, end_with_launcher

DEVICE_VARIABLE = "FLODL_DEVICE"
"""Number of the GPU that a rank uses instead of its local rank's."""

TIMEOUT_VARIABLE = "FLODL_SYNC_TIMEOUT"
"""Seconds after which a rank that does not arrive at an exchange of parameters counts as lost."""

_SYNC_TIMEOUT = 60.0
"""Default of the timeout in seconds; windows are much shorter."""


def join(
    environ: Mapping[str, str],
    *,
    device: torch.device | str | None = None,
    sync_timeout: timedelta | None = None,
) -> Group:
    """Join the ranks that were launched; a single process makes no process group.

    Args:
        environ: Environment variables of this process.
        device: Device to train on. Default with a launcher: the GPU of this rank if the host has
            GPUs, else the CPU. Default without: the first usable GPU, else the CPU.
        sync_timeout: How long an exchange of parameters or gradients may take. Default: the
            seconds in ``FLODL_SYNC_TIMEOUT``, else 60.

    Raises:
        DistributedError: The environment is incomplete, or there is no usable GPU for this rank.
        ValueError: The device does not exist here.
    """
    launched = detect(environ)
    if launched is None:
        return LocalGroup(select_device(device))
    end_with_launcher(environ)
    place = _device_of(launched, environ, device)
    if (meeting := MeetingPlace.given(environ)) is not None:
        return _elastic(meeting, launched, place)
    if launched.world_size == 1:
        return LocalGroup(place)
    timeout = sync_timeout or _sync_timeout(environ)
    return ProcessGroups(
        rank=launched.rank,
        world_size=launched.world_size,
        local_rank=launched.local_rank,
        device=place,
        sync_timeout=timeout,
        store=_store(launched),
    )


def _elastic(meeting: MeetingPlace, launched: Launched, device: torch.device) -> Group:
    """Return a group of ranks that come and go, of which this process is one."""
    # Imported here: it needs an HTTP client.
    from flodl.ranks.elastic.group import ElasticGroup

    if launched.source == JOIN_VARIABLE:
        return ElasticGroup(meeting, rank=None, device=device)
    store = TCPStore(launched.address, launched.port, is_master=False, wait_for_workers=False)
    return ElasticGroup(
        meeting,
        rank=launched.rank,
        restart=launched.restart,
        device=device,
        local_rank=launched.local_rank,
        starters=(store, launched.world_size),
    )


def _sync_timeout(environ: Mapping[str, str]) -> timedelta:
    text = environ.get(TIMEOUT_VARIABLE) or str(_SYNC_TIMEOUT)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1e-3 <= seconds < 1e9:
        raise DistributedError(f"{TIMEOUT_VARIABLE}={text!r}: it must be a number of seconds")
    return timedelta(seconds=seconds)


def _store(launched: Launched) -> Store:
    """Return the store through which the ranks connect."""
    rank, world_size = launched.rank, launched.world_size
    if launched.source == "torchrun":
        # The launcher has made a store; torch knows how to find it.
        found = rendezvous("env://", rank, world_size, timeout=CONTROL_TIMEOUT)
        store: Store = next(found)[0]
    else:
        store = TCPStore(
            launched.address,
            launched.port,
            world_size,
            is_master=rank == 0,
            timeout=CONTROL_TIMEOUT,
        )
    return own_session(store, rank, world_size, CONTROL_TIMEOUT)


def _device_of(
    launched: Launched, environ: Mapping[str, str], requested: torch.device | str | None
) -> torch.device:
    if requested is not None and requested != "auto":
        wanted = select_device(requested)
        if wanted.type != "cuda" or wanted.index is not None:
            return wanted
    count = torch.cuda.device_count()
    if count == 0:
        return torch.device("cpu")
    number = environ.get(DEVICE_VARIABLE) or str(launched.local_rank)
    if not number.isdecimal():
        raise DistributedError(f"{DEVICE_VARIABLE}={number!r}: it must be the number of a GPU")
    index = int(number)
    if launched.source == "SLURM" and count == 1:
        index = 0  # srun gave each task its own GPU, and each task sees it as number 0
    if index >= count:
        raise DistributedError(
            f"rank {launched.rank} is process {launched.local_rank} of its host and there are "
            f"{count} GPUs: start one process per GPU, or train on device 'cpu'"
        )
    device = torch.device("cuda", index)
    problem = why_unusable(device)
    if problem is not None:
        raise DistributedError(
            f"rank {launched.rank} cannot use {device}: {problem}; leave it out with "
            "CUDA_VISIBLE_DEVICES, or train on device 'cpu'"
        )
    return device


_PAUSE = 0.005
"""Seconds between two reads of the store."""


def own_session(store: Store, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Return a part of a store that no earlier start of the ranks has written to; collective.

    torchrun keeps one store while it restarts the ranks. Values of an earlier start, such as
    addresses of dead processes, look like values of the current ranks. So the ranks first agree on
    a name that no earlier start can have used.

    Every rank above 0 writes a random word. Rank 0 answers each word with the name of the session,
    until every rank has repeated that name. No rank repeats a word or a name of an earlier start.

    Args:
        store: A store of all ranks, which earlier starts may have used.
        rank: Number of this process.
        world_size: Number of processes.
        timeout: How long to wait for the other ranks.

    Raises:
        DistributedError: A rank did not arrive in time.
    """
    until = time.monotonic() + timeout.total_seconds()
    meeting = PrefixStore("flodl/meeting", store)
    leads = rank == 0
    session = _lead(meeting, world_size, until) if leads else _follow(meeting, rank, until)
    return PrefixStore(f"flodl/{session}", store)


def _lead(meeting: Store, world_size: int, until: float) -> str:
    session = secrets.token_hex(8)
    missing = set(range(1, world_size))
    answered: dict[int, bytes] = {}
    while missing:
        for rank in sorted(missing):
            word = _read(meeting, f"word/{rank}")
            if word is not None and answered.get(rank) != word:
                answered[rank] = word
                meeting.set(f"answer/{rank}", f"{word.decode()} {session}")
            if _read(meeting, f"agreed/{rank}") == session.encode():
                missing.discard(rank)
        if missing and time.monotonic() > until:
            raise DistributedError(
                f"rank {min(missing)} of {world_size} did not start in time; check that its "
                "process runs and reaches the address of rank 0"
            )
        if missing:
            time.sleep(_PAUSE)
    return session


def _follow(meeting: Store, rank: int, until: float) -> str:
    word = secrets.token_hex(8)
    meeting.set(f"word/{rank}", word)
    while True:
        said, _, session = (_read(meeting, f"answer/{rank}") or b"").decode().partition(" ")
        if said == word:
            meeting.set(f"agreed/{rank}", session)
            return session
        if time.monotonic() > until:
            raise DistributedError(
                f"rank {rank} cannot find rank 0; check that its process runs and can be reached "
                "from here"
            )
        time.sleep(_PAUSE)


def _read(store: Store, key: str) -> bytes | None:
    """Return a value, or None if it is not there yet; do not wait for it."""
    return bytes(store.get(key)) if store.check([key]) else None


_joined: Group | None = None


def this_group(device: torch.device | str | None = None) -> Group:
    """Return the group of this process; it joins once, and leaves when the program ends."""
    global _joined
    if _joined is None:
        _joined = join(os.environ, device=device)
        atexit.register(_leave)
    return _joined


def _leave() -> None:
    global _joined
    group, _joined = _joined, None
    if group is not None:
        group.close()


def is_first_rank() -> bool:
    """Whether this process is rank 0 or alone; only it reads and writes the files of a run."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    launched = detect(os.environ)
    return launched is None or launched.rank == 0
