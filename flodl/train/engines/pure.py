"""Compiling a step that the user declared safe to run again on copies.

Only ``.pure_step()`` allows this. Compiling calls the training function, and so do the trials that
prove that the compiled step computes the same.
"""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from flodl.checkpoint.generators import generator_states
from flodl.data.structure import tensors_of
from flodl.monitor.ledger import Account
from flodl.train.engines.agreement import disagreement, generators_kept
from flodl.train.engines.compiling import BackgroundCompilation, compiled_forward, warm
from flodl.train.engines.random_state import Rewinding, same
from flodl.train.engines.tuning import Tuning

if TYPE_CHECKING:
    from typing import Any

    from torch import nn
    from torch.optim import Optimizer

    from flodl.train.engines.base import StepSettings
    from flodl.train.engines.live_steps import Steps
    from flodl.train.engines.tuned import Forward


@final
class PureStep:
    """Compiles a step in the background, or at once if it draws random numbers.

    Args:
        model: Copied while it is compiled and compared.
        optimizer: Also copied.
        settings: The settings of a step.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: StepSettings) -> None:
        self._model, self._optimizer, self._settings = model, optimizer, settings
        self._compilation: BackgroundCompilation | None = None
        self._generators = generator_states()
        self.seconds = 0.0

    def refusal(self, batch: Any) -> str:
        """Return why no trial on copies is possible; empty if it is."""
        has_state = getattr(self._model, "has_state", None)
        if callable(has_state) and has_state():
            return "the model keeps state between calls"
        device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
        needed, free = bytes_of_copies(self._model, self._optimizer, batch), free_bytes(device)
        if free is not None and needed > free:
            return (
                f"copies of model and optimizer need {needed / 1e6:,.0f} MB, and "
                f"{free / 1e6:,.0f} MB are free"
            )
        return ""

    def forward(self, batch: Any) -> Steps[Forward]:
        """Compile forward and backward, and return the function once it agrees with the plain step.

        Raises:
            Exception: Any exception of torch if it cannot compile the step.
            ValueError: The compiled step computes something else.
        """
        # Not only steps: an evaluation between them may draw random numbers, too.
        draws = not same(self._generators, generator_states())
        forward = self.now(batch) if draws else (yield from self._meanwhile(batch))
        self.check(batch, forward)
        return forward

    def check(self, batch: Any, forward: Forward) -> None:
        """Compare a compiled step with the plain one on copies.

        Raises:
            ValueError: They differ.
        """
        if reason := self.difference(Tuning(compiled=True), batch, forward):
            raise ValueError(reason)

    def difference(self, tuning: Tuning, batch: Any, forward: Forward | None) -> str:
        """Return what differs from the plain step on copies with a tuning; empty if they agree."""
        reason = disagreement(self._model, self._optimizer, self._settings, tuning, batch, forward)
        self._lap()
        return reason

    def now(self, batch: Any) -> Forward:
        """Compile while the training waits."""
        started = time.perf_counter()
        forward = compiled_forward(self._model, self._settings)
        with generators_kept():
            warm(forward, copy.deepcopy(self._model), batch)
        self.seconds = time.perf_counter() - started
        self._lap()
        return forward

    def close(self) -> None:
        """Drop a running compilation; it ends in the background."""
        if self._compilation is not None:
            self._compilation.join(timeout=1.0)
            self._compilation = None

    def _meanwhile(self, batch: Any) -> Steps[Forward]:
        started = time.perf_counter()
        rewinding = Rewinding()
        compilation = BackgroundCompilation(self._model, self._settings, batch)
        self._compilation = compilation
        ended = False
        while not ended:
            ended = compilation.done  # asked first: undo() then sees the thread's last changes
            rewinding.undo()
            if not ended:
                yield
        self._compilation = None
        self.seconds = time.perf_counter() - started
        if compilation.error is not None:
            raise compilation.error
        return compilation.forward

    def _lap(self) -> None:
        if self._settings.ledger is not None:
            self._settings.ledger.lap(Account.COMPILE)


def bytes_of_copies(model: nn.Module, optimizer: Optimizer, batch: Any) -> int:
    """Return the bytes of a copy of a training: model, gradients, optimizer, batch, times two.

    Times two, because the steps on the copies have their own activations.
    """
    states: list[Any] = [v for state in optimizer.state.values() for v in state.values()]
    parameters = list(model.parameters())
    tensors = [*parameters, *parameters, *model.buffers(), *tensors_of(batch)]
    tensors += [value for value in states if isinstance(value, Tensor)]
    return 2 * sum(int(tensor.nbytes) for tensor in tensors)


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, within the limit of a container.

    None if the system does not tell.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        found.append(int(available[0]) * 1024)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
        found.append(max(0, most - used))
    return min(found, default=None)
