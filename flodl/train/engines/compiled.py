"""The step with forward and backward compiled, at any cost at the beginning."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any, ClassVar, final

from flodl import log, terminal
from flodl.monitor.ledger import Account
from flodl.train.engines.agreement import generators_kept
from flodl.train.engines.compiling import compiled_forward, first_line, warm
from flodl.train.engines.tuned import TunedEngine
from flodl.train.engines.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from flodl.train.engines.base import StepSettings
    from flodl.train.losses import LossLog


@final
class CompiledEngine(TunedEngine):
    """Compiles at the first step, then runs the compiled code and a fused optimizer.

    A step that torch cannot compile runs plainly, with a warning that names the reason.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.
    """

    name: ClassVar[str] = "compiled"

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: StepSettings
    ) -> None:
        super().__init__(model, optimizer, settings)
        self._pending = True
        self._seconds = 0.0
        self._fallback = ""

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        if self._pending:
            self._pending = False
            self._compile(batch)
        super().step(batch, losses, parts=parts, closes=closes)

    def report(self) -> Mapping[str, object]:
        """Report how long compiling took, or why it was not possible."""
        facts = {**super().report(), "compile_seconds": round(self._seconds, 3)}
        return {**facts, "fallback": self._fallback} if self._fallback else facts

    def _compile(self, batch: Any) -> None:
        started = time.perf_counter()
        terminal.status("compiling")
        forward = compiled_forward(self._model, self.settings, recompiles=True)
        try:
            # On a copy: compiling runs the step once, which must not count.
            with generators_kept():
                warm(forward, copy.deepcopy(self._model), batch)
        except Exception as error:
            self._fallback = first_line(error)
            log.warning(
                f'engine="compiled": this step cannot be compiled and runs eagerly '
                f'({self._fallback}); use engine="eager" to run it without this attempt'
            )
            log.debug(str(error))
        else:
            self.compiled_forward = forward
        self.use(Tuning(fused=True, compiled=self.compiled_forward is not None))
        self._seconds = time.perf_counter() - started
        if self._lap is not None:
            self._lap(Account.COMPILE)
