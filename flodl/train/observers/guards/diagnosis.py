"""Name the module that is not finite, by training the steps before a bad loss once more."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from flodl.errors import DivergedError
from flodl.train.metrics import ScalarLog, recording_into
from flodl.train.observers.guards.first_non_finite import FirstNonFinite, sentence
from flodl.train.step.eager import EagerEngine
from flodl.train.step.losses import loss_log
from flodl.train.step.tuned import TunedEngine

if TYPE_CHECKING:
    from collections.abc import Collection

    from flodl.data import DataLoader
    from flodl.train.observers.guards.left_out import GuardedParts
    from flodl.train.run.training_state import Position
    from flodl.train.step.base import StepEngine


def diagnosed(
    parts: GuardedParts,
    loader: DataLoader,
    position: Position,
    *,
    until: int,
    skips: Collection[int],
) -> str:
    """Train again from a restored state up to a batch; return a sentence about what was found.

    It calls ``train_fn`` again, with the state and the random numbers of before.

    Args:
        parts: In the state of ``position``.
        loader: The data.
        position: Where the training is.
        until: The last batch to train.
        skips: Batches that are left out.
    """
    engine, accumulate = _plain_engine(parts), parts.plan.accumulate
    look = FirstNonFinite(parts.assembly.model, gradients=parts.plan.scaler is None)
    losses, scalars = loss_log(loader.device, position.epoch), ScalarLog(engine)
    batches = loader.epoch(position.epoch, position.step)
    when = ""
    with look.watching(), recording_into(scalars), suppress(DivergedError):
        for number, batch in enumerate(batches, position.step):
            if number > until or look.found:
                break
            if number in skips:
                continue
            when = f"in step {engine.global_step + 1} of the training, with batch {number}"
            count = min(accumulate, loader.num_batches - number // accumulate * accumulate)
            closes = number % accumulate == count - 1
            engine.step(batch, losses, parts=count, closes=closes)
            losses.check()
    batches.close()
    return sentence(f"{look.found}, {when}" if look.found else "")


def _plain_engine(parts: GuardedParts) -> StepEngine:
    """Return an engine whose steps call hooks, as compiled code does not.

    It is a new one: the engine of the training would take plain steps for its decision, and keep
    that for the next run.
    """
    engine = parts.engine
    engine.close()
    if not isinstance(engine, TunedEngine):
        return engine
    plain = EagerEngine(parts.assembly.model, parts.assembly.optimizer, engine.settings)
    plain.set_schedule(parts.rate.schedule)
    plain.global_step = engine.global_step
    return plain
