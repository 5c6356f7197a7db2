"""What callbacks learn when a training has gone back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.train.callbacks import Rewind

if TYPE_CHECKING:
    from flodl.data import DataLoader
    from flodl.train.callbacks import Hooks, TrainingRun
    from flodl.train.observers.guards.guard import Decision, Setback


def rewind_of(
    setback: Setback, decision: Decision, loader: DataLoader, step: int, restored: int
) -> Rewind:
    """Describe a decision for callbacks.

    Args:
        setback: What happened.
        decision: What follows from it.
        loader: The data.
        step: Optimizer steps when it happened.
        restored: Optimizer steps of the restored state.
    """
    rows = (loader.rows(decision.epoch, batch) for batch in decision.batches)
    return Rewind(
        step=step,
        restored_step=restored,
        epoch=decision.epoch,
        batches=tuple(decision.batches),
        samples=tuple(int(one) for numbers in rows for one in numbers),
        attempt=decision.attempt,
        reason=setback.what,
    )


def tell_callbacks(hooks: Hooks, run: TrainingRun, rewind: Rewind) -> None:
    """Call ``on_rewind``; random numbers that a callback draws do not change the next steps."""
    states = generator_states()
    hooks.call("on_rewind", run, rewind)
    set_generator_states(states)
