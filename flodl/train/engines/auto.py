"""The engine that begins plainly, tries what could be faster in live steps, and keeps what is."""

from __future__ import annotations

import copy
import math
import os
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar, final

import torch

from flodl import log
from flodl.checkpoint.generators import generator_states
from flodl.monitor.formats import format_duration
from flodl.monitor.ledger import Account
from flodl.train.engines import heap
from flodl.train.engines.agreement import disagreement, generators_kept
from flodl.train.engines.compiling import BackgroundCompilation, compiled_forward, first_line, warm
from flodl.train.engines.fused import fused_step
from flodl.train.engines.rewinding import Rewinding, same
from flodl.train.engines.routing import route_verdict
from flodl.train.engines.side_effects import Surroundings
from flodl.train.engines.tuned import TunedEngine
from flodl.train.engines.tuning import Tuning, can_be_laid_out

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from torch import nn

    from flodl.data import Batch
    from flodl.train.engines.base import StepSettings
    from flodl.train.losses import LossLog

    T = TypeVar("T")
    Steps = Generator[None, "_Taken", T]
    """Runs as training goes: each ``yield`` is one step of the training, and tells about it."""


_FIRST = 5
"""Plain steps that tell what a step takes."""


class _Taken(NamedTuple):
    """A step that was taken: its time in seconds, and what it trained on."""

    seconds: float
    batch: Batch


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class AutoPolicy:
    """When trying pays.

    Attributes:
        least_steps: A run with fewer steps stays plain.
        least_seconds: So does one that a plain engine would finish sooner than this.
        compile_gain: Part of the remaining time that compiling may be expected to save.
        compile_seconds: What compiling is expected to take from a run.
        gain: A tuning must save this part of a step to be kept.
        doubt: Part of the steps left that one comparison may take when its result is not clear.
        faults: Page faults per step from which on keeping the heap is tried.
    """

    least_steps: int = 200
    least_seconds: float = 3.0
    compile_gain: float = 0.15
    compile_seconds: float = 20.0
    gain: float = 0.02
    doubt: float = 0.02
    faults: int = 2000


