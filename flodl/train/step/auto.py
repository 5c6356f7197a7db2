"""The engine that starts plainly, measures faster ways in live steps, and keeps the faster ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, SupportsFloat, final

import torch
from torch import nn

from fdl.base.units import counted, format_duration
from flodl import log
from flodl.train.step.capturing import captures_on, refusal_beside_plain_steps
from flodl.train.step.decision import Decision, decision_key, stored_decision
from flodl.train.step.halves import first_line
from flodl.train.step.other_programs import OtherPrograms
from flodl.train.step.trials import (
    Gain,
    Taken,
    doubt,
    gain,
    measure,
    median_of_steps,
    step_clock,
)
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import (
    Tuning,
    compiled_by_program,
    fewer_threads,
    fused_step,
    has_hooks,
    onednn_refusal,
    rows_of_layers,
)

if TYPE_CHECKING:
    from flodl.train.step.base import StepSettings
    from flodl.train.step.step_values import LossLog
    from flodl.train.step.trials import Measured, Steps


_FIRST = 5
"""Steps that measure the time of a step."""

_LOOK, _LONG_LOOK = 0.05, 0.25
"""Seconds in which the load of the machine is seen, and those that make sure of it."""

_OVERRULED = "the program sets the number of threads"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class AutoPolicy:
    """Limits that decide when a trial pays.

    Attributes:
        least_steps: A run with fewer steps tries nothing.
        least_seconds: A run that the plain engine would finish in less than this tries nothing.
        cost: Part of the remaining time that all trials together may cost.
        gain: A candidate must save this part of a step, and more than the noise.
        block: Largest number of steps that are measured together.
        short_step: A single thread is tried for steps up to this many seconds.
        compile_seconds: Seconds that compiling is expected to take.
        autotune_seconds: Seconds that compiling is expected to take if torch tries many kernels.
        capture_seconds: Seconds that capturing a CUDA graph is expected to take.
        only: The fields of :class:`Tuning` that are tried; None tries all.
    """

    least_steps: int = 50
    least_seconds: float = 1.0
    cost: float = 0.02
    gain: float = 0.01
    block: int = 40
    short_step: float = 0.02
    compile_seconds: float = 20.0
    autotune_seconds: float = 180.0
    capture_seconds: float = 0.1
    only: frozenset[str] | None = None


class Candidate(NamedTuple):
    """A faster way to compute a step, which may be tried and undone between two steps.

    Attributes:
        name: In reports.
        change: Fields of :class:`Tuning`; the first one names the candidate in settings.
        refusal: ``batch -> why it does not fit here``; empty if it does.
    """

    name: str
    change: Mapping[str, Any]
    refusal: Callable[[Any], str]


@final
class AutoEngine(TunedEngine):
    """Measures candidates in the steps of the training itself and keeps those that are faster.

    A candidate is the same computation in a faster way, see :meth:`candidates`. All code of the
    user is called exactly as often as by a plain loop, and finds parameters in the user's memory
    layout.

    The decision is kept for the next run of the same program on the same machine, see
    :mod:`flodl.train.step.decision`. That run uses it from its first step and tries nothing, so
    runs with the same seed repeat each other to the bit from the second one on.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.
        total_steps: Optimizer steps of the rest of the run.
        pure: The step may run again on copies, so compiling is tried, too, and on a GPU a CUDA
            graph of the step.
        policy: Limits that decide when a trial pays.
    """

    name: ClassVar[str] = "auto"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: StepSettings,
        *,
        total_steps: int,
        pure: bool = False,
        policy: AutoPolicy | None = None,
    ) -> None:
        super().__init__(model, optimizer, settings)
        self._policy = policy or AutoPolicy()
        self._steps, self._first = total_steps, 0
        self._pure = pure
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._notes: dict[str, str] = {}
        self._stretches: list[tuple[int, str]] = []
        self._stretch: Tuning | None = None
        self._plain_seconds = self._seconds = self._cost = 0.0
        self._clock = step_clock(self._device)
        self._key: dict[str, str] = {}
        self._resumed: Decision | None = None
        self._decision: Decision | None = None
        self._source = ""
        self._course: Steps[None] | None = None
        self._asks_for_gain = self._looked_for_gain = False

    @property
    def decided(self) -> bool:
        """Whether all trials are over."""
        too_short = self._steps < self._policy.least_steps
        return self._decision is not None or (self._course is None and too_short)

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        if not self._key:
            self._begin(batch)
        if self._asks_for_gain and closes and parts == 1:
            self._asks_for_gain = False
            self._offer(batch)
        if self.tuning != self._stretch:
            self._stretch = self.tuning
            self._stretches.append((self.global_step + 1, str(self.tuning)))
        if self._course is None:
            super().step(batch, losses, parts=parts, closes=closes)
            if self._decision is not None and self._decision.tuning != self.tuning:
                self._withdraw(self._decision)
            return
        self._clock.begin()
        super().step(batch, losses, parts=parts, closes=closes)
        self._clock.end()
        if closes:
            try:
                self._course.send(Taken(self._clock.take(), batch))
            except StopIteration:
                self._course = None

    def report(self) -> Mapping[str, object]:
        """Return the trials, the tuning in use, its gain, and the source of the decision.

        ``stretches`` lists each tuning that was in use, with the first step that it computed.
        """
        seconds = {"plain_ms": self._plain_seconds, "step_ms": self._seconds}
        measured = {name: round(1e3 * taken, 4) for name, taken in seconds.items() if taken}
        return {
            **super().report(),
            "decided": self.decided,
            "source": self._source,
            **measured,
            "trials": dict(self._notes),
            "stretches": [list(one) for one in self._stretches],
        }

    def decision(self) -> Mapping[str, Any]:
        """Return the decision, for a checkpoint."""
        decision = self._decision or self._resumed
        return decision.as_json() if decision is not None else {}

    def adopt(self, decision: Mapping[str, Any]) -> None:
        """Use the decision of a checkpoint, if it is for this program on this machine."""
        try:
            self._resumed = Decision.from_json(decision) if decision else None
        except ValueError as error:
            log.debug(f"engine: the decision in the checkpoint is ignored: {error}")

    def end_epoch(self) -> None:
        """After the first whole epoch with a decision, look whether the step could be pure."""
        verbose = log.enabled(log.Verbosity.VERBOSE)
        if verbose and not self._pure and self.decided and not self._looked_for_gain:
            self._looked_for_gain = self._asks_for_gain = True

    def present(self) -> None:
        """Expect changes, and do not count the time until the next step as part of one."""
        super().present()
        self._clock.pause()

    def close(self) -> None:
        """Stop trials, and free a graph."""
        self._course = None
        super().close()

    # --- A decision that is known -------------------------------------------------------------

    def _begin(self, batch: Any) -> None:
        """Use a decision that is known for this training, or start the trials."""
        self._first = self.global_step
        options = f"pure={self._pure}"
        self._key = decision_key(self.model, self.optimizer, self.settings, batch, options)
        known, self._resumed = self._resumed, None
        changed, self._source = "", "checkpoint"
        if known is None or not (known.suits(self._key) and known.holds_for(self._steps)):
            known, changed = stored_decision(self._key, self._steps)
            self._source = "cache" if known is not None else ""
        if known is not None:
            self._follow(known, batch)
        elif self._steps >= self._policy.least_steps:
            if changed:
                log.msg(f"engine auto decides again: {changed}")
            self._course = self._trials()
            next(self._course)

    def _follow(self, known: Decision, batch: Any) -> None:
        """Use a decision, without the parts that do not fit this training."""
        tuning = known.tuning
        for one in self.candidates():
            field = next(iter(one.change))
            if getattr(tuning, field) and (reason := one.refusal(batch)):
                log.debug(f"engine: without {one.name}: {reason}")
                tuning = replace(tuning, **{field: getattr(Tuning(), field)})
        self._plain_seconds, self._seconds = known.plain_ms / 1e3, known.step_ms / 1e3
        self._notes = dict(known.trials)
        self.use(tuning)
        self._decision = replace(known, tuning=self.tuning)
        log.verbose(f"engine: {self.tuning}, as decided before ({self._source})")

    def _withdraw(self, decision: Decision) -> None:
        """Keep the rest of a decision, after a step has shown that a part of it is wrong.

        A stored decision stays: in the next run, the same step shows the same.
        """
        reason = _OVERRULED
        if decision.tuning.captured and not self.tuning.captured:
            self._notes["CUDA graph"] = reason = self.capture_refusal
        self._decision = replace(decision, tuning=self.tuning, trials=dict(self._notes))
        if self._source == "measured":
            self._decision.store()
        log.verbose(f"engine: {self.tuning} from here on ({reason})")

    def _offer(self, batch: Any) -> None:
        """Print what declaring the step pure would bring, measured on a copy."""
        budget, policy = self._budget(), self._policy
        block = max(1, min(policy.block, math.ceil(0.05 / max(self._seconds, 1e-6))))
        steps = 4 * 6 * (block + 1)
        reason = doubt(self.model, self.settings.train_fn)
        if not reason and steps * self._seconds > budget:
            reason = "the training is too short to measure it"
        if not reason:
            compiles = policy.compile_seconds + steps * self._seconds <= budget
            found: Gain | str
            try:
                found = gain(self, batch, compiles=compiles, bar=1 - policy.gain, block=block)
            except Exception as error:  # a copy may not be possible, or not fit into the memory
                found = first_line(error)
            if isinstance(found, Gain):
                before, after = self._seconds * 1e3, self._seconds * found.ratio * 1e3
                log.verbose(
                    "engine: a step seems to change only the model and the optimizer; if so, add "
                    f".pure_step(): {before:.4g} -> {after:.4g} ms per step with {found.tuning}, "
                    "measured on a copy"
                )
                return
            reason = found
        log.debug(f"engine: no word about .pure_step(): {reason}")

    # --- Trials between steps -----------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """Return what can be tried on this device, for a step of this purity."""
        on_cpu = self._device.type == "cpu"
        found = [
            Candidate("fused optimizer", {"fused": True}, self._fused_refusal),
            Candidate("channels last", {"channels_last": True}, self._row_refusal),
        ]
        if on_cpu:
            found += [Candidate("oneDNN products", {"onednn": True}, lambda _: onednn_refusal())]
            single = self._seconds <= self._policy.short_step
            found += [
                Candidate(counted(count, "thread"), {"threads": count}, self._thread_refusal)
                for count in fewer_threads(single=single)
            ]
        if self._pure and captures_on(self._device):
            found += [Candidate("CUDA graph", {"captured": True}, self._capture_refusal)]
        if self._pure:
            change = {"compiled": True, "channels_last": False}
            found += [Candidate("compiled", change, self._compile_refusal)]
        if self._pure and captures_on(self._device):
            change = {"autotuned": True, "compiled": False, "channels_last": False}
            refusal = partial(self._compile_refusal, autotunes=True)
            found += [Candidate("autotuned", change, refusal)]
        only = self._policy.only
        return [one for one in found if only is None or next(iter(one.change)) in only]

    def _trials(self) -> Steps[None]:
        """Try all candidates, one after the other."""
        best = yield from self._share()
        yield  # the first step of another number of threads takes longer
        self._seconds = yield from median_of_steps(_FIRST)
        if not best.threads:
            self._plain_seconds = self._seconds
        if self._left() < self._policy.least_seconds:
            self._notes["none"] = f"{format_duration(self._left())} left: nothing would pay"
            self._decide(best, at_most=self._steps)
            return
        others, shared = OtherPrograms(), best.threads > 0
        short = not shared and self._seconds <= self._policy.short_step
        for candidate in self.candidates():
            if "threads" not in candidate.change or short:
                best = yield from self._try(candidate, best)
        while shared and others.seconds() < _LONG_LOOK:
            yield
        if shared and not _fewer_threads_beside(others):
            alone = Candidate("all threads", {"threads": 0}, lambda _: "")
            best = yield from self._try(alone, best)
        self.use(best)
        self._decide(best)

    def _share(self) -> Steps[Tuning]:
        """Leave to other programs the cores that they use.

        A part of a step ends when the last of its threads does. If one has to wait for a core, a
        step may take a hundred times as long. So the first steps use half of the threads, and show
        what other programs use.
        """
        others, total, only = OtherPrograms(), torch.get_num_threads(), self._policy.only
        tried = (only is None or "threads" in only) and not self._thread_refusal()
        if not (tried and others.known and total > 1 and self._device.type == "cpu"):
            yield
            return Tuning()
        half = Tuning(threads=total // 2)
        self.use(half)
        fewer = 0
        for least in (_LOOK, _LONG_LOOK):
            yield
            while others.seconds() < least:
                yield
            if self.tuning != half:
                self._notes[counted(half.threads, "thread")] = _OVERRULED
                return Tuning()
            fewer = _fewer_threads_beside(others)
            if not fewer:
                break
        best = Tuning(threads=fewer)
        if fewer:
            told = f"other programs use {others.cores():.1f} cores"
            self._notes[counted(fewer, "thread")] = told
        self.use(best)
        return best

    def _try(self, candidate: Candidate, best: Tuning) -> Steps[Tuning]:
        """Measure a candidate, and return the better tuning."""
        tuning, name, policy = replace(best, **candidate.change), candidate.name, self._policy
        taken = yield
        if reason := self._too_expensive(tuning) or candidate.refusal(taken.batch):
            self._notes[name] = reason
            return best
        found = yield from self._compare(best, tuning)
        if math.isinf(found.ratio) and tuning.captured and not candidate.change.get("captured"):
            # Its graph is what failed. Without it, the candidate may still be faster.
            tuning = replace(tuning, captured=False)
            found = yield from self._compare(best, tuning)
        if math.isinf(found.ratio):
            self._notes[name] = self.capture_refusal or _OVERRULED
        else:
            self._notes[name] = f"{found.ratio:.3f}x"
        if found.ratio + found.noise <= 1 - policy.gain:
            self._seconds *= found.ratio
            best = tuning
        self.use(best)
        return best

    def _compare(self, best: Tuning, tuning: Tuning) -> Steps[Measured]:
        """Measure a tuning beside the best one; add what that has cost."""
        policy, prepared = self._policy, list[SupportsFloat]()
        self.use(tuning)
        if tuning.captured:
            for _ in range(2):  # a plain step, as a capture requires, and the capture
                taken = yield
                prepared.append(taken.seconds)
        self._cost += sum(max(0.0, float(one) - self._seconds) for one in prepared)
        block = min(policy.block, max(1, math.ceil(0.1 / max(self._seconds, 1e-6))))
        found = yield from measure(
            self,
            best,
            tuning,
            bar=1 - policy.gain,
            block=block,
            rounds=5 if self._seconds < 1.0 else 3,
            budget=self._budget(),
        )
        self._cost += found.cost
        return found

    def _budget(self) -> float:
        """Return the seconds that trials may still cost."""
        return self._policy.cost * self._left() - self._cost

    def _too_expensive(self, tuning: Tuning) -> str:
        """Return why a trial would cost too much of the training."""
        policy, budget = self._policy, self._budget()
        if budget <= 0:
            return f"the trials have cost {policy.cost:.0%} of the training"
        compiling = policy.autotune_seconds if tuning.autotuned else policy.compile_seconds
        if (tuning.compiled or tuning.autotuned) and compiling > budget:
            return f"{format_duration(self._left())} left: compiling would not pay"
        if tuning.captured and policy.capture_seconds > budget:
            return f"{format_duration(self._left())} left: capturing would not pay"
        return ""

    def _thread_refusal(self, _: object = None) -> str:
        if compiled_by_program(self.model, self.settings.train_fn):
            return "torch would compile the program's code again"
        return ""

    def _fused_refusal(self, _: object) -> str:
        if self.settings.scaler is not None:
            return "a gradient scaler steps the optimizer"
        kind = type(self.optimizer).__name__
        return "" if fused_step(self.optimizer) is not None else f"{kind} has no fused step"

    def _row_refusal(self, _: object) -> str:
        if has_hooks(self.model):
            return "the model has hooks"
        return "" if rows_of_layers(self.model) else "the model has no row of image layers"

    def _capture_refusal(self, _: object) -> str:
        self.present()
        return refusal_beside_plain_steps(self.model, self.optimizer, self.settings, self._device)

    def _compile_refusal(self, batch: Any, *, autotunes: bool = False) -> str:
        self.present()
        has_state = getattr(self.model, "has_state", None)
        if callable(has_state) and has_state():
            return "the model keeps state between calls"
        reason = self.compile(batch, autotunes=autotunes)
        self._cost += self.compile_seconds
        return reason

    def _decide(self, best: Tuning, at_most: int = 0) -> None:
        self.drop_other_graphs()
        self._source = "measured"
        self._decision = Decision(
            key=self._key,
            tuning=self.tuning,
            plain_ms=round(self._plain_seconds * 1e3, 4),
            step_ms=round(self._seconds * 1e3, 4),
            trials=dict(self._notes),
            at_most=at_most,
        )
        self._decision.store()
        self._say(best)

    def _left(self) -> float:
        """Return the seconds that the rest of the run takes with the best tuning so far."""
        return max(0, self._steps - (self.global_step - self._first)) * self._seconds

    def _say(self, best: Tuning) -> None:
        """Print the decision and its measurements; at VERBOSE also what was not tried, and why."""
        verbose = log.enabled(log.Verbosity.VERBOSE)
        used = best.names()
        told = [
            f"{name} {note}" if note.endswith("x") else f"{name}: {note}"
            for name, note in self._notes.items()
            if verbose or note.endswith("x") or name in used
        ]
        tried = f" ({', '.join(told)})" if told else ""
        if best == Tuning():
            log.verbose(f"engine: plain is the fastest way{tried}")
            return
        before = f"{self._plain_seconds * 1e3:.4g} -> " if self._plain_seconds else ""
        log.msg(f"engine: {best}, {before}{self._seconds * 1e3:.4g} ms per step{tried}")


def _fewer_threads_beside(others: OtherPrograms) -> int:
    """Return how many threads have a core beside other programs; 0 if they leave one to each.

    More threads than cores stay where nobody else computes: the user may want them, and OpenMP may
    have bound this thread to one core.
    """
    used = round(others.cores())
    free = max(1, others.all_cores - used)
    return free if used and free < torch.get_num_threads() else 0
