"""Forward and loss as one region for torch.compile, with its backward."""

from __future__ import annotations

import copy
import os
import threading
import types
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from flodl import log
from flodl.data import Batch
from flodl.train.engines.cache import cache_folder
from flodl.train.engines.forward import forward_function
from flodl.train.engines.tracing import trace_own_thread_only
from flodl.train.metrics import RecordedValues, collecting, record_scalar, recording_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from flodl.train.engines.base import StepSettings

    Forward = Callable[[nn.Module, Batch], Tensor]

_numbers = iter(range(2**62))


def compiled_forward(
    model: nn.Module, settings: StepSettings, *, recompiles: bool = False
) -> Forward:
    """Return the training function, compiled at its first call; later ones are as fast as it gets.

    Shapes are taken as fixed, random numbers are those of plain torch, and nothing may fall out of
    the compiled region: a function torch cannot follow raises at the first call. What it was
    compiled for may change later: another shape, a number the model computes with, a part that is
    frozen. Such a call runs plainly.

    Args:
        model: Tells the device; a copy of it may be given to the result as well.
        settings: The training function and autocast.
        recompiles: Compile again for what has changed, as often as torch does that.
    """
    # A second run of the same program then finds what the first one compiled.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    forward = forward_function(model, settings)

    def region(model: nn.Module, tensors: tuple[Tensor, ...], names: tuple[str, ...]) -> Any:
        if torch.compiler.is_compiling():
            with collecting() as recorded:
                loss = forward(model, Batch(tensors, names))
            return loss, recorded
        values = RecordedValues()
        with recording_into(values):
            loss = forward(model, Batch(tensors, names))
        return loss, values.calls

    # torch counts compilations per code object, and gives up after eight: every engine has its own.
    code = region.__code__.replace(co_name=f"region_{next(_numbers)}")
    own = types.FunctionType(code, globals(), code.co_name, None, region.__closure__)
    compiled = torch.compile(own, dynamic=False, fullgraph=True, options={"fallback_random": True})

    # Not imported with this module: the compiler takes seconds to load.
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    as_it_is = torch._dynamo.run(own)
    chosen, ready = compiled, False

    def call(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal chosen, ready
        try:
            loss, recorded = chosen(model, tuple(batch), batch.names)
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
            loss, recorded = chosen(model, tuple(batch), batch.names)
        if not ready:
            ready, chosen = True, compiled if recompiles else as_it_is
        for name, value in recorded:
            record_scalar(name, value)
        return loss  # type: ignore[no-any-return]

    return call


@final
class BackgroundCompilation:
    """Compiles in a thread, on a copy of the model, while training goes on.

    torch puts the random generators back to where they were when a compilation began, so this is
    for steps that draw no random numbers, and whoever draws between steps must look after them.

    Args:
        model: Copied at once.
        settings: The training function and autocast.
        batch: One like those to come; copied at once.

    Attributes:
        forward: What :func:`compiled_forward` returns; ready once :attr:`done`.
        error: What went wrong, once :attr:`done`.
    """

    def __init__(self, model: nn.Module, settings: StepSettings, batch: Batch) -> None:
        trace_own_thread_only()
        self.forward = compiled_forward(model, settings)
        self.error: Exception | None = None
        self._model = copy.deepcopy(model)
        self._batch = Batch([tensor.clone() for tensor in batch], batch.names)
        self._thread = threading.Thread(target=self._run, name="flodl-compile", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the compilation has ended, well or not."""
        return not self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            warm(self.forward, self._model, self._batch)
        except Exception as error:
            self.error = error
        # The copies are as large as the model: let them go.
        del self._model, self._batch


def warm(forward: Forward, model: nn.Module, batch: Batch) -> None:
    """Compile forward and backward now; the model's gradients and buffers change, nothing else.

    Raises:
        Exception: Whatever torch raises for what it cannot compile.
    """
    devices = {p.device for p in model.parameters() if p.is_cuda}
    with torch.random.fork_rng(list(devices)), recording_into(RecordedValues()):
        forward(model, batch).backward()  # type: ignore[no-untyped-call]


def first_line(error: Exception) -> str:
    """Return what went wrong in one line: torch's compiler explains at length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = " ".join(lines[:2] if lines and lines[0].endswith("raised:") else lines[:1])
    return f"{type(error).__name__}: {told or 'no message'}"
