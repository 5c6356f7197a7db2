"""The command that continues a training which was interrupted."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flodl.launch.launcher import detect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flodl.train.run_directory import RunDirectory

PLAN_VARIABLE = "FDL_PLAN"
"""``fdl`` passes the command that was typed to the program in this variable."""

_OPTION = "--resume"


def add_hint(stop: BaseException, run: RunDirectory | None, checkpoint: Path | None) -> None:
    """Add the command that continues the training to the exception that ends it.

    Without a checkpoint, or if the program has no option ``resume``, nothing is added.

    Args:
        stop: The exception.
        run: The run directory, with the configuration of the program.
        checkpoint: The checkpoint that ``--resume last`` finds.
    """
    if run is None or checkpoint is None or "resume" not in run.config:
        return
    stop.add_note(f"continue with: {_command(os.environ)}")


def _command(environ: Mapping[str, str]) -> str:
    words = _typed_for_fdl(environ)
    if words is None and detect(environ) is not None:
        return f"the same command and {_OPTION} last"
    return shlex.join([*_without_resume(words or _typed_for_python()), _OPTION, "last"])


def _typed_for_fdl(environ: Mapping[str, str]) -> list[str] | None:
    """Return the command line of ``fdl`` that started this program; None if it did not."""
    try:
        plan: Any = json.loads(environ.get(PLAN_VARIABLE, ""))
        if plan["kind"] != "entry":  # a script decides itself what its words mean
            return None
        argv, typed = plan["argv"], int(plan["typed"])
        chosen = ["--env", plan["env"]] if plan.get("env") else []
        words = [*chosen, *plan["command"], *plan.get("kept", []), *argv[len(argv) - typed :]]
        return ["fdl", *map(str, words)]
    except (ValueError, KeyError, TypeError):
        return None


def _typed_for_python() -> list[str]:
    interpreter, *words = sys.orig_argv
    return [Path(interpreter).name, *words]


def _without_resume(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == _OPTION:
            next(rest, None)
        elif not word.startswith(f"{_OPTION}="):
            kept.append(word)
    return kept
