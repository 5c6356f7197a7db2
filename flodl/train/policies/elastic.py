"""CADENCE with ranks that come and go: all that live meet at the end of each window.

A window is exchanged in this order, so that a rank that dies at any moment leaves no doubt:

1. The ranks meet. Those that join get the state of another rank and take part without samples.
2. Each tells the others what it has trained: its batches, its samples, its measurements.
3. They average. A rank that has the average has committed the window.

If a rank dies before the third step is complete, those that are left repeat all three. A rank that
has the average keeps it; the others take its state. The batches of a dead rank return to the queue.
"""

from __future__ import annotations

import base64
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, final

from flodl import log
from flodl.checkpoint.names import persistent_buffers
from flodl.checkpoint.store import load_checkpoint_file
from flodl.checkpoint.training import TrainingFile
from flodl.errors import CheckpointError, PlanMismatchError
from flodl.ranks.averaging.average import Averaged
from flodl.ranks.elastic.group import ElasticGroup, RankLost
from flodl.ranks.planning.schedule import Joined, WindowReport
from flodl.ranks.planning.scheduler import digest, initial_schedule, redistributed
from flodl.train.epoch_metrics import add_up
from flodl.train.policies.windows import LeaseWindow, WindowFeed, report_in
from flodl.train.run.rank_state import ELASTIC

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from flodl.train.policies.feed import Exchanged, FeedParts, Membership, Part

_TERMINATE = 1
"""Place of the wish to stop with a checkpoint."""


