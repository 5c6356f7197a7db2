"""The recorded configuration of a run, and the variables of its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fdl.runs.run import Run


class Setting(NamedTuple):
    """One recorded value of a run, without secrets, and its origin."""

    value: object
    origin: str


def settings(run: Run) -> dict[str, Setting]:
    """The run's configuration: name of the program's argument -> value, without its secrets.

    Raises:
        FdlError: Its ``config.json`` cannot be read.
    """
    from fdl.runs.resolved import recorded

    return {
        name: Setting(field.value, field.top.place or field.top.source)
        for name, field in recorded(str(run.path)).items()
    }


def variables(run: Run) -> dict[str, Setting] | None:
    """The variables that the manifest gave a run: name -> value, without its secrets.

    None if the run was recorded without them.
    """
    found = run.record.get("variables")
    if not isinstance(found, dict):
        return None
    return {
        str(name): Setting(str(one.get("value", "")), str(one.get("origin", "")))
        for name, one in found.items()
        if isinstance(one, dict)
    }
