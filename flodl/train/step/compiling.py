"""Forward and loss as one region for torch.compile, with its backward."""

from __future__ import annotations

import copy
import os
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdl.base.cache_folder import cache_folder
from flodl import log
from flodl.checkpoint.generators import generators_kept
from flodl.data import Batch
from flodl.train.metrics import RecordedValues, collecting, record_scalar, recording_into
from flodl.train.step.halves import forward_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from flodl.train.step.base import StepSettings

    Forward = Callable[[nn.Module, Any], Tensor]

_numbers = iter(range(2**62))


def compiled_forward(
    model: nn.Module,
    settings: StepSettings,
    *,
    recompiles: bool = False,
    autotunes: bool = False,
) -> Forward:
    """Return the training function; its first call compiles it, later calls are fast.

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
    code = region.__code__.replace(co_name=f"region_{next(_numbers)}")
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
