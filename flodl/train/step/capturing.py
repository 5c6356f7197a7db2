"""Whole steps as CUDA graphs, beside plain steps of the same training.

A graph repeats the kernels of one step in the memory of that step. So it can be used as long as
model and optimizer keep their tensors and settings; :class:`Capture` checks that. Between captured
steps, model and optimizer look as plain steps leave them.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from flodl.checkpoint.generators import generator_states, same
from flodl.data.structure import cloned, leaves_of, tensors_of
from flodl.nn.cuda_graph import cuda_graph_capture
from flodl.train.metrics import RecordedValues, record_scalar, recording_into
from flodl.train.step.learning_rate import rates_of
from flodl.train.step.tuning import (
    has_hooks,
    has_step_hooks,
    place_step_counts,
    replaces_step,
    runs_torchs_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch.optim import Optimizer

    from flodl.train.metrics import Reduction
    from flodl.train.step.base import StepSettings


def captures_on(device: torch.device) -> bool:
    """Whether a device has graphs."""
    return device.type == "cuda"


def refusal(
    model: nn.Module, optimizer: Optimizer, settings: StepSettings, device: torch.device
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
    if replaces_step(optimizer):
        return "the program has replaced the optimizer's step"
    if not runs_torchs_step(optimizer):
        return f"{type(optimizer).__name__} is not one of torch's SGD, Adam and AdamW"
    if settings.reduce is not None:
        return "several ranks take one step together"
    if any(parameter.device != device for parameter in model.parameters()):
        return "the model is on several devices"
    if has_hooks(model) or has_step_hooks(optimizer):
        return "the model or the optimizer has hooks"
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            return "the learning rate is a tensor"
        if group.get("capturable") or group.get("differentiable"):
            return "the program has chosen how the optimizer computes"
    return ""


@final
class Capturing:
    """The captured step of a training, which can alternate with plain steps.

    Args:
        model: In training mode, on its device.
        optimizer: Over its parameters.
        settings: The settings of the step.
        compute: ``batch -> loss``, forward and backward.
        update: Clips and steps the optimizer, and clears the gradients; returns the norm of the
            gradients before they were clipped, if they are.

    Attributes:
        reason: Why the step cannot be captured, or cannot be any longer.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        settings: StepSettings,
        compute: Callable[[Any], Tensor],
        update: Callable[[], Tensor | None],
    ) -> None:
        self.reason = ""
        self._model, self._optimizer, self._settings = model, optimizer, settings
        self._compute, self._update = compute, update
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._capture: Capture | None = None
        self._warm = False
        self._counts: dict[Tensor, Tensor] = {}
        self._rates: list[Tensor] = []
        self._set_rates: list[float] = []
        self._doubts = False

    def enter(self) -> None:
        """Let the next steps be captured ones, after plain steps."""
        if self._capture is not None:
            self._pin_counts()

    def leave(self) -> None:
        """Let the next steps be plain ones of the user's optimizer, after captured steps."""
        if self._counts and not any(group.get("fused") for group in self._optimizer.param_groups):
            place_step_counts(self._optimizer, fused=False)

    def look_again(self) -> None:
        """Check before the next replay whether code outside of the steps has changed anything."""
        self._doubts = True

    def drop(self) -> None:
        """Free the graph: the next captured step is another one."""
        self._capture, self._warm = None, False

    @contextmanager
    def warming(self) -> Iterator[bool]:
        """Run a plain step inside, as a capture requires, unless one has run already.

        Yields:
            Whether a plain step is needed.
        """
        if self._warm:
            yield False
            return
        self._warm = True
        with _on_a_side_stream(self._device):
            yield True

    def step(
        self, batch: Any, prepare: Callable[[], object]
    ) -> tuple[Tensor, Tensor | None] | None:
        """Take a step by a graph.

        Args:
            batch: On the device.
            prepare: Sets the learning rates of the step.

        Returns:
            The loss and the norm, which the next step overwrites. None if this step must run
            plainly: the batch has another shape, or there is a :attr:`reason`.
        """
        capture, looks = self._capture, self._doubts
        if capture is None:
            capture = self._capture = self._captured(batch)
        elif not capture.fits(batch):
            return None
        else:
            self.reason = capture.change(looks=looks)
        self._doubts = False
        if capture is None or self.reason:
            self._capture = None
            return None
        prepare()
        self._refresh_rates()
        return capture.replay(batch)

    def _captured(self, batch: Any) -> Capture | None:
        """Capture a step, which runs nothing: no value of model and optimizer changes."""
        self._optimizer.zero_grad()
        self._pin_counts()
        self._refresh_rates()

        def update() -> Tensor | None:
            with self._capturable():
                return self._update()

        try:
            for leaf in leaves_of(batch):
                if not isinstance(leaf, (Tensor, NoneType)):
                    kind = type(leaf).__name__
                    raise ValueError(f"a batch holds a {kind}, which a graph would keep")
                if leaf is not None and leaf.device != self._device:
                    raise ValueError(f"a batch is not on {self._device} as a whole")
            return Capture(self._model, self._optimizer, batch, self._compute, update)
        except Exception as error:
            self._optimizer.zero_grad()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            told = str(error).splitlines() or [type(error).__name__]
            self.reason = f"the step cannot be captured: {told[0]}"
            return None

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
        now = rates_of(self._optimizer)
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
        pairs = list(zip(self._optimizer.param_groups, self._rates, strict=True))
        pairs = [(group, rate) for group, rate in pairs if _can_capture(group)]
        before = [{name: group[name] for name in names} for group, _ in pairs]
        for group, rate in pairs:
            group.update(capturable=True, lr=rate)
        try:
            yield
        finally:
            for (group, _), values in zip(pairs, before, strict=True):
                group.update(values)


