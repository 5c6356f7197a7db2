"""What an engine has decided, and where later steps of the same training find it.

A decision belongs to a program, a model, the shape of its batches and a machine. It travels in the
checkpoint, and lies in the user's cache for the next run of the same program.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from flodl.files import replace_text
from flodl.train.engines.cache import cache_folder, machine_key
from flodl.train.engines.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from flodl.data import Batch
    from flodl.train.engines.base import StepSettings


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """How to carry out the steps of a training, and what that was found to bring.

    Attributes:
        key: What it belongs to, see :func:`decision_key`.
        tuning: What to use.
        plain_ms: Milliseconds of a plain step when it was decided.
        step_ms: Those of a step with the tuning.
        trials: What each thing tried has brought, or why it was not tried.
    """

    key: str
    tuning: Tuning
    plain_ms: float = 0.0
    step_ms: float = 0.0
    trials: Mapping[str, object] = field(default_factory=dict)

    def suits(self, key: str) -> bool:
        """Whether a checkpoint's decision is for this training, whatever batch comes next.

        A training that is resumed may go on with the last, smaller batch of an epoch.
        """
        return self.key.partition("-")[0] == key.partition("-")[0]

    def as_json(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        return {
            "key": self.key,
            "tuning": self.tuning.as_json(),
            "plain_ms": self.plain_ms,
            "step_ms": self.step_ms,
            "trials": {name: str(note) for name, note in self.trials.items()},
        }

    @classmethod
    def from_json(cls, form: Any) -> Decision:
        """Read what :meth:`as_json` wrote.

        Raises:
            ValueError: It is something else.
        """
        try:
            return cls(
                key=str(form["key"]),
                tuning=Tuning.from_json(form["tuning"]),
                plain_ms=float(form["plain_ms"]),
                step_ms=float(form["step_ms"]),
                trials={str(name): str(note) for name, note in form["trials"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a decision: {form!r}") from error

    def store(self) -> None:
        """Keep the decision for later runs; a folder that cannot be written is no error."""
        with suppress(OSError):
            path = _path(self.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, json.dumps(self.as_json()) + "\n")


def stored_decision(key: str) -> Decision | None:
    """Return what an earlier run has decided; None if nothing readable was kept."""
    with suppress(OSError, ValueError):
        decision = Decision.from_json(json.loads(_path(key).read_text(encoding="utf-8")))
        if decision.key == key:
            return decision
    return None


def _path(key: str) -> Path:
    return cache_folder() / "engine" / f"{key}.json"


def decision_key(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: StepSettings,
    batch: Batch,
    options: str = "",
) -> str:
    """Return a short name for a program, its model, its batches and this machine together.

    Args:
        model: Its modules and parameters.
        optimizer: Its class.
        settings: The training function, and what it runs under.
        batch: Shapes and types of its tensors.
        options: What the engine is allowed to do.
    """
    parts = [
        *_program(settings.train_fn),
        *(f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()),
        *(f"{p.dtype} {tuple(p.shape)} {p.device.type}" for p in model.parameters()),
        f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        options,
        str(settings.autocast),
        str(settings.max_grad_norm),
        str(settings.scaler is None),
        machine_key(),
    ]
    fields = zip(batch.names, batch, strict=True)
    shapes = [f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in fields]
    return f"{_digest(parts)}-{_digest(shapes)}"


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _program(train_fn: Any) -> list[str]:
    """Which program this is: its main file, and that of the training function, by content."""
    code = getattr(train_fn, "__code__", None)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    files = [main, code.co_filename if code is not None else None]
    name = getattr(train_fn, "__qualname__", type(train_fn).__qualname__)
    # What is typed into a prompt or a notebook has no file.
    text = code.co_code.hex() if code is not None else ""
    return [name, text, *(_file_digest(file) for file in files if file)]


@functools.cache
def _file_digest(name: str) -> str:
    path = Path(name).resolve()
    try:
        return f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError:
        return name
