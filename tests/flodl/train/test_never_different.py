"""A default may make a training faster, never different: twelve programs, eager beside auto."""

from __future__ import annotations

import dataclasses
import functools
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from flodl.checkpoint.generators import generator_states, same
from flodl.train.step import (
    AutoEngine,
    AutoPolicy,
    EagerEngine,
    StepSettings,
    TunedEngine as StepEngine,
)
from flodl.train.step.capturing import captures_on
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuning import Tuning
from tests.flodl.train.twelve_programs import PROGRAMS, Program, batches, moco

LAID_OUT = {"moco", "class_attribute", "accumulating_metric", "ema_teacher", "dropout"}
"""Programs with a row of image layers and without hooks."""

EVERYDAY = {"reading_hooks", "dropout"}
"""Hooks and random numbers. Metrics and a second model are in the slow suite; ``moco`` is also
trained below, with one tuning at a time."""

FLOOR = 2.0**-23
"""Relative rounding of one float32 number: where a program damps all drift, that much remains."""

KEEP_ALL = AutoPolicy(
    least_steps=1, least_seconds=0.0, cost=1e9, gain=-1e9, block=2, short_step=1e9
)
"""Tries everything in a few steps, and keeps all of it."""


PERMITTED = ("compiled", "autotuned")
TUNINGS = [field.name for field in dataclasses.fields(Tuning) if field.name not in PERMITTED]
"""Every tuning that the engine has. Compiling needs the user's permission."""

UNTIL_DECIDED = 0
"""As a number of steps: to 40 steps after the decision, which comes later on a machine with other
work, and then to a round number: trainings that are as long are compared with the same one."""
ROUND = 100