def _can_capture(group: dict[str, Any]) -> bool:
    """Whether a group can read its learning rate on the device."""
    return "capturable" in group and any(parameter.is_cuda for parameter in group["params"])


@final
class Capture:
    """A captured step: the tensors that it reads and writes, and what must stay as it was."""

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
        self._inputs, self._kinds = cloned(batch), _kinds(batch)
        self._targets = tensors_of(self._inputs)
        self._recorded: list[tuple[str, Tensor, Reduction]] = []
        before, drawn = self._memory(), _host_states()
        # The plain steps before it, with their own batches, were the warm-up.
        self._graph = cuda_graph_capture(0, None, self._run)
        self._found, self._settings = self._memory(), self._numbers()
        if self._found != before:
            raise ValueError("it replaces a tensor of the model or of its optimizer")
        if not same(drawn, _host_states()):
            raise ValueError("it draws random numbers outside of the device")

    def fits(self, batch: Any) -> bool:
        """Whether a batch has the captured shapes and dtypes."""
        return _kinds(batch) == self._kinds

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
        """Copy a batch in and run the step; the next replay overwrites its loss and norm."""
        for target, source in zip(self._targets, tensors_of(batch), strict=True):
            target.copy_(source, non_blocking=True)
        self._graph.replay()
        for name, value, reduce in self._recorded:
            record_scalar(name, value.clone(), reduce)
        return self._loss, self._norm

    def _run(self) -> None:
        values = RecordedValues()
        with recording_into(values):
            self._loss = self._compute(self._inputs)
        self._recorded = []
        for name, value, reduce in values.calls:
            if not isinstance(value, Tensor) or value.device != self._loss.device:
                raise ValueError("it records a number that is not on the device")
            self._recorded.append((name, value.detach(), reduce))
        self._norm = self._update()

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


def _kinds(batch: Any) -> list[object]:
    """Return shape and dtype of each tensor, and None for each value that is missing."""
    return [(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves_of(batch)]


def _host_states() -> dict[str, Any]:
    """The states of the generators that no graph can draw from."""
    return {name: state for name, state in generator_states().items() if name != "cuda"}


@contextmanager
def _on_a_side_stream(device: torch.device) -> Iterator[None]:
    """Run kernels on another stream, in order with those before and after the context."""
    if device.type != "cuda":
        yield
        return
    side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream(device).wait_stream(side)
