"""Whole steps as CUDA graphs, beside plain steps of the same training.

A graph repeats the kernels of one step in the memory of that step. So it can be used as long as
model and optimizer keep their tensors and settings; :class:`Capturing` checks that. Between
captured steps, model and optimizer look as plain steps leave them.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from flodl.checkpoint.generators import generator_states
from flodl.data.structure import cloned, leaves_of, tensors_of
from flodl.nn.cuda_graph import cuda_graph_capture
from flodl.train.engines.fused import place_step_counts, runs_torchs_step
from flodl.train.engines.random_state import same
from flodl.train.engines.tuning import Tuning, has_hooks
from flodl.train.metrics import RecordedValues, record_scalar, recording_into

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch.optim import Optimizer

    from flodl.train.engines.base import StepSettings


@final
class Capture:
    """A captured step and the tensors that it reads and writes."""

    def __init__(self, batch: Any, body: Callable[[Any], Tensor]) -> None:
        self._inputs = cloned(batch)
        self._targets = tensors_of(self._inputs)
        self._kinds = kinds(batch)
        self._body = body
        # The plain steps before it, with their own batches, were the warm-up.
        self._graph = cuda_graph_capture(0, None, self._run)

    def _run(self) -> None:
        self._loss = self._body(self._inputs)

    def fits(self, batch: Any) -> bool:
        """Whether a batch has the captured shapes and dtypes."""
        return kinds(batch) == self._kinds

    def replay(self, batch: Any) -> Tensor:
        """Copy a batch in and run the step; return its loss, which the next replay overwrites."""
        for target, source in zip(self._targets, tensors_of(batch), strict=True):
            target.copy_(source, non_blocking=True)
        self._graph.replay()
        return self._loss


def kinds(batch: Any) -> list[object]:
    """Return shape and dtype of each tensor, and None for each value that is missing."""
    return [(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves_of(batch)]


def batch_refusal(batch: Any) -> str:
    """Return why a graph cannot take the place of a step with this batch; empty if it can."""
    other = next((x for x in leaves_of(batch) if not isinstance(x, (Tensor, NoneType))), None)
    return f"a batch holds a {type(other).__name__}, which a graph would keep" if other else ""


def captures_on(device: torch.device) -> bool:
    """Whether a device has graphs."""
    return device.type == "cuda"


def refusal(
    model: nn.Module,
    optimizer: Optimizer,
    settings: StepSettings,
    device: torch.device,
) -> str:
    """Return why a step cannot be captured; empty if it may be tried."""
    if not captures_on(device):
        return f"CUDA graphs need a CUDA device, the model is on {device}"
    if settings.scaler is not None:
        return "a gradient scaler reads from the device in every step; use bf16 without one"
    capturable = all("capturable" in group for group in optimizer.param_groups)
    if settings.schedule is not None and not capturable:
        return (
            f"{type(optimizer).__name__} is not capturable, so its learning rate would stay as "
            "captured; use Adam or AdamW, or no schedule"
        )
    reasons = getattr(getattr(model, "capturable", None), "reasons", ())
    return "; ".join(reasons)


def refusal_beside_plain_steps(
    model: nn.Module, optimizer: Optimizer, settings: StepSettings, device: torch.device
) -> str:
    """Return why captured and plain steps cannot follow each other; empty if they can.

    The program has not asked for a graph, so code of the user that it would skip is a reason.
    """
    if reason := refusal(model, optimizer, settings, device):
        return reason
    replaced = vars(optimizer).get("step")
    if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
        return "the program has replaced the optimizer's step"
    if not runs_torchs_step(optimizer):
        return f"{type(optimizer).__name__} is not one of torch's SGD, Adam and AdamW"
    if settings.reduce is not None:
        return "several ranks take one step together"
    if any(parameter.device != device for parameter in model.parameters()):
        return "the model is on several devices"
    if has_hooks(model):
        return "the model has hooks"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "the optimizer has hooks"
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return "optimizers have hooks"
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            return "the learning rate is a tensor"
        if group.get("capturable") or group.get("differentiable"):
            return "the program has chosen how the optimizer computes"
    return memory_refusal(device)


def memory_refusal(device: torch.device) -> str:
    """Return why a graph does not fit into memory beside plain steps; empty if it does."""
    if device.type != "cuda":
        return ""
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    needed = torch.cuda.max_memory_allocated(device)
    if needed > free + cached:
        return f"a graph needs {needed / 1e6:,.0f} MB of its own, and {free / 1e6:,.0f} MB are free"
    return ""


@final
class Capturing:
    """The captured steps of a training, one for each tuning.

    Args:
        model: In training mode, on its device.
        optimizer: One of torch's own, see :func:`refusal_beside_plain_steps`.
        settings: The settings of the step.

    Attributes:
        reasons: Why a tuning cannot be captured, or cannot be any longer.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: StepSettings) -> None:
        self.reasons: dict[Tuning, str] = {}
        self._model, self._optimizer, self._settings = model, optimizer, settings
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._captures: dict[Tuning, _CapturedStep] = {}
        self._warm: set[Tuning] = set()
        self._counts: dict[Tensor, Tensor] = {}
        self._rates: list[Tensor] = []
        self._set_rates: list[float] = []
        self._doubts = False

    def enter(self) -> None:
        """Let the next steps be captured ones, after plain steps."""
        if self._captures:
            self._pin_counts()

    def leave(self) -> None:
        """Let the next steps be plain ones of the user's optimizer, after captured steps."""
        if self._counts and not any(group.get("fused") for group in self._optimizer.param_groups):
            place_step_counts(self._optimizer, fused=False)

    def look_again(self) -> None:
        """Check before the next replay whether code outside of the steps has changed anything."""
        self._doubts = True

    def keep(self, tuning: Tuning | None) -> None:
        """Free all graphs but that of one tuning."""
        self._captures = {one: step for one, step in self._captures.items() if one == tuning}

    @contextmanager
    def warming(self, tuning: Tuning) -> Iterator[bool]:
        """Run a plain step inside, as a capture requires, unless one has run already.

        Yields:
            Whether a plain step is needed.
        """
        if tuning in self._warm:
            yield False
            return
        self._warm.add(tuning)
        with on_a_side_stream(self._device):
            yield True

    def step(
        self,
        tuning: Tuning,
        batch: Any,
        compute: Callable[[Any], Tensor],
        update: Callable[[], Tensor | None],
        prepare: Callable[[], object],
    ) -> tuple[Tensor, Tensor | None] | None:
        """Take a step by a graph.

        Args:
            tuning: How the step is computed.
            batch: On the device.
            compute: ``batch -> loss``, forward and backward.
            update: Clips and steps the optimizer, and clears the gradients; returns the norm of
                the gradients before they were clipped, if they are.
            prepare: Sets the learning rates of the step.

        Returns:
            The loss and that norm, which the next step overwrites. None if this step must run
            plainly: the batch has another shape, or the tuning has a reason in :attr:`reasons`.
        """
        captured = self._captures.get(tuning)
        if captured is None:
            captured = self._capture(tuning, batch, compute, update)
        elif not captured.fits(batch):
            return None
        elif reason := captured.change(looks=self._doubts):
            self._give_up(tuning, reason)
            return None
        self._doubts = False
        if captured is None:
            return None
        prepare()
        self._refresh_rates()
        return captured.replay(batch)

    def _capture(
        self,
        tuning: Tuning,
        batch: Any,
        compute: Callable[[Any], Tensor],
        update: Callable[[], Tensor | None],
    ) -> _CapturedStep | None:
        """Capture a step, which runs nothing: no value of model and optimizer changes."""
        reason = batch_refusal(batch)
        if not reason and any(one.device != self._device for one in tensors_of(batch)):
            reason = f"a batch is not on {self._device} as a whole"
        if reason:
            self._give_up(tuning, reason)
            return None
        self._optimizer.zero_grad()
        self._pin_counts()
        self._refresh_rates()

        def capturable_update() -> Tensor | None:
            with self._capturable():
                return update()

        try:
            captured = _CapturedStep(
                self._model, self._optimizer, batch, compute, capturable_update
            )
        except Exception as error:
            self._optimizer.zero_grad()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            told = str(error).splitlines() or [type(error).__name__]
            self._give_up(tuning, f"the step cannot be captured: {told[0]}")
            return None
        self._captures[tuning] = captured
        return captured

    def _give_up(self, tuning: Tuning, reason: str) -> None:
        self._captures.pop(tuning, None)
        self.reasons[tuning] = reason

    def _pin_counts(self) -> None:
        """Let the state hold the step counts that graphs use, with today's values."""
        for parameter, state in self._optimizer.state.items():
            count = state.get("step")
            if not isinstance(count, Tensor):
                continue
            mine = self._counts.get(parameter)
            if mine is None:
                mine = self._counts[parameter] = count.to(parameter.device)
            elif mine is not count:
                mine.copy_(count)
            state["step"] = mine

    def _refresh_rates(self) -> None:
        """Write the learning rates of today to where graphs read them."""
        groups = self._optimizer.param_groups
        now = [float(group["lr"]) for group in groups]
        if now == self._set_rates:
            return
        while len(self._rates) < len(now):
            self._rates.append(torch.zeros((), device=self._device))
        for tensor, rate in zip(self._rates, now, strict=False):
            tensor.fill_(rate)
        self._set_rates = now

    @contextmanager
    def _capturable(self) -> Iterator[None]:
        """Let the optimizer read its learning rates and step counts on the device, inside only."""
        names = ("capturable", "lr")
        groups = [group for group in self._optimizer.param_groups if _can_capture(group)]
        before = [{name: group[name] for name in names} for group in groups]
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if _can_capture(group):
                group.update(capturable=True, lr=rate)
        try:
            yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)


