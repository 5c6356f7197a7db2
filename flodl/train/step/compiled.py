"""The step with forward and backward compiled, at any cost at the beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

from flodl import log
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flodl.train.step.losses import LossLog


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
