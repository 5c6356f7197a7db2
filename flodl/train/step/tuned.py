"""A step with tunings that can be switched between steps."""

from __future__ import annotations

import inspect
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import torch
from torch import Tensor

from flodl import log, terminal
from flodl.monitor.ledger import Account
from flodl.nn.clip import limited_norm
from flodl.train.step.capturing import Capturing, refusal
from flodl.train.step.halves import (
    Update,
    compiled_forward,
    first_line,
    forward_function,
    pieces,
    scalar_loss,
    warm,
    without_backward,
)
from flodl.train.step.tuning import (
    ChannelsLast,
    ThreadLimit,
    Tuning,
    fused_step,
    place_step_counts,
    routed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from flodl.train.step.base import GradientWatch, StepSettings
    from flodl.train.step.learning_rate import Schedule
    from flodl.train.step.step_values import LossLog

    Forward = Callable[[nn.Module, Any], Tensor]


T = TypeVar("T")
_FORWARD, _BACKWARD, _OPTIMIZER = Account.FORWARD, Account.BACKWARD, Account.OPTIMIZER


class _Told(list[Tensor]):
    """The losses of the pieces of a batch."""

    add = list.append


class TunedEngine:
    """Runs training steps: forward, backward and update, each computed as :attr:`tuning` says.

    Every tuning gives the numbers of :class:`EagerEngine` up to rounding. That engine gives the
    numbers of a plain loop, bit by bit.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.

    Attributes:
        name: The name in settings and reports.
        global_step: Optimizer steps done in the whole run; a resumed run sets it.
        model: As given.
        optimizer: As given.
        settings: As given.
        hides_gradients: A captured step is taken even if somebody watches gradients.
        capture_refusal: Why steps of the last tuning that asked for a CUDA graph have none; empty
            if no reason is known.
        compile_seconds: What compiling has taken.
        replayed_steps: Steps that were taken by a CUDA graph.
    """

    name: ClassVar[str] = "tuned"
    hides_gradients: ClassVar[bool] = False

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: StepSettings
    ) -> None:
        self.settings = settings
        self.global_step = self.replayed_steps = 0
        self.tuning = Tuning()
        self.compile_seconds = 0.0
        self.model = model
        self.optimizer = optimizer
        self._plain_forward = forward_function(model, settings)
        self._forward: Forward = self._plain_forward
        self._compiled: dict[str, Forward] = {}
        self._update = Update(model, optimizer, settings)
        self._lap = settings.ledger.lap if settings.ledger is not None else None
        self._looked = False
        self._thread_limit: ThreadLimit | None = None
        self.capture_refusal = ""
        self._graphs: dict[Tuning, Capturing] = {}

    def use(self, tuning: Tuning) -> None:
        """Use this tuning for the next steps; call it only between two optimizer steps.

        A tuning keeps its CUDA graph, so it is captured once however often tunings alternate. The
        graph is left out if this tuning cannot be captured; :attr:`capture_refusal` says why.

        Raises:
            ValueError: ``compiled`` or ``autotuned`` before :meth:`compile`.
        """
        if tuning.captured:
            self.capture_refusal = self._graph_of(tuning).reason
            tuning = replace(tuning, captured=not self.capture_refusal)
        before, self.tuning = self.tuning, tuning
        self._forward = self._plain_forward
        for mode in ("compiled", "autotuned"):
            if getattr(tuning, mode):
                if mode not in self._compiled:
                    raise ValueError("nothing has been compiled yet")
                self._forward = self._compiled[mode]
        if tuning.threads != before.threads:
            self._thread_limit = ThreadLimit(tuning.threads) if tuning.threads else None
        if tuning.fused != before.fused:
            mine = self._update.step
            self._update.step = fused_step(self.optimizer) if tuning.fused else None
            if mine is not None:
                place_step_counts(self.optimizer, fused=False)
        if tuning.captured:
            self._graph_of(tuning).enter()
        elif before.captured and not tuning.fused:
            self._graph_of(before).leave()

    def _graph_of(self, tuning: Tuning) -> Capturing:
        if tuning not in self._graphs:
            self._graphs[tuning] = Capturing(
                self.model, self.optimizer, self.settings, self._compute, self._update.in_graph
            )
        return self._graphs[tuning]

    def drop_other_graphs(self) -> None:
        """Free the CUDA graphs of all tunings that are not in use."""
        for tuning, graph in self._graphs.items():
            if tuning != self.tuning:
                graph.drop()

    def compile(self, batch: Any, *, recompiles: bool = False, autotunes: bool = False) -> str:
        """Compile forward and backward for batches like this one; return why that failed."""
        started = time.perf_counter()
        terminal.status("compiling")
        forward = compiled_forward(
            self.model, self.settings, recompiles=recompiles, autotunes=autotunes
        )
        reason = ""
        try:
            warm(forward, self.model, batch)
        except Exception as error:
            reason = first_line(error)
            log.debug(str(error))
        else:
            self._compiled["autotuned" if autotunes else "compiled"] = forward
        self.compile_seconds = time.perf_counter() - started
        if self._lap is not None:
            self._lap(Account.COMPILE)
        return reason

    def present(self) -> None:
        """Expect changes: call it before code outside of a step runs, such as callbacks."""
        for graph in self._graphs.values():
            graph.look_again()

    def end_epoch(self) -> None:
        """Call this after the last step of an epoch."""

    def decision(self) -> Mapping[str, Any]:
        """Return the decision about the steps, as JSON values for a checkpoint."""
        return {}

    def adopt(self, decision: Mapping[str, Any]) -> None:
        """Use the :meth:`decision` of an earlier run; call it before the first step."""

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch, or on one part of a batch that is too large for the memory.

        Args:
            batch: On the device of the model.
            losses: Takes the loss of this batch, or part of a batch, before the optimizer changes
                anything. So it can refuse the loss.
            parts: Number of parts of the whole batch; the loss of each part counts ``1 / parts``.
            closes: Whether this is the last part; only then does the optimizer step.

        Raises:
            ValueError: The training function did not return a scalar loss.
            DivergedError: ``losses`` refused the loss.
        """
        if self.tuning.captured and parts == 1 and closes and self._by_graph(batch, losses):
            return
        limit = self._thread_limit
        carry_out = self._carry_out if self.settings.micro_batch is None else self._in_pieces
        if limit is None:
            carry_out(batch, losses, parts, closes)
            return
        with limit:
            carry_out(batch, losses, parts, closes)
        if limit.overruled:
            self.use(replace(self.tuning, threads=0))

    def _by_graph(self, batch: Any, losses: LossLog) -> bool:
        """Take a step by a CUDA graph, if there is one for it or one can be captured."""
        capturing, update = self._graphs[self.tuning], self._update
        if update.watch is not None and not self.hides_gradients:
            return False
        with capturing.warming() as plain:
            if plain:
                self._carry_out(batch, losses, 1, closes=True)
                return True
        taken = capturing.step(batch, partial(update.prepare, self.global_step))
        if taken is None:
            if capturing.reason:
                self.use(self.tuning)  # without its graph from now on
            return False
        loss, norm = taken
        if update.watch is not None:
            update.watch(self.global_step, gradients=False)
        losses.add(loss)
        if norm is not None:
            update.tell_norm(self.global_step, norm.clone())  # the next replay overwrites it
        update.conclude()
        self.global_step += 1
        self.replayed_steps += 1
        if self._lap is not None:
            self._lap(_OPTIMIZER)
        return True

    def _compute(self, batch: Any) -> Tensor:
        """Run forward and backward; return the loss."""
        loss = scalar_loss(self._inside(self._forward, self.model, batch))
        self._inside(loss.backward)
        return loss.detach()

    def _in_pieces(self, batch: Any, losses: LossLog, parts: int, closes: bool) -> None:
        """Train on a batch in pieces that fit the memory, as if it were one."""
        told = _Told()
        shares = []
        for piece, share in pieces(batch, self.settings.micro_batch):
            shares.append(share)
            self._carry_out(piece, told, parts / share, closes=False)
        losses.add(
            torch.stack([loss * part for loss, part in zip(told, shares, strict=True)]).sum()
        )
        if closes:
            self.follow()
            if self._lap is not None:
                self._lap(_OPTIMIZER)

    def _carry_out(self, batch: Any, losses: LossLog | _Told, parts: float, closes: bool) -> None:
        lap = self._lap
        if self._looked:
            loss = self._inside(self._forward, self.model, batch)
        else:
            self._looked = True
            forward = partial(self._inside, self._forward)
            loss = without_backward(forward, self.optimizer)(self.model, batch)
        if not (isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad):
            loss = scalar_loss(loss)
        losses.add(loss.detach())
        if lap is not None:
            lap(_FORWARD)
        if parts != 1:
            loss = loss / parts
        if self.settings.scaler is not None:
            loss = self.settings.scaler.scale(loss)
        self._inside(loss.backward)
        if lap is not None:
            lap(_BACKWARD)
        if closes:
            self.follow()
            if lap is not None:
                lap(_OPTIMIZER)

    def watch_gradients(self, watch: GradientWatch) -> None:
        """Call this when the gradients of a step are complete, before they are clipped and used."""
        self._update.watch = watch

    def follow(self) -> None:
        """Take an optimizer step with the gradients that are there, also those of other ranks."""
        self._update.apply(self.global_step)
        self.global_step += 1

    def set_schedule(self, schedule: Schedule | None) -> None:
        """Use another schedule from now on; None does not change the learning rates."""
        self._update.set_schedule(schedule)

    def report(self) -> Mapping[str, object]:
        """Return facts about how the steps were computed, as JSON values."""
        return {"engine": self.name, "tuning": self.tuning.names()}

    def close(self) -> None:
        """End background work and free graphs; the values of model and optimizer do not change."""
        if self._graphs:
            self.use(replace(self.tuning, captured=False))
            self.drop_other_graphs()
        if self._update.step is not None:
            place_step_counts(self.optimizer, fused=False)

    def _inside(self, function: Callable[..., T], *args: Any) -> T:
        """Run a half of a step: forward, or backward, in which checkpointing runs forward again."""
        if not (self.tuning.onednn or self.tuning.channels_last):
            return function(*args)
        with ExitStack() as stack:
            if self.tuning.onednn:
                stack.enter_context(routed())
            if self.tuning.channels_last:
                stack.enter_context(ChannelsLast(self.model))
            return function(*args)


@final
class EagerEngine(TunedEngine):
    """Forward, backward, then the update, exactly as in a plain loop, without tunings.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.
    """

    name: ClassVar[str] = "eager"


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer evaluates the loss itself in a step, as LBFGS does."""
    # The method of the class: a scheduler of torch puts a wrapper into the object.
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


