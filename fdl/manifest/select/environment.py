"""Choosing the environment of a call: from ``--env``, ``FDL_ENV``, or the first word.

Imported on the warm path: only ``os`` at module top.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH119
from __future__ import annotations

import os

from fdl.base.errors import FdlError, SelectionError
from fdl.manifest.builtins import JOINING, YIELDING
from fdl.manifest.layers import LOCAL, environments, overlay_file
from fdl.manifest.node import relative
from fdl.manifest.select.project import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fdl.cli.prepass import Invocation
    from fdl.manifest.discover import Found
    from fdl.manifest.select.project import Project


def explicit(flag: str | None, variables: Mapping[str, str]) -> tuple[str, str] | None:
    """The environment given by ``--env``, else by ``FDL_ENV``, and which of the two gave it."""
    if flag is not None:
        return flag, f"--env {flag}"
    variable = variables.get("FDL_ENV")
    return (variable, f"FDL_ENV={variable}") if variable else None


def require_overlay(found: Found | None, env: str, asked: str) -> None:
    """Refuse environments without an overlay in the project, and in the folders below it.

    Args:
        found: The project's manifest.
        env: The environments, joined by commas.
        asked: How the user gave them: ``--env ci,cloud``.

    Raises:
        SelectionError: There is no manifest, one of them has no overlay or comes twice. The message
            lists the existing environments.
    """
    names = env.split(",")
    for place, name in enumerate(names):
        if not name or name in names[:place]:
            problem = f"names `{name}` twice" if name else "has an empty name"
            raise SelectionError(
                f"`{asked}` {problem}", hint=f"--env {','.join(filter(None, dict.fromkeys(names)))}"
            )
        if name != LOCAL:
            _require_one(found, name, asked)


def _require_one(found: Found | None, env: str, asked: str) -> None:
    remedy = f"unset FDL_ENV, or create fdl.{env}.yml" if asked.startswith("FDL_ENV") else ""
    if found is None:
        raise SelectionError(
            f"`{asked}`: there is no fdl.yml here or above, so no fdl.{env}.yml beside it",
            hint=remedy or "go to the project's folder",
        )
    if overlay_file(found.directory, env) is None:
        nested = Project(found).nested()
        if env in nested:
            return
        known = environments(found.directory)
        known += [
            f"{name} ({relative(places[0].overlays[name], found.directory)})"
            for name, places in nested.items()
            if name not in known
        ]
        listed = f"environments here: {', '.join(known)}" if known else "no environments here"
        raise SelectionError(
            f"`{asked}`: there is no fdl.{env}.yml in {found.directory} ({listed})",
            hint=remedy or (f"--env {known[0].split()[0]}" if known else f"create fdl.{env}.yml"),
        )


def meaning(
    word: str, project: Project, built_in: Collection[str] = (), *, cached: bool = False
) -> tuple[bool, bool]:
    """Whether a word names an environment, and whether it names a command. This is the one rule.

    It names an environment if an overlay of it stands beside the project's manifest. One that
    stands only in the folder of a command counts if no command has the name.

    Args:
        word: The word.
        project: The project without an environment.
        built_in: Names of built-in commands that count as commands.
        cached: Whether to read no YAML of folders below the project.

    Raises:
        ManifestError: The project's manifest cannot be read.
    """
    overlay = overlay_file(project.directory, word)
    if word in built_in:
        return overlay is not None, True
    is_command = word in project.names()
    return bool(overlay or (not is_command and word in project.nested(cached=cached))), is_command


def is_first_word(word: str, project: Project, built_in: Collection[str]) -> bool:
    """Whether the first word of a call selects an environment of the project.

    Raises:
        SelectionError: The word also names a command.
    """
    if word.startswith("-"):
        return False
    names_one, is_command = meaning(word, project, built_in)
    if names_one and is_command and word != LOCAL:
        overlay = os.path.basename(overlay_file(project.directory, word) or "")
        kind = "a built-in command" if word in built_in else "a command of the manifest"
        raise SelectionError(
            f"`{word}` is ambiguous: {kind} and the environment of {overlay}",
            hint=f"rename one of them; until then `--env {word}` selects the environment",
        )
    return names_one and not is_command


def steps_back(name: str, project: Project | None, following: Sequence[str] = ()) -> bool:
    """Whether a built-in command leaves its name to a command of the project.

    A manifest that cannot be read has no command. ``following`` are the words after the name.
    """
    if name not in YIELDING or project is None:
        return False
    try:
        defined = name in project.names()
    except FdlError:
        return False
    if not defined or name not in JOINING:
        return defined
    from fdl.manifest.select.bundle import leaves_to_project

    try:
        return leaves_to_project(name, project.found, following)
    except FdlError:
        # The project's way to the command tells what is wrong with it.
        return True


def active_environment(invocation: Invocation, found: Found | None) -> str | None:
    """The environment this call reads manifests for, whichever way it was selected.

    Raises:
        SelectionError: It has no overlay beside the project's manifest.
    """
    if invocation.first_word_env is not None:
        return invocation.first_word_env
    asked = explicit(invocation.env, os.environ)
    if asked is None:
        return None
    require_overlay(found, *asked)
    return asked[0]
