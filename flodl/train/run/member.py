"""What a rank does for the others, where ranks come and go.

A rank that joins gets an ordinary checkpoint with one more value: how the ranks share the window
that they train.

Rank 0 may be lost, too. Then another rank writes on in the same run directory. The page and the
curves show its own steps from now on. Of earlier epochs, the load of the machine is not known any
more.
"""

from __future__ import annotations

import base64
import os
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, final

from flodl import log
from flodl.checkpoint.names import persistent_buffers
from flodl.checkpoint.store import load_checkpoint_file
from flodl.checkpoint.training import TrainingFile
from flodl.errors import CheckpointError, DivergedError
from flodl.ranks.planning.schedule import Joined
from flodl.train.epoch_metrics import add_up
from flodl.train.observers.epoch_observers import EpochFunction
from flodl.train.run.rank_state import ELASTIC, rank_record
from flodl.train.run.training_state import TrainingState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from flodl.ranks.planning.schedule import ScheduleState
    from flodl.train.loop import Loop
    from flodl.train.run.training_state import Position
    from flodl.train.steps import Steps


@final
class Member:
    """Reads and writes the state of this rank.

    Args:
        steps: The steps of this rank; their checkpoints know the state of the loop.
        take_over: Lets this rank write the files of the training and print.
        step_down: Lets this rank write no more.
    """

    def __init__(
        self,
        steps: Steps,
        take_over: Callable[[], object],
        step_down: Callable[[], object],
    ) -> None:
        self._steps = steps
        self.take_over, self.step_down = take_over, step_down

    def write(
        self,
        file: Path,
        place: Position,
        schedule: ScheduleState,
        joined: Joined,
        base: Mapping[str, Tensor],
    ) -> None:
        """Write the state of this rank for one that joins; only this rank takes part."""
        steps = self._steps
        state, counts = steps.checkpoints.state()
        rank = rank_record(steps.parts, steps.logs, counts, "", {}) | {"logs": []}
        shared = {
            "schedule": schedule.as_json(),
            "ranks": [rank],
            "ledger": steps.checkpoints.ledger_mark(),
        }
        extra = replace(state, distributed=shared).as_json() | {
            ELASTIC: {**asdict(joined), "writes": steps.checkpoints.keeps, "base": base}
        }
        captured = TrainingState.capture(steps.parts.parts(extra), place)
        assert captured is not None  # noqa: S101 - the model is not sharded
        captured.write(file)

    def take(self, file: Path) -> Joined:
        """Take the weights of a rank that is ahead; return what it knows of the window."""
        model = self._steps.parts.model
        named = model.named_parameters(remove_duplicate=False)
        load_checkpoint_file(file, named, persistent_buffers(model, tied=True))
        extra = TrainingFile.open(file).value("extra")
        if not isinstance(extra, dict) or ELASTIC not in extra:
            raise CheckpointError(f"{file} is not the state of a training for a rank that joins")
        return Joined.from_json(extra[ELASTIC])

    def told(self) -> dict[str, Any]:
        """Return the samples that this rank has trained since the last call, and its metrics."""
        segment = self._steps.checkpoints.samples.take()
        return {
            "segment": base64.b64encode(segment).decode(),
            "logs": self._steps.logs.state(),
        }

    def record(self, position: int, offers: Sequence[Mapping[str, Any]]) -> None:
        """Write the samples of all ranks to the ledger, or follow the rank that does."""
        segments = [base64.b64decode(offer["segment"]) for offer in offers]
        self._steps.checkpoints.append_segments(position, segments)

    def add_logs(self, lost: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Add what lost ranks have measured to what this rank has."""
        logs = self._steps.logs
        logs.go_back(add_up([logs.state(), *lost]))

    def renumber(self, rank: int) -> None:
        """Let this rank have another number in the ledger."""
        self._steps.checkpoints.samples.rank = rank


def take_over(loop: Loop) -> None:
    """Write and print from now on; only this rank takes part.

    Raises:
        RunDirectoryError: The run directory or its sample ledger cannot be continued.
    """
    plan, steps, reporter = loop.plan.whole, loop.steps, loop.reporter
    assert plan is not None  # noqa: S101 - a rank of the start has it
    log.set_verbosity(log.level_of(os.environ))
    log.warning("the rank that writes the files of the training is gone; another one writes now")
    if plan.run_dir is not None:
        plan.run_dir.take_over()
    with suppress(DivergedError):  # the next average or the end of the epoch tells it
        steps.logs.pass_on()
    loop.plan = steps.plan = plan
    loop.checkpoints.take_over(plan, steps.engine.global_step)
    if (trace := loop.checkpoints.trace) is not None:
        steps.logs.record_losses(trace.take_losses)
    loop.steering.record_in(plan.run_dir)
    records = reporter.take_over(plan)
    reporter.introduce(loop.run, steps.engine, records, loop.steering)
    if plan.metrics_fn is not None:
        loop.observers.add(EpochFunction(plan.metrics_fn))
    loop.steering.open()
    steps.leads, steps.told = True, -1


def step_down(loop: Loop) -> None:
    """Write no more: the others have gone on without this rank, and one of them writes."""
    if loop.plan.run_dir is not None:
        loop.plan.run_dir.hand_over()
