"""A step with tunings that can be switched between steps."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from flodl.monitor.ledger import Account
from flodl.train.engines import heap
from flodl.train.engines.base import StepEngine, StepSettings
from flodl.train.engines.capturing import Capturing
from flodl.train.engines.forward import forward_function, scalar_loss, without_backward
from flodl.train.engines.fused import fused_step, place_step_counts
from flodl.train.engines.fused_check import CheckedStep
from flodl.train.engines.routing import OneDnnRoute
from flodl.train.engines.threads import ThreadLimit
from flodl.train.engines.tuning import Tuning, laid_out_weights, lay_out, layout_refusal
from flodl.train.engines.update import Update
from flodl.train.engines.watch import StepWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from torch import nn

    from flodl.train.engines.base import GradientWatch
    from flodl.train.engines.fused import OptimizerStep
    from flodl.train.learning_rate import Schedule
    from flodl.train.losses import LossLog

    Forward = Callable[[nn.Module, Any], Tensor]

T = TypeVar("T")
_FORWARD, _BACKWARD, _OPTIMIZER = Account.FORWARD, Account.BACKWARD, Account.OPTIMIZER


class TunedEngine(StepEngine):
    """Forward, backward and update, each computed as :attr:`tuning` says.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.
    """

    name: ClassVar[str] = "tuned"

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: StepSettings
    ) -> None:
        self.settings = settings
        self.global_step = 0
        self.tuning = Tuning()
        self.compiled_forward: Forward | None = None
        self._model = model
        self._optimizer = optimizer
        self._plain_forward = forward_function(model, settings)
        self._forward: Forward = self._plain_forward
        self._update = Update(model, optimizer, settings)
        self._lap = settings.ledger.lap if settings.ledger is not None else None
        self._looked = False
        self._scaler = settings.scaler
        self._checked_fused: CheckedStep | None = None
        self._watch: StepWatch | None = None
        self._observes = False
        self._lies_otherwise = False
        self._layout_refusal = ""
        self._thread_limit: ThreadLimit | None = None
        self._capturing: Capturing | None = None
        self._around_forward: tuple[AbstractContextManager[object], ...] = ()
        self._around_backward: tuple[AbstractContextManager[object], ...] = ()

    def use(self, tuning: Tuning) -> None:
        """Use this tuning for the next steps; call it only between two optimizer steps.

        Channels last is left out if :attr:`layout_refusal` has a reason against it, and a CUDA
        graph if :meth:`capture_refusal` has one.

        Raises:
            ValueError: ``compiled`` without a :attr:`compiled_forward`.
        """
        if tuning.channels_last and not (self._layout_refusal or self._lies_otherwise):
            self._layout_refusal = layout_refusal(self._model, self._optimizer)
        if self._layout_refusal:
            tuning = replace(tuning, channels_last=False)
        if self.capture_refusal(tuning):
            tuning = replace(tuning, captured=False)
        before, self.tuning = self.tuning, tuning
        if tuning.compiled and self.compiled_forward is None:
            raise ValueError("nothing has been compiled yet")
        compiled = self.compiled_forward if tuning.compiled else None
        self._forward = compiled if compiled is not None else self._plain_forward
        if tuning.threads != before.threads:
            self._thread_limit = ThreadLimit(tuning.threads) if tuning.threads else None
        if tuning.heap != before.heap:
            (heap.keep if tuning.heap else heap.release)()
        if not tuning.channels_last:
            self.present()
        if tuning.fused != before.fused:
            mine, self._update.step = self._update.step, self._fused() if tuning.fused else None
            if mine is not None:
                place_step_counts(self._optimizer, fused=False)
        if tuning.captured:
            self._capturing = self._capturing or Capturing(
                self._model, self._optimizer, self.settings
            )
            self._capturing.enter()
        elif self._capturing is not None and before.captured and not tuning.fused:
            self._capturing.leave()
        self._surround()

    def capture_refusal(self, tuning: Tuning) -> str:
        """Why the steps of a tuning cannot be captured; empty if no reason is known."""
        return self._capturing.reasons.get(tuning, "") if self._capturing is not None else ""

    @property
    def layout_refusal(self) -> str:
        """Why weights must keep the user's memory layout; empty if no reason is known."""
        return self._layout_refusal

    @property
    def fused_refusal(self) -> str:
        """Why the fused step of the optimizer is not used; empty if there is no reason."""
        return self._checked_fused.reason if self._checked_fused is not None else ""

    def present(self) -> None:
        """Restore the user's memory layout of parameters, gradients and optimizer state."""
        if self._capturing is not None:
            self._capturing.look_again()
        if self._lies_otherwise:
            self._lies_otherwise = False
            self._arrange(torch.contiguous_format)

    def observe(self, on: bool) -> StepWatch:
        """Watch the calls of torch in the next steps, or stop doing so; return the watch."""
        self._observes = on
        watch = self._watch = self._watch or StepWatch(self.present)
        self._surround()
        return watch

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        if self.tuning.captured and parts == 1 and closes and self._by_graph(batch, losses):
            return
        if self.tuning.channels_last and not self._lies_otherwise:
            self._lie_otherwise()
        limit = self._thread_limit
        if limit is None and self._watch is None:
            self._carry_out(batch, losses, parts, closes)
            return
        with limit or _AS_IT_IS:
            self._watched(batch, losses, parts, closes)
        if limit is not None and limit.overruled:
            self.use(replace(self.tuning, threads=0))

    def _by_graph(self, batch: Any, losses: LossLog) -> bool:
        """Take a step by a CUDA graph, if there is one for it or one can be captured."""
        capturing, update = self._capturing, self._update
        if capturing is None or update.watch is not None:
            return False
        with capturing.warming(self.tuning) as plain:
            if plain:
                self._carry_out(batch, losses, 1, closes=True)
                return True
        prepare = partial(update.prepare, self.global_step)
        taken = capturing.step(self.tuning, batch, self._compute, update.in_graph, prepare)
        if taken is None:
            if self.capture_refusal(self.tuning):
                self.use(replace(self.tuning, captured=False))
            return False
        loss, norm = taken
        losses.add(loss)
        if norm is not None:
            update.tell_norm(self.global_step, norm.clone())  # the next replay overwrites it
        update.conclude()
        self.global_step += 1
        if self._lap is not None:
            self._lap(_OPTIMIZER)
        return True

    def _compute(self, batch: Any) -> Tensor:
        """Run forward and backward; return the loss."""
        loss = _inside(self._around_forward, self._forward, self._model, batch)
        if not (isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad):
            loss = scalar_loss(loss)
        _inside(self._around_backward, _backward, loss)
        return loss.detach()

    def _watched(self, batch: Any, losses: LossLog, parts: int, closes: bool) -> None:
        """Take a step whose calls are watched."""
        watch = self._watch
        if watch is None:
            self._carry_out(batch, losses, parts, closes)
            return
        watch.begin_step(laid_out_weights(self._model), guards=self._lies_otherwise)
        try:
            self._carry_out(batch, losses, parts, closes)
        except BaseException:
            self.present()
            raise
        finally:
            watch.end_step()
            if watch.reason:
                self._layout_refusal = watch.reason
        if closes and self._layout_refusal and self.tuning.channels_last:
            self.use(replace(self.tuning, channels_last=False))

    def _carry_out(self, batch: Any, losses: LossLog, parts: int, closes: bool) -> None:
        lap = self._lap
        if self._looked:
            loss = _inside(self._around_forward, self._forward, self._model, batch)
        else:  # outside of what watches the forward pass, because it looks at gradients
            self._looked = True
            forward = partial(_inside, self._around_forward, self._forward)
            loss = without_backward(forward, self._optimizer)(self._model, batch)
        if not (isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad):
            loss = scalar_loss(loss)
        losses.add(loss.detach())
        if lap is not None:
            lap(_FORWARD)
        if parts != 1:
            loss = loss / parts
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        if self._watch is not None:
            self._watch.look_back(loss)
        _inside(self._around_backward, _backward, loss)
        if lap is not None:
            lap(_BACKWARD)
        if closes:
            self._update.apply(self.global_step)
            self.global_step += 1
            if lap is not None:
                lap(_OPTIMIZER)

    def watch_gradients(self, watch: GradientWatch) -> None:
        """Show the gradients of each step, in the memory layout of the step."""
        self._update.watch = watch

    def follow(self) -> None:
        """Take an optimizer step with gradients of other ranks."""
        self._update.apply(self.global_step)
        self.global_step += 1

    def set_schedule(self, schedule: Schedule | None) -> None:
        """Use another schedule for the learning rates."""
        self._update.set_schedule(schedule)

    def report(self) -> Mapping[str, object]:
        """Report the tunings in use."""
        return {"engine": self.name, "tuning": self.tuning.names()}

    def close(self) -> None:
        """Restore the usual heap, and the layout of weights that other code expects."""
        self._observes = False
        self.use(replace(self.tuning, heap=False, channels_last=False, captured=False))
        if self._capturing is not None:
            self._capturing.keep(None)
        if self._update.step is not None:
            place_step_counts(self._optimizer, fused=False)

    # --- Memory layout ------------------------------------------------------------------------

    def _lie_otherwise(self) -> None:
        """Change the layout of the weights, unless code that may read them has appeared."""
        if reason := layout_refusal(self._model, self._optimizer):
            self._layout_refusal = reason
            self.use(replace(self.tuning, channels_last=False))
            return
        self._arrange(torch.channels_last)
        self._lies_otherwise = True

    def _arrange(self, memory_format: torch.memory_format) -> None:
        lay_out(self._model, self._optimizer, memory_format)
        if self.tuning.fused:
            self._update.step = self._fused()  # it keeps lists of tensors

    def _fused(self) -> OptimizerStep | None:
        fused = fused_step(self._optimizer)
        if fused is None:
            return None
        if self._checked_fused is None:
            self._checked_fused = CheckedStep(self._optimizer, fused)
        self._checked_fused.fused = fused
        return self._checked_fused

    def _surround(self) -> None:
        """Collect the contexts in which forward and backward run."""
        tuning = self.tuning
        if not self._observes and not tuning.channels_last:
            self._watch = None
        elif self._watch is None:
            self._watch = StepWatch(self.present)
        watch = (self._watch,) if self._watch is not None else ()
        # In the backward pass, too: activation checkpointing runs parts of the forward again.
        self._around_forward = (*((OneDnnRoute(),) if tuning.route_forward else ()), *watch)
        self._around_backward = (*((OneDnnRoute(),) if tuning.route_backward else ()), *watch)


_AS_IT_IS = nullcontext()


def _inside(
    contexts: tuple[AbstractContextManager[object], ...], function: Callable[..., T], *args: Any
) -> T:
    if not contexts:
        return function(*args)
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        return function(*args)


def _backward(loss: Tensor) -> None:
    if torch._C._len_torch_function_stack() == 0:
        loss.backward()  # type: ignore[no-untyped-call]
        return
    # The same as loss.backward(), which would hide the calls of the backward pass from the watch.
    torch.autograd.graph._engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True,
        accumulate_grad=True,
    )  # fmt: skip
