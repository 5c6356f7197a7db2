"""The kind of command that an entry of ``commands:`` is.

Only the requested command is classified, so a broken command beside it does no harm.
Imported on the warm path.
"""

from __future__ import annotations

from fdl.base.errors import ManifestError
from fdl.manifest.node import origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.node import Node

RUN = "run"
PATH = "path"
PRESET = "preset"

SECTIONS = ("ddp", "training", "output")
"""Manifest sections that become generated flags."""


def classify(command: str, spec: Node, root: str) -> str:
    """The kind of one command: ``RUN``, ``PATH`` or ``PRESET``.

    Args:
        command: The command as typed, for messages: ``fdl sub t``.
        spec: The entry under ``commands:``; a null entry is an empty one.
        root: Directory of the project. Places in messages are relative to it.

    Raises:
        ManifestError: The entry's keys contradict each other.
    """
    _refuse_contradictions(command, spec, root)
    if spec.get("run"):
        return RUN
    if spec.get("path") or spec.get("entry"):
        return PATH
    return PRESET if preset_keys(spec) else PATH


def preset_keys(spec: Node) -> list[str]:
    """The keys that make an entry a preset, in file order."""
    return [
        key
        for key in spec.mapping
        if key in (*SECTIONS, "options", "subcommand", "metrics") and spec.get(key)
    ]


def _refuse_contradictions(command: str, spec: Node, root: str) -> None:
    def refuse(key: str, text: str, hint: str) -> ManifestError:
        place = origin(spec.mapping[key], root)
        return ManifestError(f"{place}: command `{command}`: {text}", hint=hint)

    runs = spec.get("run") is not None
    arguments = "put the arguments into `options` or into the child's `entry`"
    for key, hint in (
        ("docker", "a path command takes `docker:` from its own fdl.yml"),
        ("append", arguments),
        ("args", arguments),
        ("errexit", "it says how a script ends"),
    ):
        if spec.get(key) and not runs:
            raise refuse(key, f"`{key}` needs `run` beside it", hint)
    if spec.get("style") and not spec.get("entry"):
        raise refuse(
            "style", "`style` needs `entry` beside it", "put it beside the `entry` of the manifest"
        )
    kinds = [key for key in ("run", "path", "entry") if spec.get(key)]
    if runs and len(kinds) > 1:
        raise refuse(
            kinds[1],
            f"`run` and `{kinds[1]}` exclude each other",
            "keep `run` for a shell command, `path` for a folder with its own fdl.yml",
        )
    dead = [key for key in preset_keys(spec) if key != "subcommand" or not spec.get("entry")]
    if kinds and dead:
        raise refuse(
            dead[0],
            f"`{dead[0]}` has no effect beside `{kinds[0]}`",
            "give the settings to a preset under a manifest with `entry`",
        )
