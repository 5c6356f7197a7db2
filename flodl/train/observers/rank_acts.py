"""Acts of people on a training: rank 0 takes them, and all ranks carry them out together."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, final

from flodl.monitor.ledger import Account
from flodl.ranks.launch.launcher import detect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.ranks.group import Group
    from flodl.ranks.launch.interrupt import InterruptRequest
    from flodl.train.loop import Loop
    from flodl.train.observers.mailbox import Wish

_ELASTIC = "TORCHELASTIC_RUN_ID"
"""Set in the ranks of torchrun, and in those that a program starts itself."""
_PATIENCE = 10.0


def carry_out_acts(worker: Loop) -> None:
    """Do what people asked for, while all ranks have the same model; collective."""
    stops, steering = worker.stops, worker.steering
    if not stops.acts:
        return
    stops.acts = False
    worker.policy.set_rate_place()
    worker.book(Account.LOGGING if worker.in_order else Account.SYNC)
    paused = steering.carry_out(worker.engine.global_step, BetweenSteps(worker))
    worker.policy.forget()  # going back further would undo what was asked for
    if paused:
        worker.book(Account.IDLE)
        worker.logs.skip_time(paused)
    worker.timer.begin()
    if steering.stopping:
        stops.tell()


@final
class BetweenSteps:
    """All ranks of a training between two steps.

    Args:
        worker: This rank.
    """

    def __init__(self, worker: Loop) -> None:
        self._worker = worker
        self._group, self._stops = worker.peers, worker.stops

    def save_now(self) -> str:
        """Save a checkpoint; return why not, or an empty text; collective."""
        refusal = self._worker.refusal_to_save()
        if not refusal:
            self._worker.save()
        return refusal

    def is_interrupted(self) -> bool:
        """Whether a signal to some rank asks to stop; collective."""
        rows = self._group.gather(self._stops.wishes())
        interrupt, terminate, *_ = map(max, zip(*rows, strict=True))
        self._stops.heed((interrupt, terminate, 0.0, 0.0))
        return bool(self._stops)

    def share(self, wishes: Sequence[Wish]) -> Sequence[Wish]:
        """Return the wishes of rank 0; collective."""
        return self._group.broadcast_object(list(wishes) if self._group.leads else None)


def end_launcher(group: Group, interrupt: InterruptRequest) -> None:
    """Let the launcher of the ranks end as after Ctrl-C, so that it starts none of them again.

    The launcher passes the signal on to the ranks. They wait for it, so that it does not interrupt
    the end of their work. Collective, after all files are written.
    """
    group.barrier()
    launched = detect(os.environ)
    if launched is None or _ELASTIC not in os.environ:
        return
    if launched.local_rank == 0:
        os.kill(os.getppid(), signal.SIGINT)
    limit = time.monotonic() + _PATIENCE
    while not interrupt.requested and time.monotonic() < limit:
        time.sleep(0.02)