@final
class ElasticFeed(WindowFeed):
    """Meets the other ranks at the end of a window, averages, and shares the batches again."""

    def __init__(self, given: FeedParts) -> None:
        super().__init__(given)
        assert isinstance(self._group, ElasticGroup)  # noqa: S101 - the runner makes it
        self._ranks: ElasticGroup = self._group
        self._exchange_ms = 0.0
        self._members: tuple[str, ...] = ()
        """The ranks that share the batches, by name."""
        self._window: LeaseWindow | None = None
        """The window that they train or exchange."""
        self._present: tuple[str, ...] = ()
        """The ranks that have exchanged the latest window; they share the next one."""
        self._offers: Mapping[str, Mapping[str, Any]] = {}
        """What each of them has told about it, by name."""
        self._logs: dict[str, list[dict[str, Any]]] = {}
        """What each rank has measured up to the latest average."""
        self._enters, self._has_met = True, False
        self._model = given.parts.model
        if (joined := given.found.joined) is None:
            return
        self._averager.load_base(given.found.base)
        self.config = replace(self.config, barrier_every=joined.barrier_every)
        self._members, self._saved_at = joined.members, joined.saved_at
        if (plan := joined.window) is not None:
            last = self._last_epoch(plan)
            self._window = LeaseWindow(last, plan.start, plan, self.schedule)
            self._has_met = True

    def attend(self, member: Membership) -> None:
        """Learn how the state of this rank is read and written."""
        self._member = member
        self._ranks.succeed, self._ranks.step_down = member.take_over, member.step_down

    @property
    def rank(self) -> int:
        """The place of this rank among those that share the batches."""
        return self._members.index(self._ranks.name)

    def write_state(self, file: Path) -> None:
        """Write the state of this rank for one that joins."""
        joined = Joined(
            members=self._members,
            window=self._window.plan if self._window is not None else None,
            offers=list(self._offers.values()),
            barrier_every=self.config.barrier_every,
            saved_at=self._saved_at,
        )
        known = {**asdict(joined), "base": self._averager.base()}
        self._member.write(file, self.place(0), self.schedule, known)

    def _take(self, file: Path) -> Joined:
        """Take the weights of a rank that is ahead; return what it knows of the window."""
        named = self._model.named_parameters(remove_duplicate=False)
        load_checkpoint_file(file, named, persistent_buffers(self._model, tied=True))
        extra = TrainingFile.open(file).value("extra")
        if not isinstance(extra, dict) or ELASTIC not in extra:
            raise CheckpointError(f"{file} is not the state of a training for a rank that joins")
        return Joined.from_json(extra[ELASTIC])

    # --- Windows -------------------------------------------------------------------------------

    def open(self) -> LeaseWindow | None:
        """Return the next window; for a rank that has joined first the one of the others."""
        if self._enters:
            self._enter()
        if self._has_met:
            return self._window
        if self._present != self._members:
            self._share_anew()
        return super().open()

    def enter(self, window: LeaseWindow) -> None:
        """Begin a window."""
        super().enter(window)
        self._window = window

    def parts(self, window: LeaseWindow) -> Generator[Part]:
        """Load this rank's lease; a rank that has joined has none."""
        if not self._has_met:
            yield from super().parts(window)

    def _enter(self) -> None:
        """Begin together with the other ranks that are there."""
        self._enters, ranks = False, self._ranks
        if ranks.leads:
            ranks.begin(self.write_state)
            ranks.meet()
        if not self._has_met:
            ranks.commit()
            self._present = ranks.members
        ranks.enter()

    def _share_anew(self) -> None:
        """Share the batches that are left among the ranks that are there now."""
        speeds = dict(zip(self._members, self.schedule.elche.ms, strict=False))
        self._members = self._present
        elche = replace(self.config.elche, world_size=len(self._members))
        self.config = replace(self.config, elche=elche)
        if self.schedule.window == 0 and not self.schedule.position:
            self.schedule = initial_schedule(self.config)
        else:
            known = [speeds.get(name) for name in self._members]
            self.schedule = redistributed(self.schedule, self.config, known)
        self._member.samples.rank = self.rank

    # --- The end of a window -------------------------------------------------------------------

    def exchange(self, window: LeaseWindow, wishes: Sequence[float]) -> Exchanged:
        """Exchange a window with all ranks that are left; the batches of lost ones return."""
        ranks = self._ranks
        averaged, sync_ms = self._averaged(window)
        offers = self._offers
        row = self._row(window, averaged, sync_ms + self._exchange_ms, wishes)
        began = time.perf_counter()
        rows = dict(ranks.gather_objects((ranks.name, row)))
        self._exchange_ms = (time.perf_counter() - began) * 1000
        self._keep_measurements(offers)
        reports = self._reports(offers, rows)
        self._tell(offers, window)
        own = self.rank if ranks.name in self._members else None
        self._window, self._offers, self._present = None, {}, tuple(offers)
        wanted = [row[6:] for row in rows.values()]
        exchanged = self._settled(window.plan, reports, wanted, own, averaged=True)
        segments = [base64.b64decode(offer["segment"]) for offer in offers.values()]
        self._member.record(self.schedule.position, segments)
        if any(offer["gone"] for offer in offers.values()):
            return self._without_lighthouse(exchanged)
        return exchanged

    def _averaged(self, window: LeaseWindow) -> tuple[Averaged, float]:
        """Average with all ranks that are left; return the result and its cost in ms."""
        ranks = self._ranks
        mine: dict[str, Any] = {
            "name": ranks.name,
            "batches": window.done,
            "digest": digest(self.schedule),
            "segment": base64.b64encode(self._member.samples.take()).decode(),
            "logs": self._member.logs.state(),
        }
        while True:
            if not self._has_met and (state := ranks.meet()) is not None:
                # A rank died before all had the average: take it from one that has it.
                joined = self._take(state)
                self._averager.begin_again()
                self._offers = {offer["name"]: offer for offer in joined.offers}
                if ranks.name not in self._offers:
                    raise ranks.left_out()
                self.averages += 1
                return Averaged(0.0, True, 0.0), 0.0
            self._has_met = False
            try:
                with ranks.together():
                    offers = ranks.gather_objects(mine | {"gone": ranks.lighthouse_gone})
                    self._check(offers)
                    self._offers = {offer["name"]: offer for offer in offers}
                    found = self._average(window.samples)
            except RankLost:
                self._offers = {}
                continue
            ranks.commit()
            return found

    def _check(self, offers: Sequence[Mapping[str, Any]]) -> None:
        for offer in offers:
            if offer["digest"] != offers[0]["digest"]:
                raise PlanMismatchError(
                    f"rank {offer['name']} has planned the window differently from rank "
                    f"{offers[0]['name']}; started again, all continue from the last checkpoint"
                )

    def _reports(
        self, offers: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Sequence[float]]
    ) -> list[WindowReport]:
        """Return a report for each rank that had batches; a lost one has trained none."""
        least = min(row[3] for row in rows.values())
        reports = []
        for name in self._members:
            # Of a rank that died after the average, only its batches are known.
            report = report_in(rows.get(name, (0.0, 0.0, 0.0, least, 0.0)))
            batches = int(offers[name]["batches"]) if name in offers else 0
            reports.append(replace(report, batches=batches))
        return reports

    def _keep_measurements(self, offers: Mapping[str, Mapping[str, Any]]) -> None:
        """Add what lost ranks have measured up to their last average to that of the first rank."""
        lost = [
            [one for one in logs if one["epoch"] >= self.schedule.complete]
            for name, logs in self._logs.items()
            if name not in offers
        ]
        if any(lost) and self._ranks.leads:
            logs = self._member.logs
            logs.go_back(add_up([logs.state(), *lost]))
        self._logs = {name: offer["logs"] for name, offer in offers.items()}

    def _tell(self, offers: Mapping[str, Mapping[str, Any]], window: LeaseWindow) -> None:
        lost = [name for name in self._members if name not in offers]
        came = [name for name in offers if name not in self._members]
        for names, word in ((lost, "left"), (came, "joined")):
            if names:
                self._marks(word, ranks=names, window=window.plan.index)
                if self._ranks.leads:
                    log.msg(f"  {len(names)} of the ranks {word}; {len(offers)} train on")

    def _without_lighthouse(self, exchanged: Exchanged) -> Exchanged:
        """Let all ranks stop with a checkpoint: none can leave or join any more."""
        if self._ranks.leads:
            log.warning(
                "the lighthouse is gone, through which ranks leave and join: the training ends "
                "with a checkpoint; start it again to continue from there"
            )
        wishes = list(exchanged.wishes)
        wishes[_TERMINATE] = 1.0
        return replace(exchanged, wishes=wishes)
