"""The halves of a step.

- First the user's function, plain or compiled, the check of its result, and batches in pieces.
- Then the update: from gradients to updated parameters.
"""

from __future__ import annotations

import copy
import os
import types
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from fdl.base.cache_folder import cache_folder
from flodl import log
from flodl.checkpoint.generators import generators_kept
from flodl.data import Batch
from flodl.data.structure import changed_rows, samples_in
from flodl.nn.clip import limited_norm
from flodl.train.metrics import RecordedValues, collecting, record_scalar, recording_into
from flodl.train.step.learning_rate import ScheduledRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from flodl.train.step.base import GradientWatch, StepSettings
    from flodl.train.step.learning_rate import Schedule
    from flodl.train.step.tuning import FusedStep

    Forward = Callable[[nn.Module, Any], Tensor]


def forward_function(model: nn.Module, settings: StepSettings) -> Forward:
    """Return the training function, under autocast if the settings ask for it."""
    train_fn, dtype = settings.train_fn, settings.autocast
    if dtype is None:
        return train_fn
    first = next(model.parameters(), None)
    device_type = first.device.type if first is not None else "cpu"

    def forward(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast(device_type, dtype):
            return train_fn(model, batch)

    return forward


def without_backward(forward: Forward, optimizer: Optimizer) -> Forward:
    """Return a training function that is refused if it computes the gradients itself.

    A plain backward would fail later, and one that keeps the graph would count twice.
    """

    def checked(model: nn.Module, batch: Any) -> Tensor:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        before = [(p.grad, -1 if p.grad is None else p.grad._version) for p in parameters]
        loss = forward(model, batch)
        for parameter, (grad, version) in zip(parameters, before, strict=True):
            now = parameter.grad
            if now is not None and (now is not grad or now._version != version):
                raise ValueError(
                    "train_fn called backward(): the Trainer does that itself. Return the loss "
                    "and leave out backward(), step() and zero_grad(). To call them yourself, "
                    "write your own loop with Trainer.setup(…)"
                )
        return loss

    return checked


def scalar_loss(loss: object) -> Tensor:
    """Check the result of a training function.

    Returns:
        The loss with shape ``[]``.

    Raises:
        ValueError: It is not a tensor, has several elements, or has no gradient.
    """
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"train_fn returned a {type(loss).__name__}, not a loss tensor; "
            "end it with `return loss` (and without .item())"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"train_fn returned a loss of shape {list(loss.shape)}; a loss is one number: reduce "
            "it, for instance with .mean()"
        )
    if not loss.requires_grad:
        raise ValueError(
            f"train_fn returned a loss of shape {list(loss.shape)} without gradient: it was "
            "detached or computed under no_grad, or every parameter is frozen"
        )
    return loss.reshape(())


def pieces(batch: Any, most: int | None) -> Iterator[tuple[Any, float]]:
    """Yield the pieces of a batch, and for each its part of the samples.

    No piece is a single sample, on which batch normalisation cannot train, if others can spare one.

    Args:
        batch: Any structure; what has one entry per sample is divided.
        most: Samples of a piece; None for the whole batch.
    """
    count = samples_in(batch) if most is not None else 0
    if most is None or count <= most:
        yield batch, 1.0
        return
    cuts = [*range(0, count, most), count]
    if count % most == 1 and most > 2:
        cuts[-2] -= 1
    for start, stop in pairwise(cuts):
        rows = itemgetter(slice(start, stop))
        yield changed_rows(batch, count, rows), (stop - start) / count


_regions = iter(range(2**62))


def compiled_forward(
    model: nn.Module,
    settings: StepSettings,
    *,
    recompiles: bool = False,
    autotunes: bool = False,
) -> Forward:
    """Return the training function; its first call compiles it, later calls are fast.

    - Forward and loss are one region for torch.compile, with its backward.
    - Shapes are taken as fixed, and random numbers are those of plain torch.
    - The whole function must be compiled: if torch cannot compile all of it, the first call raises.
    - Later calls may differ: another shape, another number in the computation, a frozen part. Such
      a call runs plainly.

    Args:
        model: Tells the device; the result also accepts a copy of it.
        settings: The training function and autocast.
        recompiles: Compile again after a change, as often as torch allows.
        autotunes: Let torch measure many kernels for each operation. Its mode ``reduce-overhead``
            is not needed: a CUDA graph of the whole step saves more launches.
    """
    # A second run of the same program then finds the compiled code of the first one.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    forward = forward_function(model, settings)

    def region(model: nn.Module, content: Any, names: tuple[str, ...] | None) -> Any:
        batch = content if names is None else Batch(content, names)
        if torch.compiler.is_compiling():
            with collecting() as recorded:
                loss = forward(model, batch)
            return loss, recorded
        values = RecordedValues()
        with recording_into(values):
            loss = forward(model, batch)
        return loss, values.calls

    # torch counts compilations per code object and stops after eight, so every engine has its own.
    code = region.__code__.replace(co_name=f"region_{next(_regions)}")
    own = types.FunctionType(code, globals(), code.co_name, None, region.__closure__)
    options: dict[str, Any] = {"fallback_random": True}
    if autotunes:
        options |= {"max_autotune": True, "coordinate_descent_tuning": True}
    compiled = torch.compile(own, dynamic=False, fullgraph=True, options=options)

    # Imported late: the compiler takes seconds to load.
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    as_it_is = torch._dynamo.run(own)
    chosen, ready = compiled, False

    def call(model: nn.Module, batch: Any) -> Tensor:
        nonlocal chosen, ready
        # A structure of a loader is an argument as it is; torch reads those that it knows.
        given = (tuple(batch), batch.names) if isinstance(batch, Batch) else (batch, None)
        try:
            loss, recorded = chosen(model, *given)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            if not ready:
                raise
            chosen = as_it_is
            limit = isinstance(error, FailOnRecompileLimitHit)
            reason = "torch allows no more" if limit else first_line(error)
            log.warning(
                'engine="compiled": the step has changed again (its shapes, or a number the model '
                f"computes with) and cannot be compiled once more ({reason}): what is not compiled "
                "runs plainly from here on"
            )
            loss, recorded = chosen(model, *given)
        if not ready:
            ready, chosen = True, compiled if recompiles else as_it_is
        for name, value, reduce in recorded:
            record_scalar(name, value, reduce)
        return loss  # type: ignore[no-any-return]

    return call


