"""The decision of an engine, and where later runs find it.

A decision belongs to a program, a model, the shape of its batches and a machine. The checkpoint
holds it. One file in the project keeps it for the next runs, which use it unchanged.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch

from fdl.base.cache_folder import cache_folder
from fdl.base.files import replace_text
from fdl.base.own_files import read_json
from flodl.data.structure import named_tensors
from flodl.device import hardware_name
from flodl.processor import processor_facts
from flodl.train.step.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from flodl.train.step.base import StepSettings


_FILE = "engine.json"
_MOST = 50
"""Decisions that a project keeps; the oldest ones go."""

_DIGESTS = ("program", "model", "processor")
"""Parts of a key that say nothing to a reader."""


# A hypervisor may give all processors of a vendor one name; family and model still differ.
_PROCESSOR = ("model name", "cpu family", "model", "flags", "Features", "CPU part")


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
        at_most: If nothing was tried because the run was too short: its steps, else 0.
    """

    key: Mapping[str, str]
    tuning: Tuning
    plain_ms: float = 0.0
    step_ms: float = 0.0
    trials: Mapping[str, str] = field(default_factory=dict)
    at_most: int = 0

    def suits(self, key: Mapping[str, str]) -> bool:
        """Whether a checkpoint's decision is for this training, whatever batch comes next.

        A resumed training may continue with the last, smaller batch of an epoch.
        """
        return {**self.key, "batch": ""} == {**key, "batch": ""}

    def holds_for(self, steps: int) -> bool:
        """Whether it is for a training of so many steps."""
        return not self.at_most or steps <= self.at_most

    def as_json(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Any) -> Decision:
        """Read the result of :meth:`as_json`.

        Raises:
            ValueError: It has another form.
        """
        try:
            return cls(
                key={"program": "", **{str(n): str(part) for n, part in form["key"].items()}},
                tuning=Tuning.from_json(form["tuning"]),
                plain_ms=float(form["plain_ms"]),
                step_ms=float(form["step_ms"]),
                trials={str(name): str(note) for name, note in form["trials"].items()},
                at_most=int(form["at_most"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a decision: {form!r}") from error

    def store(self) -> None:
        """Keep the decision for later runs; a folder that cannot be written is not an error."""
        others = [one for one in stored_decisions() if one.key != self.key]
        _write([*others, self][-_MOST:], told=was_told())


def stored_decisions() -> list[Decision]:
    """Return the decisions of earlier runs, the oldest first, without those that are broken."""
    found = []
    for form in _read().get("decisions", ()):
        with suppress(ValueError):
            found.append(Decision.from_json(form))
    return found


def stored_decision(key: Mapping[str, str], steps: int) -> tuple[Decision | None, str]:
    """Look for the decision of an earlier run with a key.

    Args:
        key: The key of the training.
        steps: Steps that the training will take.

    Returns:
        The decision; or None, and what has changed since a decision for something similar.
    """
    known = stored_decisions()
    for one in known:
        if one.key == key:
            return (one, "") if one.holds_for(steps) else (None, "the training is longer")
    file = key["program"].rpartition(":")[0]
    same = [one.key for one in known if one.key["program"].rpartition(":")[0] == file]
    nearest = max(reversed(same), key=lambda one: len(one.items() & key.items()), default=None)
    return None, _changes(nearest, key) if nearest is not None else ""


def was_told() -> bool:
    """Whether a run of this project has named the engine ``auto``."""
    return _read().get("told") is True


def remember_told() -> bool:
    """Remember that a run has named the engine ``auto``; return whether that was possible."""
    return _write(stored_decisions(), told=True)


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """``another batch (x float32 32x8, now x float32 64x8)``."""
    names = [name for name, part in now.items() if before.get(name) != part]
    return ", ".join(
        f"another {name}{'' if name in _DIGESTS else f' ({before.get(name)}, now {now[name]})'}"
        for name in names
    )


def _read() -> Mapping[str, Any]:
    form = read_json(project_folder() / _FILE) or {}
    return form if isinstance(form.get("decisions"), list) else {}


def _write(decisions: Sequence[Decision], *, told: bool) -> bool:
    form = {"told": told, "decisions": [one.as_json() for one in decisions]}
    with suppress(OSError):
        path = project_folder() / _FILE
        if path.is_symlink() or path.parent.is_symlink():
            return False  # whoever made the project could let it name any file
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        replace_text(path, json.dumps(form, indent=1) + "\n")
        return True
    return False


def decision_key(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: StepSettings,
    batch: Any,
    options: str = "",
) -> dict[str, str]:
    """Return what a decision depends on: the program, the model, its batches and the machine.

    Args:
        model: Its modules and parameters count.
        optimizer: Its class counts.
        settings: The training function, and the settings that change it.
        batch: Shapes and types of its tensors count.
        options: The options of the engine.
    """
    parameters = list(model.parameters())
    structure = [
        *(f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()),
        *(f"{p.dtype} {tuple(p.shape)}" for p in parameters),
    ]
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    autocast = [f"autocast {settings.autocast}"] if settings.autocast else []
    device = parameters[0].device if parameters else torch.device("cpu")
    return {
        "program": _program(settings.train_fn),
        "model": _digest(structure),
        "optimizer": type(optimizer).__qualname__,
        "settings": f"{options} clip={settings.max_grad_norm} scaler={settings.scaler is not None}",
        "batch": ", ".join(f"{name} {_shape(tensor)}" for name, tensor in named_tensors(batch)),
        "dtype": " ".join([*dtypes, *autocast]),
        "device": hardware_name(device),
        "processor": _digest([processor_facts().get(name, "") for name in _PROCESSOR]),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
    }


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape))}"


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _program(train_fn: Any) -> str:
    """Name the program's main file, with a digest of it and of the training function's file."""
    code = getattr(train_fn, "__code__", None)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    files = [main, code.co_filename if code is not None else None]
    name = getattr(train_fn, "__qualname__", type(train_fn).__qualname__)
    # Code from a prompt or a notebook has no file.
    text = code.co_code.hex() if code is not None else ""
    digest = _digest([name, text, *(_file_digest(file) for file in files if file)])
    root = Path(os.environ.get("FDL_PROJECT_ROOT") or ".").resolve()
    path = Path(main or "").resolve()
    return f"{path.relative_to(root) if path.is_relative_to(root) else path}:{digest}"


@functools.cache
def _file_digest(name: str) -> str:
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return name


def project_folder() -> Path:
    """Return the folder of what belongs to one project: its ``.fdl``, which git ignores.

    Without a project it is :func:`cache_folder`, as with ``FLODL_CACHE_DIR``.
    """
    root = os.environ.get("FDL_PROJECT_ROOT")
    if not root or os.environ.get("FLODL_CACHE_DIR"):
        return cache_folder()
    return Path(root) / ".fdl"