def _can_capture(group: dict[str, Any]) -> bool:
    """Whether a group can read its learning rate on the device."""
    return "capturable" in group and any(parameter.is_cuda for parameter in group["params"])


@final
class _CapturedStep:
    """A captured step with what it records, and with what must stay as it was."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        batch: Any,
        compute: Callable[[Any], Tensor],
        update: Callable[[], Tensor | None],
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._compute, self._update = compute, update
        self._norm: Tensor | None = None
        self._recorded: list[tuple[str, Tensor]] = []
        before, drawn = self._memory(), _host_states()
        self._capture = Capture(batch, self._body)
        self._found, self._settings = self._memory(), self._numbers()
        if self._found != before:
            raise ValueError("it replaces a tensor of the model or of its optimizer")
        if not same(drawn, _host_states()):
            raise ValueError("it draws random numbers outside of the device")

    def fits(self, batch: Any) -> bool:
        """Whether a batch has the captured shapes and dtypes."""
        return self._capture.fits(batch)

    def change(self, *, looks: bool) -> str:
        """Return what has changed since the capture; empty if the graph is still right.

        Args:
            looks: Also look at the memory of model and optimizer.
        """
        if self._numbers() != self._settings:
            return "the program has changed a setting of the optimizer"
        if looks and self._memory() != self._found:
            return "the program has changed the model or its optimizer between two steps"
        return ""

    def replay(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        """Run the step; return its loss and norm, which the next replay overwrites."""
        loss = self._capture.replay(batch)
        for name, value in self._recorded:
            record_scalar(name, value.clone())
        return loss, self._norm

    def _body(self, batch: Any) -> Tensor:
        values = RecordedValues()
        with recording_into(values):
            loss = self._compute(batch)
        self._recorded = []
        for name, value in values.calls:
            if not isinstance(value, Tensor) or value.device != loss.device:
                raise ValueError("it records a number that is not on the device")
            self._recorded.append((name, value.detach()))
        self._norm = self._update()
        return loss

    def _memory(self) -> list[object]:
        """Where the tensors are, and which parts of the model train."""
        model, found = self._model, list[object]()
        found += [(p.data_ptr(), p.requires_grad) for p in model.parameters()]
        found += [buffer.data_ptr() for buffer in model.buffers()]
        found += [module.training for module in model.modules()]
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter, {})
                found += [v.data_ptr() for v in state.values() if isinstance(v, Tensor)]
        return found

    def _numbers(self) -> list[object]:
        """The settings of the optimizer that the graph has kept."""
        return [
            (name, value)
            for group in self._optimizer.param_groups
            for name, value in group.items()
            if name != "params" and not (name == "lr" and _can_capture(group))
        ]


def _host_states() -> dict[str, Any]:
    """The states of the generators that no graph can draw from."""
    return {name: state for name, state in generator_states().items() if name != "cuda"}


@contextmanager
def on_a_side_stream(device: torch.device) -> Iterator[None]:
    """Run kernels on another stream, in order with those before and after the context."""
    if device.type != "cuda":
        yield
        return
    side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream(device).wait_stream(side)
