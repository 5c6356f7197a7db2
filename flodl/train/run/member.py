"""The state of one rank for the others, where ranks come and go.

A rank that joins gets an ordinary checkpoint with one more value: how the ranks share the window
that they train.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, final

from flodl.checkpoint.names import persistent_buffers
from flodl.checkpoint.store import load_checkpoint_file
from flodl.checkpoint.training import TrainingFile
from flodl.errors import CheckpointError
from flodl.ranks.planning.schedule import Joined
from flodl.train.epoch_metrics import add_up
from flodl.train.run.training_state import TrainingState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from flodl.ranks.planning.schedule import ScheduleState
    from flodl.train.run.training_state import Position
    from flodl.train.saving import Saving
    from flodl.train.steps import Steps

ELASTIC = "elastic"
"""Key of the value that only such a checkpoint has."""


@final
class Member:
    """Reads and writes the state of this rank.

    Args:
        steps: The steps of this rank.
        saving: Knows the state of the loop.
        take_over: Lets this rank write the files of the training and print.
        step_down: Lets this rank write no more.
    """

    def __init__(
        self,
        steps: Steps,
        saving: Saving,
        take_over: Callable[[], object],
        step_down: Callable[[], object],
    ) -> None:
        self._steps, self._saving = steps, saving
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
        state, counts = self._saving.state()
        extra = steps.checkpoints.described(state).as_json() | {
            ELASTIC: {
                **asdict(joined),
                "base": base,
                "schedule": schedule.as_json(),
                "rank": asdict(counts),
                "writes": steps.checkpoints.keeps,
                "ledger": steps.checkpoints.ledger_mark(),
            }
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