class Ran(NamedTuple):
    """What a run has left behind."""

    counts: dict[str, object]
    generators: dict[str, Any]
    values: dict[str, Tensor]
    report: dict[str, Any]
    used: set[str]
    steps: int


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(
    make: Callable[[Path], Program],
    folder: Path,
    engine_of: Callable[[Program], StepEngine],
    steps: int,
) -> Ran:
    """Train a program from the same beginning, and tell what is there at its end."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    program = make(folder)
    engine = engine_of(program)
    losses = loss_log(torch.device("cpu"), 0)
    done, last = 0, steps or 1500
    for batch in batches(program.images, last):
        engine.step(batch, losses)
        done += 1
        if steps == UNTIL_DECIDED and not engine.decided:
            last = -(-(done + 40) // ROUND) * ROUND
        if done == last:
            break
    engine.present()
    generators = generator_states()
    model, states = program.model, program.optimizer.state.values()
    groups = {
        "weights": dict(model.named_parameters()),
        "buffers": dict(model.named_buffers()),
        "optimizer": {f"{at} {n}": v for at, one in enumerate(states) for n, v in one.items()},
        "outside": program.values(),
        "losses": {"": torch.tensor(losses.take(), dtype=torch.float64)},
    }
    tensors = [
        (f"{group} {name}", value.detach().clone())
        for group, found in groups.items()
        for name, value in found.items()
        if isinstance(value, Tensor)
    ]
    whole = {n: v.tolist() for n, v in tensors if not v.is_floating_point() or n.endswith(" step")}
    values = {
        group: torch.cat(
            [torch.zeros(1).double()]
            + [
                v.double().reshape(-1)
                for n, v in tensors
                if n.split()[0] == group and n not in whole
            ]
        )
        for group in groups
    }
    layouts = {name: p.is_contiguous() for name, p in program.model.named_parameters()}
    counts = {**program.counts(), **whole, "losses": len(values["losses"]), **layouts}
    decided = engine.decision()
    usual = Tuning().as_json()
    tuning = decided["tuning"] if decided else usual
    used = {name for name, value in tuning.items() if value != usual[name]}
    return Ran(counts, generators, values, dict(engine.report()), used, done)


def eager(program: Program) -> StepEngine:
    return EagerEngine(program.model, program.optimizer, StepSettings(train_fn=program.train_fn))


def rounded_once_more(program: Program) -> StepEngine:
    """Eager, with one more rounding error in each element of each gradient."""
    draw = torch.Generator().manual_seed(9)

    def round_again(grad: Tensor) -> Tensor:
        signs = torch.randint(-1, 2, grad.shape, generator=draw)
        return grad * (1 + torch.finfo(grad.dtype).eps * signs)

    for parameter in program.model.parameters():
        parameter.register_hook(round_again)
    return eager(program)


def laid_out(program: Program) -> StepEngine:
    """Eager, with the layout of memory in which torch adds up in another order."""
    program.model.to(memory_format=torch.channels_last)
    return eager(program)


def auto(program: Program, policy: AutoPolicy = KEEP_ALL) -> StepEngine:
    settings = StepSettings(train_fn=program.train_fn)
    return AutoEngine(program.model, program.optimizer, settings, total_steps=10**6, policy=policy)


@functools.cache
def plain_run(make: Callable[[Path], Program], steps: int) -> tuple[Ran, dict[str, float]]:
    """Train plainly; return the run, and how far honest changes of rounding move it."""
    with tempfile.TemporaryDirectory() as folder:
        with threads(1):
            one = run(make, Path(folder), eager, steps)
            changes = (rounded_once_more, *([laid_out] if make.__name__ in LAID_OUT else []))
            changed = [run(make, Path(folder), change, steps) for change in changes]
        with threads(2):
            plain = run(make, Path(folder), eager, steps)
    found = [distances(plain, one), *(distances(one, other) for other in changed)]
    return plain, {name: max(each[name] for each in found) for name in found[0]}


def distances(one: Ran, other: Ran) -> dict[str, float]:
    """Relative distance of everything that may differ, by kind."""
    return {
        name: float((value - other.values[name]).norm() / value.norm().clamp_min(1e-30))
        for name, value in one.values.items()
    }


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        *(pytest.param(make, UNTIL_DECIDED) for make in PROGRAMS if make.__name__ in EVERYDAY),
        *(
            pytest.param(make, steps, marks=pytest.mark.slow)
            for make in PROGRAMS
            for steps in (400, 900)
        ),
    ],
)
def test_auto_leaves_behind_what_eager_does(
    make: Callable[[Path], Program], tmp_path: Path, steps: int
) -> None:
    with threads(2):
        tuned = run(make, tmp_path, auto, steps)
        assert torch.get_num_threads() == 2
    assert tuned.report["decided"]
    plain, drift = plain_run(make, tuned.steps)
    assert_same_run(tuned, plain)
    assert len(tuned.report["tuning"]) >= 3, tuned.report
    assert ("channels last" in tuned.report["tuning"]) == (make.__name__ in LAID_OUT), tuned.report
    assert_within(drift, tuned, plain)


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize(
    ("make", "steps"),
    [
        pytest.param(moco, UNTIL_DECIDED),
        *(pytest.param(make, 400, marks=pytest.mark.slow) for make in PROGRAMS),
    ],
)
def test_each_tuning_alone_leaves_behind_what_eager_does(
    make: Callable[[Path], Program], tmp_path: Path, steps: int, tuning: str
) -> None:
    policy = dataclasses.replace(KEEP_ALL, only=frozenset({tuning}))
    with threads(2):
        tuned = run(make, tmp_path, lambda program: auto(program, policy), steps)
    assert tuned.report["decided"]
    plain, drift = plain_run(make, tuned.steps)
    assert_same_run(tuned, plain)
    assert tuned.used <= {tuning}
    if tuned.used:
        assert_within(drift, tuned, plain)
    else:
        assert all(torch.equal(tuned.values[name], plain.values[name]) for name in plain.values)
    if not tuned.used:
        assert refused(tuning, make.__name__, tuned.report), tuned.report


def refused(tuning: str, program: str, report: dict[str, Any]) -> bool:
    """Whether a tuning is left out for a reason of the program or of the machine."""
    if tuning == "channels_last":
        return program not in LAID_OUT
    if tuning == "captured":  # the programs train on the processor
        return not captures_on(torch.device("cpu"))
    if tuning == "onednn":
        reasons = ("error", "oneDNN", "has no setting")
        return any(reason in note for note in report["trials"].values() for reason in reasons)
    return False


def assert_same_run(tuned: Ran, plain: Ran) -> None:
    """Compare everything that must be equal exactly."""
    assert tuned.counts == plain.counts
    assert same(tuned.generators, plain.generators)


def assert_within(drift: dict[str, float], tuned: Ran, plain: Ran) -> None:
    """Compare the rest with the drift of honest rounding."""
    for name, distance in distances(plain, tuned).items():
        assert distance <= 3 * drift[name] + FLOOR, (name, distance, drift[name], tuned.report)
