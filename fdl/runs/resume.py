"""The command that continues a run which has stopped, from its record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.run_record import RESUME, without_resume
from fdl.base.secrets import REDACTED
from fdl.base.shell_words import join
from fdl.runs.find import shortened

if TYPE_CHECKING:
    from fdl.runs.run import Run


def how_to_resume(run: Run, project: str) -> str:
    """The command line that continues a run; the option alone if its record does not say enough.

    Args:
        run: A run that can be continued.
        project: The root of the project around the working directory; empty if there is none.
    """
    typed = run.record.get("typed")
    words = [str(word) for word in typed] if isinstance(typed, list) else []
    by_fdl = words[:1] == ["fdl"]
    folder = run.record.get("project_root" if by_fdl else "cwd")
    told = isinstance(folder, str) and not any(REDACTED in word for word in words)
    if not words or not told or "resume" not in run.settings:
        return f"{RESUME} {shortened(run.path)}"
    home, path = Path(str(folder)).resolve(), run.path.resolve()
    place = path.relative_to(home) if path.is_relative_to(home) else path
    line = join([*without_resume(words), RESUME, str(place)])
    here = project if by_fdl else "."
    return line if here and Path(here).resolve() == home else f"cd {join([str(home)])} && {line}"
