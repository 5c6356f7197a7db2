"""The engine that starts plainly, measures faster ways in live steps, and keeps the faster ones."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch

from flodl import log
from flodl.monitor.formats import format_duration
from flodl.train.engines import heap
from flodl.train.engines.auto_policy import AutoPolicy
from flodl.train.engines.capturing import captures_on, refusal_beside_plain_steps
from flodl.train.engines.comparing import Extent, step_ratio
from flodl.train.engines.compiling import first_line
from flodl.train.engines.decision import Decision, decision_key, stored_decision
from flodl.train.engines.fused import fused_step
from flodl.train.engines.live_steps import PhaseClock, Taken, median_of_steps, step_clock
from flodl.train.engines.phase_trial import PHASE_OF, phase_trial
from flodl.train.engines.pure import PureStep
from flodl.train.engines.routing import route_verdict
from flodl.train.engines.thread_trials import ThreadTrials
from flodl.train.engines.threads import fewer_threads
from flodl.train.engines.tuned import TunedEngine
from flodl.train.engines.tuning import Tuning, laid_out_weights, layout_refusal, thread_words
from flodl.train.engines.watch import compiled_frames, watching_refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from flodl.train.engines.base import StepSettings
    from flodl.train.engines.live_steps import Steps
    from flodl.train.engines.products import Product
    from flodl.train.losses import LossLog


CAPTURED, COMPILED_GRAPH = "CUDA graph", "compiled in a CUDA graph"
"""Names of trials."""

_FIRST = 5
"""Plain steps that measure the time of a step."""

_OBSERVED = 3
"""Plain steps whose calls of torch are observed."""

_OF_A_PHASE = 0.2
"""Part of the usual gain that such a tuning must bring, because its measurement is more precise."""


@final
class AutoEngine(TunedEngine):
    """Measures tunings in the steps of the training itself and keeps those that are faster.

    A tuning is the same computation in a faster way: a fused optimizer step, a kept heap, another
    memory layout of weights, another library for matrix products, fewer threads. All code of the
    user is called exactly as often as by a plain loop, and finds parameters in the user's memory
    layout.

    The decision is kept for the next run of the same program on the same machine, see
    :mod:`flodl.train.engines.decision`. That run uses it from its first step and tries nothing, so
    runs with the same seed repeat each other to the bit from the second one on.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.
        total_steps: Optimizer steps of the rest of the run.
        memory: Try a kept heap, and other memory layouts of weights. ``FDL_MEMORY=default`` in the
            environment turns both off for all trainings.
        layout: Try other memory layouts of weights; False if other code reads weights between two
            steps.
        pure: The step may run again on copies of model and optimizer, so compiling is tried, too,
            and on a GPU a CUDA graph of the step.
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
        memory: bool = True,
        layout: bool = True,
        pure: bool = False,
        policy: AutoPolicy | None = None,
    ) -> None:
        super().__init__(model, optimizer, settings)
        self._policy = policy or AutoPolicy()
        self._steps = self._steps_left = total_steps
        self._memory = memory and os.environ.get("FDL_MEMORY") != "default"
        self._layout = self._memory and layout and settings.scaler is None
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._pure = PureStep(model, optimizer, settings) if pure else None
        self._notes: dict[str, object] = {}
        self._stretches: list[tuple[int, str]] = []
        self._stretch: Tuning | None = None
        self._plain_seconds = 0.0
        self._seconds = 0.0
        self._step_clock = step_clock(self._device)
        self._frames = compiled_frames()
        self._key: dict[str, str] = {}
        self._resumed: Decision | None = None
        self._decision: Decision | None = None
        self._source = ""
        self._course: Steps[None] | None = None
        self._clock = PhaseClock(self._lap)
        self._settled = Tuning()
        self._thread_ratio = 1.0
        self._threads: ThreadTrials | None = None

    @property
    def decided(self) -> bool:
        """Whether all trials are over."""
        over = self._course is None and bool(self._key or self._too_short)
        return over or self._decision is not None

    @property
    def _too_short(self) -> bool:
        return self._steps < self._policy.least_steps

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        if not self._key:
            self._begin(batch)
        if self.tuning != self._stretch:
            self._stretch = self.tuning
            self._stretches.append((self.global_step + 1, str(self.tuning)))
        if self._course is None:
            super().step(batch, losses, parts=parts, closes=closes)
            self._compare_with_decision()
            return
        self._step_clock.begin()
        self._clock.begin()
        super().step(batch, losses, parts=parts, closes=closes)
        self._step_clock.end()
        if closes:
            self._steps_left -= 1
            self._go_on(Taken(self._step_clock.take(), batch, self._clock.take()))

    def _go_on(self, taken: Taken) -> None:
        """Pass a step to the trial in progress."""
        if self._course is not None:
            try:
                self._course.send(taken)
            except StopIteration:
                self._end_course()

    def _start(self, course: Steps[None]) -> None:
        self._lap = self._clock
        self._course = course
        next(course)

    def _end_course(self) -> None:
        self._course = None
        self._leave_threads()
        self._lap = self.settings.ledger.lap if self.settings.ledger is not None else None

    def _leave_threads(self) -> None:
        if self._threads is not None:
            self._threads.close()
            self._threads = None

    def _compare_with_decision(self) -> None:
        if self._decision is not None and self._decision.tuning != self.tuning:
            self._withdraw(self._decision)

    def present(self) -> None:
        """Restore the user's memory layout of parameters, gradients and optimizer state."""
        started, lay_otherwise = time.perf_counter(), self._lies_otherwise
        super().present()
        if lay_otherwise:
            # A layout that must often be restored is measured with that cost.
            self._step_clock.add(time.perf_counter() - started)

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

    def close(self) -> None:
        """Stop trials, restore heap and layout; a running compilation ends by itself."""
        self._end_course()
        if self._pure is not None:
            self._pure.close()
        super().close()

    # --- A decision that is known -------------------------------------------------------------

    def _begin(self, batch: Any) -> None:
        """Use a decision that is known for this training, or start the trials."""
        options = f"memory={self._memory} layout={self._layout} pure={self._pure is not None}"
        self._key = decision_key(self._model, self._optimizer, self.settings, batch, options)
        known, self._resumed = self._resumed, None
        changed = ""
        if known is not None and known.suits(self._key) and known.holds_for(self._steps):
            self._source = "checkpoint"
        else:
            known, changed = stored_decision(self._key, self._steps)
            self._source = "cache" if known is not None else ""
        if known is not None:
            self._follow(known, batch)
        else:
            self._start_trials(changed)

    def _start_trials(self, changed: str) -> None:
        """Try tunings; in a short run only numbers of threads, which few steps can tell."""
        count, on_cpu = torch.get_num_threads(), self._device.type == "cpu"
        threads = ThreadTrials(self, count, self._policy.threads)
        counts = on_cpu and count > 1 and self._tries("threads")
        if self._too_short and not (counts and threads.pays(math.inf, self._steps)):
            return
        self._threads = threads if counts else None
        if changed:
            log.msg(f"engine auto decides again: {changed}")
        self._start(self._direct())

    def _follow(self, known: Decision, batch: Any) -> None:
        tuning = self._allowed(known.tuning)
        if tuning.compiled and not self._compile_again(batch):
            tuning = replace(tuning, compiled=False)
        self._plain_seconds, self._seconds = known.plain_ms / 1e3, known.step_ms / 1e3
        self._notes = dict(known.trials)
        self.use(tuning)
        self._decision = replace(known, tuning=self.tuning)
        log.verbose(f"engine: {self.tuning}, as decided before ({self._source})")

    def _allowed(self, tuning: Tuning) -> Tuning:
        """Remove the parts of a known tuning that do not fit this training."""
        fits = self.settings.scaler is None and fused_step(self._optimizer) is not None
        return replace(
            tuning,
            fused=tuning.fused and fits,
            heap=tuning.heap and self._memory and heap.can_keep(),
            channels_last=tuning.channels_last and self._layout,
            compiled=tuning.compiled and self._pure is not None,
            captured=tuning.captured and self._pure is not None and not self._capture_reason(),
        )

    def _compile_again(self, batch: Any) -> bool:
        pure = self._pure
        if pure is None or pure.refusal(batch):
            return False
        try:
            forward = pure.now(batch)
            pure.check(batch, forward)
        except Exception as error:
            self._notes["compiled"] = first_line(error)
            return False
        self.compiled_forward = forward
        return True

    def _withdraw(self, decision: Decision) -> None:
        """Keep the rest of a decision, after a step has shown that a part of it is wrong.

        A stored decision stays: in the next run, the same step shows the same.
        """
        if self.layout_refusal:
            self._notes["channels last"] = self.layout_refusal
        lost = decision.tuning.captured and not self.tuning.captured
        graph = self.capture_refusal(decision.tuning) if lost else ""
        if graph:
            self._notes[CAPTURED] = graph
        self._decision = replace(decision, tuning=self.tuning, trials=dict(self._notes))
        if self._source == "measured":
            self._decision.store()
        reason = graph or self.layout_refusal or "the program sets the number of threads"
        log.verbose(f"engine: {self.tuning} from here on ({reason})")

    # --- Trials between steps -----------------------------------------------------------------

    def _direct(self) -> Steps[None]:
        """Run all trials, one after the other."""
        best = yield from self._fewer_if_crowded()
        faults = heap.page_faults()
        self._seconds = yield from median_of_steps(_FIRST)
        faults = (heap.page_faults() - faults) // _FIRST
        self._plain_seconds = self._seconds / self._thread_ratio
        if self._threads is not None and not self._threads.was_busy:
            best = yield from self._fewer_if_busy()
        if self._too_short or self._left() < self._policy.least_seconds:
            self._notes["none"] = f"{format_duration(self._left())} left: nothing would pay"
            self._decide(best, at_most=self._steps)
            return
        candidates = yield from self._candidates(faults)
        together = self._of_one_phase(candidates)
        if together:
            best = yield from self._try_together(best, together)
        for name, candidate in candidates:
            if name not in together:
                best = yield from self._try(name, best, replace(best, **candidate))
        best = yield from self._try_captured(CAPTURED, best, _in_graph(best))
        best = yield from self._try_compiled(best)
        if best not in (Tuning(), self._settled):
            best = yield from self._settle(best)
        best = yield from self._more_if_free(best)
        self.use(best)
        if self._capturing is not None:
            self._capturing.keep(best)
        self._decide(best)

    def _fewer_if_crowded(self) -> Steps[Tuning]:
        """Take the first steps, which allocate, and make the optimizer's state.

        Returns:
            The best tuning: fewer threads if these steps show that the machine is crowded.
        """
        if self._threads is None:
            yield from median_of_steps(3)
        elif seconds := (yield from self._threads.crowded()):
            self._seconds = seconds
            return (yield from self._fewer_if_busy())
        return Tuning()

    def _fewer_if_busy(self) -> Steps[Tuning]:
        """Try fewer threads if the machine was busy in the last steps; return the best tuning."""
        threads, best = self._threads, Tuning()
        if threads is None:
            return best
        if threads.busy() and threads.pays(self._seconds, self._steps_left):
            best, self._thread_ratio = yield from threads.choose(
                best, self._notes, self._steps_left
            )
            self._seconds *= self._thread_ratio
        threads.watch()
        return best

    def _more_if_free(self, best: Tuning) -> Steps[Tuning]:
        """Try more threads if the machine was busy before the trials and is not any longer.

        The trials can take minutes, and the program that kept the machine busy may have ended.
        """
        threads = self._threads
        if threads is None or not (best.threads and threads.was_busy):
            return best
        self.use(best)
        yield  # do not measure the first step after a change
        threads.watch()
        self._seconds = yield from median_of_steps(_FIRST)
        if not threads.freed():
            return best
        best, ratio = yield from threads.choose(best, self._notes, self._steps_left)
        self._seconds *= ratio
        if not best.threads:
            # The plain steps before the trials shared the machine.
            self.use(Tuning())
            yield
            self._plain_seconds = yield from median_of_steps(_FIRST)
        return best

    def _decide(self, best: Tuning, at_most: int = 0) -> None:
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

    def _candidates(self, faults: int) -> Steps[list[tuple[str, dict[str, Any]]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        on_cpu = self._device.type == "cpu"
        if self.settings.scaler is None and fused_step(self._optimizer) is not None:
            found.append(("fused optimizer", {"fused": True}))
        if self._memory and on_cpu and faults >= self._policy.faults and heap.can_keep():
            if heap.kept_by_environment():
                self._notes["kept heap"] = "set by the environment"
            else:
                found.append(("kept heap", {"heap": True}))
        products = yield from self._observe()
        if self._layout and laid_out_weights(self._model):
            if self.layout_refusal:
                self._notes["channels last"] = self.layout_refusal
            else:
                found.append(("channels last", {"channels_last": True}))
        if on_cpu and products:
            found += self._routes(products)
        tried = self._threads is not None and self._threads.was_busy
        if on_cpu and self._plain_seconds <= self._policy.short_step and not tried:
            found += [(thread_words(count), {"threads": count}) for count in fewer_threads()]
        return [one for one in found if self._tries(*one[1])]

    def _tries(self, *fields: str) -> bool:
        only = self._policy.only
        return only is None or only.issuperset(fields)

    def _observe(self) -> Steps[tuple[Product, ...]]:
        """Observe the calls of some plain steps, which tell which tunings are safe."""
        refusal = layout_refusal(self._model, self._optimizer) if self._layout else ""
        unseen = watching_refusal(self._model, self._frames)
        self._layout_refusal = refusal or unseen
        if unseen:
            self._notes["calls of torch"] = unseen
            return ()
        watch = self.observe(True)
        for _ in range(_OBSERVED):
            yield
        self.observe(False)
        if not self._layout_refusal and watch.unused(laid_out_weights(self._model)):
            self._layout_refusal = "a weight is used where the engine does not see it"
        return watch.products.heaviest()

    def _routes(self, products: tuple[Product, ...]) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        verdict = route_verdict(products)
        for name, phase, ratio in (
            ("oneDNN forward", "route_forward", verdict.forward),
            ("oneDNN backward", "route_backward", verdict.backward),
        ):
            if verdict.reason or ratio > self._policy.slow_route:
                self._notes[name] = verdict.reason or f"{ratio:.2f}x with the products alone"
            else:
                found.append((name, {phase: True}))
        return found

    def _of_one_phase(self, candidates: list[tuple[str, dict[str, Any]]]) -> dict[str, str]:
        """Return the candidates that are tried together: name -> field of :class:`Tuning`."""
        if self._device.type != "cpu":  # which computes while the next phase begins
            return {}
        fields = {name: next(iter(candidate)) for name, candidate in candidates}
        return {name: field for name, field in fields.items() if field in PHASE_OF}

    def _try_together(self, best: Tuning, fields: Mapping[str, str]) -> Steps[Tuning]:
        """Measure tunings of single phases in one trial, and add those that are faster."""
        bar = 1 - self._policy.gain * _OF_A_PHASE
        found = yield from phase_trial(self, best, fields, bar, self._extent())
        self._notes |= found.notes
        self._seconds *= found.ratio
        if found.whole:
            self._settled = found.tuning
        self.use(found.tuning)
        return found.tuning

    def _try(self, name: str, best: Tuning, tuning: Tuning) -> Steps[Tuning]:
        """Measure a tuning in live steps, and return the better one of the two."""
        bar = 1 - self._policy.gain
        ratio = yield from step_ratio(self, best, tuning, bar, self._extent())
        if tuning.fused and self.fused_refusal:
            self._notes[name] = self.fused_refusal
            tuning = best = replace(best, fused=False)
        elif refusal := self.capture_refusal(tuning):
            self._notes[name], tuning = refusal, best
        elif tuning.channels_last and self.layout_refusal:
            self._notes[name] = self.layout_refusal
            tuning = best = replace(best, channels_last=False)
        else:
            self._notes[name] = f"{ratio:.3f}x"
        if ratio <= bar and tuning is not best:
            self._seconds *= ratio
            return tuning
        self.use(best)
        return best

    def _try_captured(self, name: str, best: Tuning, tuning: Tuning) -> Steps[Tuning]:
        """Repeat the step as a CUDA graph, if the user allowed to run it on copies."""
        pure = self._pure
        if pure is None or not captures_on(self._device) or not self._tries("captured"):
            return best
        taken = yield
        self.present()
        refusal = pure.refusal(taken.batch) or self._capture_reason()
        if refusal := refusal or pure.difference(tuning, taken.batch, self.compiled_forward):
            self._notes[name] = refusal
            return best
        self.use(tuning)
        yield  # a plain step, as a capture requires
        yield  # captures
        return (yield from self._try(name, best, tuning))

    def _capture_reason(self) -> str:
        """Return why the step cannot be captured; empty if it may be tried."""
        return refusal_beside_plain_steps(self._model, self._optimizer, self.settings, self._device)

    def _try_compiled(self, best: Tuning) -> Steps[Tuning]:
        """Compile the step, if the user allowed to run it on copies."""
        policy, pure, left = self._policy, self._pure, self._left()
        if pure is None:
            return best
        if left * policy.compile_gain < policy.compile_seconds:
            self._notes["compiled"] = f"{format_duration(left)} left: compiling would not pay"
            return best
        taken = yield
        if refusal := pure.refusal(taken.batch):
            self._notes["compiled"] = refusal
            return best
        try:
            self.present()
            self.compiled_forward = yield from pure.forward(taken.batch)
        except Exception as error:
            self._notes["compiled"] = first_line(error)
            log.debug(str(error))
            return best
        self._notes["compile_seconds"] = round(pure.seconds, 2)
        # The guard cannot watch compiled code. The compiler chooses its own layouts and kernels.
        alone = replace(best, compiled=True, channels_last=False, captured=False)
        if not best.captured:
            best = yield from self._try("compiled", best, alone)
        if not (best.captured or best.compiled):
            return best
        found = yield from self._try_captured(COMPILED_GRAPH, best, _in_graph(alone))
        if best.captured and not found.compiled and not self._was_measured(COMPILED_GRAPH):
            found = yield from self._try("compiled", best, alone)
        return found

    def _was_measured(self, name: str) -> bool:
        return str(self._notes.get(name)).endswith("x")

    def _settle(self, best: Tuning) -> Steps[Tuning]:
        """Compare the best tuning with the plain step again, because gains need not add up.

        On a busy machine, the number of threads was chosen before all trials, and both have it.
        """
        plain = Tuning()
        if self._threads is not None and self._threads.was_busy:
            plain = replace(plain, threads=best.threads)
            if best == plain:
                return best
        least = self._policy.gain / 2
        # A gain in one phase was measured precisely. Here it must only not cost time elsewhere.
        of_phases = not best.changes() - PHASE_OF.keys()
        bar = 1 + abs(least) if of_phases else 1 - least
        ratio = yield from step_ratio(self, plain, best, bar, self._extent())
        self._seconds = self._plain_seconds * self._thread_ratio * min(1.0, ratio)
        if ratio > bar:
            self._notes["all together"] = f"{ratio:.3f}x: not kept"
            return plain
        self._notes["all together"] = f"{ratio:.3f}x"
        return best

    def _extent(self) -> Extent:
        """Return how long a comparison may take.

        If noise hides the result, it continues for a small part of the run.
        """
        block = min(self._policy.block, max(1, math.ceil(0.1 / max(self._seconds, 1e-6))))
        least = 5 if self._seconds < 1.0 else 3
        affordable = int(self._policy.doubt * self._steps_left) // (2 * (block + 1))
        return Extent(block, least, min(max(least, affordable), 3 * least))

    def _left(self) -> float:
        """Return the seconds that the rest of the run takes with the best tuning so far."""
        return max(0, self._steps_left) * self._seconds

    def _say(self, best: Tuning) -> None:
        """Print the decision and its measurements; at VERBOSE also what was not tried, and why."""
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


def _in_graph(tuning: Tuning) -> Tuning:
    """Return the tuning with its step as a CUDA graph.

    No guard can watch a graph, and the layout of its weights must stay.
    """
    return replace(tuning, captured=True, channels_last=False)