@final
class AutoEngine(TunedEngine):
    """Tries tunings in the steps of the training itself and keeps whichever is measurably faster.

    Nothing waits for a decision: every trial step is a training step. A tuning is tried only after
    it has agreed with the plain step on copies of the model and the optimizer.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: How a step goes.
        total_steps: Optimizer steps to come.
        memory: Try to keep the heap, and other layouts of weights; ``FDL_MEMORY=default`` in the
            environment says no for all trainings.
        policy: When trying pays.
    """

    name: ClassVar[str] = "auto"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: StepSettings,
        *,
        total_steps: int,
        memory: bool = True,
        policy: AutoPolicy | None = None,
    ) -> None:
        super().__init__(model, optimizer, settings)
        self._policy = policy or AutoPolicy()
        self._steps_left = total_steps
        self._memory = memory and os.environ.get("FDL_MEMORY") != "default"
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._compilation: BackgroundCompilation | None = None
        self._notes: dict[str, object] = {}
        self._plain_seconds = 0.0
        self._seconds = 0.0
        self._spent = 0.0
        self._side_effect = ""
        self._direction: Steps[None] | None = None
        if total_steps >= self._policy.least_steps:
            self._direction = self._direct()
            next(self._direction)

    @property
    def decided(self) -> bool:
        """Whether the trials are over."""
        return self._direction is None

    def step(self, batch: Batch, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        if self._direction is None:
            super().step(batch, losses, parts=parts, closes=closes)
            return
        started = time.perf_counter()
        super().step(batch, losses, parts=parts, closes=closes)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._spent += time.perf_counter() - started
        if closes:
            self._steps_left -= 1
            taken, self._spent = _Taken(self._spent, batch), 0.0
            try:
                self._direction.send(taken)
            except StopIteration:
                self._direction = None

    def report(self) -> Mapping[str, object]:
        """Tell what was tried, what was kept and what it brings."""
        return {
            **super().report(),
            "decided": self.decided,
            "plain_ms": round(self._plain_seconds * 1e3, 4),
            "step_ms": round(self._seconds * 1e3, 4),
            "trials": dict(self._notes),
        }

    def close(self) -> None:
        """Stop trying, give back the heap; a compilation under way ends in the background."""
        self._direction = None
        if self._compilation is not None:
            self._compilation.join(timeout=1.0)
            self._compilation = None
        super().close()

    # --- What happens between steps -----------------------------------------------------------

    def _direct(self) -> Steps[None]:
        """The whole course of the trials."""
        yield from _median(3)  # the first steps allocate, and make the optimizer's state
        around = Surroundings(self.settings.train_fn, self._model, self._optimizer)
        generators, faults = generator_states(), heap.page_faults()
        self._plain_seconds = self._seconds = yield from _median(_FIRST)
        faults = (heap.page_faults() - faults) // _FIRST
        if self._left() < self._policy.least_seconds:
            self._notes["none"] = f"{format_duration(self._left())} left: nothing would pay"
            return
        if changed := around.changed():
            self._side_effect = f"a trial would be felt outside of the model: {changed}"
        del around
        best = Tuning()
        for name, candidate in self._candidates(faults):
            tuning = replace(best, **candidate)
            best = yield from self._try(name, best, tuning)
        # Not only in steps: an evaluation between them may draw as well.
        draws = not same(generators, generator_states())
        best = yield from self._try_compiled(best, draws=draws)
        if best != Tuning():
            best = yield from self._settle(best)
        self.use(best)
        self._say(best)

    def _candidates(self, faults: int) -> list[tuple[str, dict[str, bool]]]:
        found: list[tuple[str, dict[str, bool]]] = []
        on_cpu = self._device.type == "cpu"
        if self.settings.scaler is None and fused_step(self._optimizer) is not None:
            found.append(("fused optimizer", {"fused": True}))
        if self._memory and on_cpu and faults >= self._policy.faults and heap.can_keep():
            if heap.kept_by_environment():
                self._notes["kept heap"] = "set by the environment"
            else:
                found.append(("kept heap", {"heap": True}))
        if self._memory and can_be_laid_out(self._model):
            found.append(("channels last", {"channels_last": True}))
        if on_cpu and any(p.dtype == torch.float32 for p in self._model.parameters()):
            verdict = route_verdict()
            for name, phase, ratio in (
                ("oneDNN forward", "route_forward", verdict.forward),
                ("oneDNN backward", "route_backward", verdict.backward),
            ):
                if verdict.reason or ratio > 0.95:
                    self._notes[name] = verdict.reason or f"{ratio:.2f}x in the machine's probe"
                else:
                    found.append((name, {phase: True}))
        return found

    def _try(self, name: str, best: Tuning, tuning: Tuning) -> Steps[Tuning]:
        """Check a tuning on copies, measure it in live steps, and return the better of the two."""
        taken = yield
        if reason := self._disagreement(best, tuning, taken.batch):
            self._notes[name] = reason
            return best
        bar = 1 - self._policy.gain
        ratio = yield from self._compare(best, tuning, bar)
        self._notes[name] = f"{ratio:.3f}x"
        if ratio <= bar:
            self._seconds *= ratio
            return tuning
        self.use(best)
        return best

    def _try_compiled(self, best: Tuning, *, draws: bool) -> Steps[Tuning]:
        policy = self._policy
        left = self._left()
        if left * policy.compile_gain < policy.compile_seconds:
            self._notes["compiled"] = f"{format_duration(left)} left: compiling would not pay"
            return best
        if self._side_effect:
            self._notes["compiled"] = self._side_effect
            return best
        has_state = getattr(self._model, "has_state", None)
        if callable(has_state) and has_state():
            self._notes["compiled"] = "the model keeps state between calls"
            return best
        taken = yield
        try:
            if draws:
                self._compile_now(taken.batch)
            else:
                yield from self._compile_meanwhile(taken.batch)
        except Exception as error:
            self._notes["compiled"] = first_line(error)
            log.debug(str(error))
            return best
        return (yield from self._try("compiled", best, replace(best, compiled=True)))

    def _compile_now(self, batch: Batch) -> None:
        started = time.perf_counter()
        forward = compiled_forward(self._model, self.settings)
        with generators_kept():
            warm(forward, copy.deepcopy(self._model), batch)
        self.compiled_forward = forward
        self._notes["compile_seconds"] = round(time.perf_counter() - started, 2)
        if self._lap is not None:
            self._lap(Account.COMPILE)

    def _compile_meanwhile(self, batch: Batch) -> Steps[None]:
        started = time.perf_counter()
        rewinding = Rewinding()
        self._compilation = compilation = BackgroundCompilation(self._model, self.settings, batch)
        ended = False
        while not ended:
            ended = compilation.done  # asked first: what the thread does last is seen below
            rewinding.undo()
            if not ended:
                yield
        self._compilation = None
        self._notes["compile_seconds"] = round(time.perf_counter() - started, 2)
        if compilation.error is not None:
            raise compilation.error
        self.compiled_forward = compilation.forward

    def _settle(self, best: Tuning) -> Steps[Tuning]:
        """Compare the winner with the plain step once more: their gains need not add up."""
        bar = 1 - self._policy.gain / 2
        ratio = yield from self._compare(Tuning(), best, bar)
        self._seconds = self._plain_seconds * min(1.0, ratio)
        if ratio > bar:
            self._notes["all together"] = f"{ratio:.3f}x: not kept"
            return Tuning()
        self._notes["all together"] = f"{ratio:.3f}x"
        return best

    def _compare(self, one: Tuning, other: Tuning, bar: float) -> Steps[float]:
        """Return the time of a step with ``other`` as a part of one with ``one``.

        Goes on where noise hides on which side of ``bar`` it lies, for a small part of the run.
        """
        block = min(40, max(1, math.ceil(0.1 / max(self._seconds, 1e-6))))
        least = 5 if self._seconds < 1.0 else 3
        affordable = int(self._policy.doubt * self._steps_left) // (2 * (block + 1))
        most = min(max(least, affordable), 3 * least)
        ratios: list[float] = []
        while len(ratios) < least or (len(ratios) < most and not _is_clear(ratios, bar)):
            medians: dict[Tuning, float] = {}
            for tuning in (one, other) if len(ratios) % 2 else (other, one):
                self.use(tuning)
                yield  # the step after a change pays for it
                medians[tuning] = yield from _median(block)
            ratios.append(medians[other] / medians[one])
        return statistics.median(ratios)

    def _disagreement(self, best: Tuning, tuning: Tuning, batch: Batch) -> str:
        if replace(tuning, heap=best.heap) == best:
            return ""  # where memory comes from changes no number
        if self._side_effect:
            return self._side_effect
        reason = disagreement(
            self._model,
            self._optimizer,
            self.settings,
            tuning,
            batch,
            self.compiled_forward if tuning.compiled else None,
        )
        if self._lap is not None:
            self._lap(Account.COMPILE)
        return reason

    def _left(self) -> float:
        """Seconds the rest of the run would take with the best tuning so far."""
        return max(0, self._steps_left) * self._seconds

    def _say(self, best: Tuning) -> None:
        """Tell the decision with what was measured; at VERBOSE also what was not tried, and why."""
        verbose = log.enabled(log.Verbosity.VERBOSE)
        told = [
            f"{name} {note}"
            for name, note in self._notes.items()
            if verbose or (isinstance(note, str) and note.endswith("x"))
        ]
        tried = f" ({', '.join(told)})" if told else ""
        if best == Tuning():
            log.verbose(f"engine: plain, nothing tried was faster{tried}")
            return
        before, after = self._plain_seconds * 1e3, self._seconds * 1e3
        log.msg(f"engine: {best}, {before:.4g} -> {after:.4g} ms per step{tried}")


def _is_clear(ratios: list[float], bar: float) -> bool:
    """Whether the median lies two of its standard errors or more from the bar."""
    median = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(ratio - median) for ratio in ratios)
    return abs(median - bar) >= 2 * 1.2533 * deviation / math.sqrt(len(ratios))


def _median(steps: int) -> Steps[float]:
    """Take steps and return the median of their seconds."""
    seconds: list[float] = []
    while len(seconds) < steps:
        taken = yield
        seconds.append(taken.seconds)
    return statistics.median(seconds)
