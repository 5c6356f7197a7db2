"""The trials of ``auto``: two ways to compute a step, measured in turns.

- :func:`measure` is the protocol. It takes live steps; each ``yield`` is one step.
- :func:`gain` measures on a copy what a step would bring if it were declared pure. The copy calls
  the code of the user, so :func:`doubt` looks before whether this code seems to change nothing
  else. Nothing of the training takes part.
"""

from __future__ import annotations

import copy
import dis
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    SupportsFloat,
    TypeAlias,
    TypeVar,
    final,
)

import torch
from torch import nn

from flodl.checkpoint.generators import generator_states, generators_kept, same
from flodl.train.metrics import RecordedValues, recording_into
from flodl.train.step.capturing import captures_on, refusal_beside_plain_steps
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import has_hooks

if TYPE_CHECKING:
    from flodl.train.step.tuning import Tuning


T = TypeVar("T")
_NOTICEABLE = 0.5
"""Seconds that a single round may cost before its result is believed."""

_HOPELESS, _EVIDENT = 1.1, 0.7
"""If the ratios of two rounds are all above, or all below, more rounds tell nothing new."""


class Taken(NamedTuple):
    """A completed step: its time in seconds, and its batch.

    On a GPU, asking for the seconds waits until the step has run there.
    """

    seconds: SupportsFloat
    batch: Any


Steps: TypeAlias = Generator[None, Taken, T]
"""A trial that runs during training: each ``yield`` is one step of the training and returns it."""


class Measured(NamedTuple):
    """The result of a comparison.

    Attributes:
        ratio: Time of a step with the candidate, divided by the time without. It is infinite if the
            engine could not use the candidate.
        noise: Two standard errors of the ratio.
        cost: Seconds that the comparison has cost the training.
    """

    ratio: float
    noise: float
    cost: float


def measure(
    engine: TunedEngine,
    best: Tuning,
    candidate: Tuning,
    *,
    bar: float,
    block: int,
    rounds: int,
    budget: float,
) -> Steps[Measured]:
    """Compare a candidate with the best way so far, in alternating blocks of live steps.

    Args:
        engine: Computes the steps.
        best: The best way so far.
        candidate: The way to compare.
        bar: The ratio that decides.
        block: Steps that are measured together.
        rounds: Least number of rounds of two blocks; three times as many if noise hides the result.
        budget: Seconds that the comparison may cost; one round is always made.
    """
    ratios: list[float] = []
    cost = noise = 0.0
    while True:
        found: dict[Tuning, _Block] = {}
        for tuning in (best, candidate) if len(ratios) % 2 else (candidate, best):
            engine.use(tuning)
            found[tuning] = yield from _a_block(block)
            if engine.tuning != tuning:
                return Measured(math.inf, 0.0, cost)
        usual, tried = found[best].median, found[candidate].median
        ratios.append(tried / usual)
        cost += max(0.0, tried - usual) * block
        cost += sum(max(0.0, one.first - usual) for one in found.values())
        median, count = statistics.median(ratios), len(ratios)
        deviation = 1.4826 * statistics.median(abs(ratio - median) for ratio in ratios)
        noise = 2 * 1.2533 * deviation / math.sqrt(count)
        far = min(ratios) > _HOPELESS or max(ratios) < _EVIDENT
        clear = count >= rounds and abs(median - bar) >= noise
        if (
            (far and (count > 1 or cost > _NOTICEABLE))
            or clear
            or count >= 3 * rounds
            or cost > budget
        ):
            return Measured(median, noise, cost)


class _Block(NamedTuple):
    """Seconds of the first step of a block, and the median of the others.

    The first step begins with an empty queue of the device, and may change the way: it is not
    compared, but it costs.
    """

    first: float
    median: float


def _a_block(steps: int) -> Steps[_Block]:
    first = yield
    median = yield from median_of_steps(steps)
    return _Block(float(first.seconds), median)


def median_of_steps(steps: int) -> Steps[float]:
    """Take steps and return the median of their seconds."""
    seconds: list[SupportsFloat] = []
    while len(seconds) < steps:
        taken = yield
        seconds.append(taken.seconds)
    return statistics.median(map(float, seconds))  # asked at the end: a GPU is waited for once


@final
class HostClock:
    """For steps that the processor computes: the time inside of them."""

    def __init__(self) -> None:
        self._started = self._spent = 0.0

    def begin(self) -> None:
        """Begin a step or a part of one."""
        self._started = time.perf_counter()

    def end(self) -> None:
        """End a step or a part of one."""
        self._spent += time.perf_counter() - self._started

    def pause(self) -> None:
        """Leave out what happens until the next step begins: it is left out anyway."""

    def take(self) -> float:
        """Return the seconds of the step that has just ended."""
        taken, self._spent = self._spent, 0.0
        return taken


class Mark(Protocol):
    """A point in the queue of a device, as an event of torch is one."""

    def synchronize(self) -> None:
        """Wait until the device has reached the point."""

    def elapsed_time(self, later: Any) -> float:
        """Return the milliseconds until the device has reached another one."""


@final
class DeviceClock:
    """For steps that a GPU computes: its time from the end of one step to the end of the next.

    No step waits for the device. The time of the host counts where the device waits for it.

    Args:
        mark: Puts a mark into the queue of the device.
    """

    def __init__(self, mark: Callable[[], Mark]) -> None:
        self._mark = mark
        self._last: Mark | None = None

    def begin(self) -> None:
        """Begin a step or a part of one."""
        self._last = self._last or self._mark()

    def end(self) -> None:
        """End a step or a part of one."""

    def pause(self) -> None:
        """Leave out what happens until the next step begins."""
        self._last = None

    def take(self) -> SupportsFloat:
        """Return the seconds of the step that has just ended."""
        before, self._last = self._last, self._mark()
        return _Between(before or self._last, self._last)


