"""What code a training runs, for ranks that join it from another start of the program."""

from __future__ import annotations

import hashlib
import inspect
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flodl.train.plan import TrainingPlan


def code_facts(plan: TrainingPlan) -> dict[str, object]:
    """Return the versions of the packages, and a digest of the files of the program, by name."""
    functions = {
        "train_fn": plan.train_fn,
        "the model": plan.model_factory,
        "the optimizer": plan.optimizer_factory,
    }
    packages = ("flodl", "torch", "numpy")
    found: dict[str, object] = {
        f"the version of {name}": metadata.version(name) for name in packages
    }
    return found | {f"the code of {name}": _digest(one) for name, one in functions.items()}


def _digest(function: object) -> str:
    """Return a digest of the file of a function; empty if it has none."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))  # type: ignore[arg-type]
        content = Path(file).read_bytes() if file is not None else b""
    except (TypeError, OSError):
        return ""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