@final
class ClosureEngine(TunedEngine):
    """Gives the optimizer a closure, as LBFGS needs it; the optimizer decides how often to call it.

    The loss of a batch is the loss of the first call, with the parameters before the step.
    Gradients are clipped in every call, and shown after the last one.

    Args:
        model: In training mode, on its device.
        optimizer: Its ``step`` needs a closure.
        settings: The settings of a step; without a scaler.
    """

    name: ClassVar[str] = "eager"

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: StepSettings
    ) -> None:
        super().__init__(model, optimizer, settings)
        self._forward = without_backward(self._plain_forward, optimizer)

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch; parts of a batch are refused before the training."""
        assert parts == 1 and closes  # noqa: S101, PT018 - see check_closure
        update, limit, calls = self._update, self.settings.max_grad_norm, 0
        update.prepare(self.global_step)
        norms: list[Tensor] = []

        def closure() -> Tensor:
            nonlocal calls
            self.optimizer.zero_grad()
            loss = scalar_loss(self._forward(self.model, batch))
            if calls == 0:
                losses.add(loss.detach())
            calls += 1
            loss.backward()  # type: ignore[no-untyped-call]
            if limit is not None:
                norm = limited_norm(self.model.parameters(), limit)
                norms[:] = norms[:1] or [norm]
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]
        if update.watch is not None:
            update.watch(self.global_step)
        self.optimizer.zero_grad()
        if norms:
            update.tell_norm(self.global_step, norms[0])
        update.conclude()
        self.global_step += 1
        if self._lap is not None:
            self._lap(_OPTIMIZER)


@final
class CompiledEngine(TunedEngine):
    """Compiles at the first step, then runs the compiled code and a fused optimizer.

    A step that torch cannot compile runs plainly, with a warning that names the reason.
    """

    name: ClassVar[str] = "compiled"
    _fallback: str | None = None

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        if self._fallback is None:
            self._fallback = self.compile(batch, recompiles=True)
            if self._fallback:
                log.warning(
                    f'engine="compiled": this step cannot be compiled and runs eagerly '
                    f'({self._fallback}); use engine="eager" to run it without this attempt'
                )
            self.use(Tuning(fused=True, compiled=not self._fallback))
        super().step(batch, losses, parts=parts, closes=closes)

    def report(self) -> Mapping[str, object]:
        """Report how long compiling took, or why it was not possible."""
        facts = {**super().report(), "compile_seconds": round(self.compile_seconds, 3)}
        return {**facts, "fallback": self._fallback} if self._fallback else facts


@final
class CudaGraphEngine(TunedEngine):
    """Captures forward, backward, clipping and optimizer once and replays them.

    Each batch is copied on the device into the inputs of the capture. The loader brings batches to
    the device in time: it keeps several there and copies on its own stream.

    The first step runs plainly and counts like all others. In it, libraries choose their kernels
    and the optimizer makes its state. A step that cannot be captured and a batch of another shape
    also run plainly; :meth:`report` gives the reason.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.
        device: The device of the model.
    """

    name: ClassVar[str] = "cuda_graph"
    hides_gradients: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: StepSettings,
        *,
        device: torch.device,
    ) -> None:
        super().__init__(model, optimizer, settings)
        self._fallback = ""
        if reason := refusal(model, optimizer, settings, device):
            self._give_up(f"runs eagerly: {reason}", reason)
        else:
            self.use(Tuning(captured=True))

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        super().step(batch, losses, parts=parts, closes=closes)
        if self._fallback:
            return
        reason = self.capture_refusal
        if parts != 1 or not closes:
            reason = "a step of several parts is not one graph"
        if reason:
            self._give_up(f"runs eagerly from here on: {reason}", reason)

    def report(self) -> Mapping[str, object]:
        """Report how many steps were replayed, and why others were not."""
        facts = {**super().report(), "replayed_steps": self.replayed_steps}
        return {**facts, "fallback": self._fallback} if self._fallback else facts

    def _give_up(self, what: str, reason: str) -> None:
        self._fallback = reason
        self.use(Tuning())
        log.warning(f'engine="cuda_graph" {what}')