def warm(forward: Forward, model: nn.Module, batch: Any) -> None:
    """Compile forward and backward now, with a step of a copy, which must not count.

    Raises:
        Exception: Any exception of torch if it cannot compile the step.
    """
    with generators_kept(), recording_into(RecordedValues()):
        forward(copy.deepcopy(model), batch).backward()  # type: ignore[no-untyped-call]


def first_line(error: Exception) -> str:
    """Return an error as one line, because messages of torch's compiler are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = " ".join(lines[:2] if lines and lines[0].endswith("raised:") else lines[:1])
    return f"{type(error).__name__}: {told or 'no message'}"


@final
class Update:
    """Clips, sets the learning rate, steps the optimizer and clears the gradients.

    Args:
        model: Its ``end_step``, if it has one, ends each step.
        optimizer: Over the parameters of the model.
        settings: Schedule, clipping, scaler and what follows a step.

    Attributes:
        step: Updates the parameters and clears the gradients; None uses the optimizer's own
            ``step()`` and ``zero_grad()``.
        watch: Reads the gradients of each step before they are clipped and used.
    """

    step: FusedStep | None
    watch: GradientWatch | None

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: StepSettings
    ) -> None:
        self.step = self.watch = None
        self._model = model
        self._optimizer = optimizer
        self._settings = settings
        self.set_schedule(settings.schedule)
        self._end_step: Callable[[], object] | None = getattr(model, "end_step", None)

    def apply(self, global_step: int) -> None:
        """Update the parameters with their gradients.

        Args:
            global_step: Optimizer steps done before this one.
        """
        settings = self._settings
        if settings.reduce is not None:
            settings.reduce()  # it may end the step before anything is recorded
        self.prepare(global_step)
        if self.watch is not None:
            scale = settings.scaler.scale_factor() if settings.scaler is not None else 1.0
            self.watch(global_step, scale)
        moved = True
        if settings.scaler is not None:
            moved = settings.scaler.step(self._optimizer, clip_norm=settings.max_grad_norm)
            if settings.scaler.grad_norm is not None:
                self.tell_norm(global_step, settings.scaler.grad_norm)
            self._optimizer.zero_grad()
        else:
            if settings.max_grad_norm is not None:
                norm = limited_norm(self._model.parameters(), settings.max_grad_norm)
                self.tell_norm(global_step, norm)
            self._move()
        self.conclude(moved=moved)

    def in_graph(self) -> torch.Tensor | None:
        """Clip, step and clear inside of a CUDA graph; return the norm before, if it is clipped."""
        norm, limit = None, self._settings.max_grad_norm
        if limit is not None:
            norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), limit)
        self._move()
        return norm

    def _move(self) -> None:
        if self.step is not None:
            self.step()
        else:
            self._optimizer.step()
            self._optimizer.zero_grad()

    def set_schedule(self, schedule: Schedule | None) -> None:
        """Take the learning rates from this schedule; None keeps those of the optimizer."""
        self._rate: ScheduledRate | None = None
        if schedule is not None:
            self._rate = ScheduledRate(self._optimizer, schedule)

    def prepare(self, global_step: int) -> None:
        """Set the learning rate of the next step."""
        if self._rate is not None:
            rate = self._rate.apply(global_step)
            if self._settings.values is not None:
                self._settings.values.rates.append((global_step, rate))

    def tell_norm(self, global_step: int, norm: torch.Tensor) -> None:
        """Record the total norm of the gradients before they were clipped.

        Args:
            global_step: Optimizer steps done before this one.
            norm: One element; nobody may write to it afterwards.
        """
        # Reading a tensor that is shared among processes would wait for all of them.
        values = self._settings.values
        if values is not None and type(norm) is torch.Tensor:
            values.norms.append((global_step, norm))

    def conclude(self, *, moved: bool = True) -> None:
        """End the step; tell it if the parameters have changed."""
        if moved and self._settings.after_step is not None:
            self._settings.after_step()
        if self._end_step is not None:
            self._end_step()
