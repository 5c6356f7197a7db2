"""The state that the loop itself must save to continue later, as JSON values.

The tensors of a training (model, optimizer, generators) are kept elsewhere. This state has the
complete epochs, and the position in the current one.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, final

from fdl.base.units import in_json
from flodl.errors import CheckpointError
from flodl.json_form import from_form
from flodl.monitor import EpochMetrics, EpochRecord, RankMetrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEY = "distributed"
"""Key of what the ranks have; a process alone is one rank, without a schedule."""

_ALONE: dict[str, Any] = {"schedule": None, "ranks": []}
"""What a new training has of it."""


@final
@dataclass(frozen=True, slots=True)
class Position:
    """The position of a training.

    Attributes:
        epoch: Number of complete epochs, which is the number of the current epoch, counted from 0.
        step: Steps done in that epoch.
        global_step: Optimizer steps done in the whole run.
    """

    epoch: int
    step: int
    global_step: int


BEGINNING = Position(0, 0, 0)
"""Where a new training begins."""


@final
class EpochTexts:
    """The epochs of one training as JSON text, each converted once.

    Every checkpoint holds all epochs so far. Converting all of them each time would take longer
    with each epoch, and in the end longer than the epoch itself.
    """

    def __init__(self) -> None:
        self._history: list[str] = []
        self._records: list[str] = []

    def history(self, epochs: Sequence[EpochMetrics]) -> str:
        """Return a JSON list; ``epochs`` may only grow from call to call."""
        self._history += map(_text, map(_metrics_as_json, epochs[len(self._history) :]))
        return f"[{','.join(self._history)}]"

    def records(self, epochs: Sequence[EpochRecord]) -> str:
        """Return a JSON list; ``epochs`` may only grow from call to call."""
        self._records += (_text(epoch.as_json()) for epoch in epochs[len(self._records) :])
        return f"[{','.join(self._records)}]"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LoopState:
    """The loop's own part of a checkpoint."""

    history: Sequence[EpochMetrics] = ()
    records: Sequence[EpochRecord] = ()
    ledger: Mapping[str, Any] = field(default_factory=dict)
    grouping: Mapping[str, int] = field(default_factory=dict)
    """Settings that decide which samples a step sees."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """The decision of the engine, so that a resumed run need not measure again."""
    acts: Mapping[str, Any] = field(default_factory=dict)
    """What people changed while it trained; empty for most trainings."""
    guard: Mapping[str, Any] = field(default_factory=dict)
    """What the guards know; empty without guards."""
    distributed: Mapping[str, Any] = field(default_factory=partial(deepcopy, _ALONE))
    """How the ranks share the batches, and what each has counted and measured."""

    def as_json(self, epochs: EpochTexts | None = None) -> dict[str, Any]:
        """Return the JSON form.

        Args:
            epochs: Keeps the text of epochs that were converted before.
        """
        epochs = epochs or EpochTexts()
        return {
            "history": epochs.history(self.history),
            "records": epochs.records(self.records),
            "ledger": dict(self.ledger),
            "grouping": dict(self.grouping),
            "engine": dict(self.engine),
            KEY: dict(self.distributed),
            **({"acts": dict(self.acts)} if self.acts else {}),
            **({"guard": dict(self.guard)} if self.guard else {}),
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> LoopState:
        """Read the result of :meth:`as_json`.

        Raises:
            CheckpointError: It has another form.
        """
        try:
            return cls(
                history=[_metrics_from_json(metrics) for metrics in json.loads(form["history"])],
                records=[EpochRecord.from_json(record) for record in json.loads(form["records"])],
                ledger=dict(form["ledger"]),
                grouping={str(name): int(value) for name, value in form["grouping"].items()},
                engine=dict(form["engine"]),
                acts=dict(form.get("acts", {})),
                guard=dict(form.get("guard", {})),
                distributed={**form[KEY], "ranks": [dict(rank) for rank in form[KEY]["ranks"]]},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint's record of the training is malformed "
                f"({type(error).__name__}: {error}); resume from another one"
            ) from error

    def check_grouping(self, grouping: Mapping[str, int], step: int) -> None:
        """Refuse to continue inside an epoch with other batches.

        Raises:
            CheckpointError: A setting differs and ``step`` batches of the epoch are done.
        """
        changed = [name for name, value in grouping.items() if self.grouping.get(name) != value]
        if step and changed:
            name = changed[0]
            raise CheckpointError(
                f"the checkpoint was written {step} batches into an epoch with "
                f"{name}={self.grouping.get(name)}, and now it is {grouping[name]}: the rest of "
                "the epoch would be other batches; keep the setting, or resume from a checkpoint "
                "at the end of an epoch"
            )


def _text(form: object) -> str:
    return json.dumps(form, separators=(",", ":"), allow_nan=False)


def _metrics_as_json(metrics: EpochMetrics) -> dict[str, Any]:
    form = asdict(metrics)
    form["avg_loss"] = in_json(metrics.avg_loss)
    form["lr"] = None if metrics.lr is None else in_json(metrics.lr)
    form["scalars"] = {name: in_json(value) for name, value in metrics.scalars.items()}
    form["per_rank"] = [rank.as_json() for rank in metrics.per_rank]
    return form


def _metrics_from_json(form: Mapping[str, Any]) -> EpochMetrics:
    ranks = [RankMetrics.from_json(rank) for rank in form["per_rank"]]
    return from_form(EpochMetrics, {**form, "per_rank": ranks})