@final
class _Between:
    """The seconds between two marks, read when somebody asks for them."""

    def __init__(self, start: Mark, end: Mark) -> None:
        self._start, self._end = start, end

    def __float__(self) -> float:
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3


def step_clock(device: torch.device) -> HostClock | DeviceClock:
    """Return the clock for the steps of a device."""
    if device.type != "cuda":
        return HostClock()

    def mark() -> Mark:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        found: Mark = event
        return found

    return DeviceClock(mark)


_READS = {"item", "tolist", "numpy", "cpu", "open", "print", "input", "write", "put"}
"""Names that read from the device, or change something outside of a step."""

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))

_VALUES = (
    *(int, float, str, bytes, NoneType, torch.dtype, torch.device),
    *(type, ModuleType, BuiltinFunctionType),
)
"""Kinds of values that a step may use and cannot change."""

_LIBRARIES = ("torch", "flodl", "math", "builtins", "typing", "functools")
_STORES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR")


class Gain(NamedTuple):
    """What a declaration would bring.

    Attributes:
        tuning: The way that is then possible.
        ratio: Time of a step that way by the time of a step now.
    """

    tuning: Tuning
    ratio: float


def doubt(model: nn.Module, train_fn: object) -> str:
    """Return why a step may change something beside the model and its optimizer; empty if not."""
    if has_hooks(model):
        return "the model has hooks"
    has_state = getattr(model, "has_state", None)
    if callable(has_state) and has_state():
        return "the model keeps state between calls"
    for module in model.modules():
        kind = type(module)
        if not _is_of_a_library(kind):
            for name in vars(module).keys() - _OF_EVERY_MODULE:
                if not _is_fixed(value := getattr(module, name)):
                    return f"{kind.__name__}.{name} is a {type(value).__name__}"
    seen: set[object] = set()
    left = [train_fn, *(type(module).forward for module in model.modules())]
    while left:
        function = left.pop()
        if function in seen or _is_of_a_library(function):
            continue
        seen.add(function)
        if not isinstance(function, FunctionType):
            return f"{type(function).__name__} {function!r} is not a plain function"
        name = function.__qualname__
        if reason := _doubt_of_code(function.__code__):
            return f"{name} {reason}"
        for word, value in _values(function):
            if isinstance(value, FunctionType):
                left.append(value)
            elif not _is_fixed(value):
                return f"{name} uses {word}, a {type(value).__name__}"
    return ""


def gain(
    engine: TunedEngine,
    batch: Any,
    *,
    compiles: bool,
    bar: float,
    block: int,
) -> Gain | str:
    """Measure on a copy what a pure step would bring.

    Args:
        engine: Of the training; its model and its optimizer are copied.
        batch: A batch of the training.
        compiles: Whether the training is long enough to compile.
        bar: The ratio that decides.
        block: Steps that are measured together.

    Returns:
        The best way; or why there is none.
    """
    settings = replace(engine.settings, ledger=None, after_step=None, values=None, reduce=None)
    with generators_kept(), recording_into(RecordedValues()):
        own, its = copy.deepcopy((engine.model, engine.optimizer))
        shadow = TunedEngine(own, its, settings)
        before = generator_states()
        _taken(shadow, _one_step(), batch)
        if not same(before, generator_states()):
            return "a step draws random numbers"
        gains = []
        for way in _ways(shadow, engine.tuning, batch, compiles=compiles):
            trial = measure(
                shadow, engine.tuning, way, bar=bar, block=block, rounds=3, budget=math.inf
            )
            found = _taken(shadow, trial, batch)
            if found.ratio + found.noise <= bar:
                gains.append(Gain(way, found.ratio))
        shadow.close()
    return min(gains, key=lambda one: one.ratio, default="nothing that it allows is faster")


def _ways(shadow: TunedEngine, usual: Tuning, batch: Any, *, compiles: bool) -> Iterator[Tuning]:
    """Yield the ways that only a pure step allows, and for which this one is fit."""
    model, optimizer = shadow.model, shadow.optimizer
    device = next(model.parameters()).device
    if captures_on(device) and not refusal_beside_plain_steps(
        model, optimizer, shadow.settings, device
    ):
        yield replace(usual, captured=True)
    if compiles and not shadow.compile(batch):
        yield replace(usual, compiled=True, channels_last=False)


def _one_step() -> Steps[Measured]:
    yield
    return Measured(1.0, 0.0, 0.0)


def _taken(engine: TunedEngine, trial: Steps[Measured], batch: Any) -> Measured:
    """Take the steps of a trial."""
    device = next(engine.model.parameters()).device
    clock, losses = step_clock(device), loss_log(device, 0)
    next(trial)
    while True:
        clock.begin()
        engine.step(batch, losses)
        clock.end()
        try:
            trial.send(Taken(clock.take(), batch))
        except StopIteration as end:
            found: Measured = end.value
            return found


def _is_of_a_library(function: object) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] in _LIBRARIES


def _doubt_of_code(code: CodeType) -> str:
    for one in nested(code):
        if read := _READS & set(one.co_names):
            return f"calls {min(read)}"
        for step in dis.get_instructions(one):
            if step.opname in _STORES:
                return f"sets {step.argval or 'an item'}"
            if step.opname == "STORE_DEREF" and step.argval in one.co_freevars:
                return f"sets {step.argval}"
    return ""


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a piece of code, and those of the functions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def _values(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the values from outside of a function that its code names."""
    for code in nested(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents
    yield from ((name, value) for name, value in (function.__kwdefaults__ or {}).items())


def _is_fixed(value: object) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_fixed, value))
    return isinstance(value, _VALUES)
