"""One trial of several tunings, each of which changes the time of one phase of a step only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from flodl.monitor.ledger import Account
from flodl.train.engines.comparing import phase_ratios

if TYPE_CHECKING:
    from flodl.train.engines.comparing import Extent
    from flodl.train.engines.live_steps import Steps
    from flodl.train.engines.tuned import TunedEngine
    from flodl.train.engines.tuning import Tuning

PHASE_OF = {
    "fused": Account.OPTIMIZER,
    "route_forward": Account.FORWARD,
    "route_backward": Account.BACKWARD,
}
"""Field of :class:`Tuning` -> the phase whose time it changes."""


@final
@dataclass(frozen=True, slots=True)
class Found:
    """The result of a trial.

    Attributes:
        tuning: The tuning to use.
        ratio: Time of a step with it, divided by the time before.
        whole: Whether its parts were measured exactly as they are used, all of them together.
        notes: What the trial says about each candidate.
    """

    tuning: Tuning
    ratio: float
    whole: bool
    notes: Mapping[str, str]


def phase_trial(
    engine: TunedEngine, best: Tuning, fields: Mapping[str, str], bar: float, extent: Extent
) -> Steps[Found]:
    """Try candidates together; keep those whose phase becomes faster.

    Args:
        engine: The engine of the training.
        best: The tuning so far.
        fields: Name of a candidate -> its field, one of :data:`PHASE_OF`.
        bar: A candidate is kept if it brings a step to this part of its time, or below.
        extent: How long to compare.
    """
    left, notes = dict(fields), dict[str, str]()
    tuning = replace(best, **dict.fromkeys(left.values(), True))
    engine.use(tuning)
    yield  # checks the fused kernel, and prepares products
    if engine.fused_refusal and tuning.fused:
        notes |= {name: engine.fused_refusal for name in left if left[name] == "fused"}
        left = {name: field for name, field in left.items() if field != "fused"}
        tuning = replace(tuning, fused=False)
    if not left:
        return Found(best, 1.0, False, notes)
    bars = {PHASE_OF[field]: bar for field in left.values()}
    ratios = yield from phase_ratios(engine, best, tuning, bars, extent)
    notes |= {name: f"{ratios[PHASE_OF[field]]:.3f}x" for name, field in left.items()}
    kept = [field for field in left.values() if ratios[PHASE_OF[field]] <= bar]
    chosen = replace(best, **dict.fromkeys(kept, True))
    ratio = 1 + sum(ratios[PHASE_OF[field]] - 1 for field in kept)
    if len(kept) > 1:
        notes["all together"] = f"{ratio:.3f}x"
    return Found(chosen, ratio, chosen == tuning, notes)
