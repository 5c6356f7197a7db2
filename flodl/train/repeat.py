"""The first steps of a training, repeated for ``fdl runs diff --bisect``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch

from flodl.errors import RunDirectoryError
from flodl.train.run.run_records import REPEAT

if TYPE_CHECKING:
    from flodl.train.plan import TrainingPlan


@final
@dataclass(frozen=True, slots=True)
class Repeat:
    """How to repeat the beginning of a training.

    Attributes:
        steps: Optimizer steps of the whole training after which it ends.
        engine: The engine in place of the program's; None keeps that.
        threads: Threads of torch in place of the program's; None keeps those.
    """

    steps: int
    engine: str | None = None
    threads: int | None = None

    def applied(self, plan: TrainingPlan) -> TrainingPlan:
        """Return the plan that ends early and takes digests after every step.

        Evaluation and callbacks stay, because they may draw random numbers. Pages and other
        receivers of metrics get nothing.
        """
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return replace(
            plan,
            most_steps=self.steps,
            every_digest=True,
            engine=plan.engine if self.engine is None else self.engine,
            live=None,
            sinks=(),
            timeline=None,
            record_timeline=False,
            progress=False,
        )


def repeat_wanted() -> Repeat | None:
    """What the environment of this process asks for; None for a whole training.

    Raises:
        RunDirectoryError: The file that the variable names cannot be read.
    """
    named = os.environ.get(REPEAT)
    if not named:
        return None
    try:
        facts = json.loads(Path(named).read_text(encoding="utf-8"))
        return Repeat(int(facts["steps"]), facts.get("engine"), facts.get("threads"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(
            f"{REPEAT} names {named}, which does not say what to repeat ({error}): unset {REPEAT}"
        ) from error
