"""Decide what ``fdl add`` adds: by its flags, else by the user's answers."""

from __future__ import annotations

from dataclasses import dataclass

from fdl import terminal
from fdl.errors import UsageError

_MENU = """\
What is to be added?
  1  playground: a folder flodl-hf/ with models to try
  2  install: `flodl.hf` among what this project demands
  3  both
  4  nothing
Choice [1]: """


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts to add.

    Attributes:
        playground: The folder with models to try.
        install: The extra in the project's requirements.
    """

    playground: bool
    install: bool


_ANSWERS = {
    "1": Parts(playground=True, install=False),
    "2": Parts(playground=False, install=True),
    "3": Parts(playground=True, install=True),
}
_NOTHING = "4"


def choose(*, playground: bool, install: bool, yes: bool) -> Parts | None:
    """Choose the parts to add; None if the user wants none.

    Args:
        playground: Whether that flag was given.
        install: Whether that flag was given.
        yes: Whether questions are answered automatically, with the first choice.

    Raises:
        UsageError: Neither flag was given, and no user can be asked.
    """
    if playground or install:
        return Parts(playground, install)
    if yes:
        return _ANSWERS["1"]
    if not terminal.may_ask():
        raise UsageError(
            "say what to add: `--playground`, `--install`, or both",
            hint="fdl add flodl-hf --playground",
        )
    while True:
        said = terminal.ask(_MENU)
        if said is None or said == _NOTHING:
            return None
        if (said or "1") in _ANSWERS:
            return _ANSWERS[said or "1"]
