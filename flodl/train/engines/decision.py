"""The decision of an engine, and where later runs find it.

A decision belongs to a program, a model, the shape of its batches and a machine. The checkpoint
holds it, and the user's cache keeps it for the next run of the same program.
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
    """The tuning for the steps of a training, and its measurements.

    Attributes:
        key: The key of the training, see :func:`decision_key`.
        tuning: The tuning to use.
        plain_ms: Milliseconds of a plain step at the time of the decision.
        step_ms: Milliseconds of a step with the tuning.
        trials: The result of each trial, or why it was not tried.
        busy: Whether the training had to wait for a core at the time of the decision.
    """

    key: str
    tuning: Tuning
    plain_ms: float = 0.0
    step_ms: float = 0.0
    trials: Mapping[str, object] = field(default_factory=dict)
    busy: bool = False

    def suits(self, key: str) -> bool:
        """Whether a checkpoint's decision is for this training, whatever batch comes next.

        A resumed training may continue with the last, smaller batch of an epoch.
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
            "busy": self.busy,
        }

    @classmethod
    def from_json(cls, form: Any) -> Decision:
        """Read the result of :meth:`as_json`.

        Raises:
            ValueError: It has another form.
        """
        try:
            return cls(
                key=str(form["key"]),
                tuning=Tuning.from_json(form["tuning"]),
                plain_ms=float(form["plain_ms"]),
                step_ms=float(form["step_ms"]),
                trials={str(name): str(note) for name, note in form["trials"].items()},
                busy=form.get("busy") is True,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a decision: {form!r}") from error

    def store(self) -> None:
        """Keep the decision for later runs; a folder that cannot be written is not an error."""
        with suppress(OSError):
            path = _path(self.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, json.dumps(self.as_json()) + "\n")


def stored_decision(key: str) -> Decision | None:
    """Return the decision of an earlier run; None if there is no readable one."""
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
    """Return a short name for the combination of program, model, batches and machine.

    Args:
        model: Its modules and parameters count.
        optimizer: Its class counts.
        settings: The training function, and the settings that change it.
        batch: Shapes and types of its tensors count.
        options: The options of the engine.
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
    """Identify the program by the content of its main file and of the training function's file."""
    code = getattr(train_fn, "__code__", None)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    files = [main, code.co_filename if code is not None else None]
    name = getattr(train_fn, "__qualname__", type(train_fn).__qualname__)
    # Code from a prompt or a notebook has no file.
    text = code.co_code.hex() if code is not None else ""
    return [name, text, *(_file_digest(file) for file in files if file)]


@functools.cache
def _file_digest(name: str) -> str:
    path = Path(name).resolve()
    try:
        return f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError:
        return name
