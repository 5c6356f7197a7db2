"""The shell text of a ``run:`` command, and how a shell runs it.

A script of one command line is a plain ``sh -c``. One of several lines ends at the first that
fails. One that begins with ``#!`` is run by the program that its first line names.

Imported on the warm path.
"""

from __future__ import annotations

from fdl.base.shell_words import compose, join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.node import Node

# Interpreters need a file with a name. The shell makes one, so that it also exists in a container.
# The folder is private: Python looks for modules beside the script. The shell outlives a stop
# signal, so the file stays until the program has ended.
_IN_A_FILE = """\
_fdl_script=$(mktemp -d) || exit
trap 'rm -rf "$_fdl_script"' EXIT
trap : HUP INT TERM
cat >"$_fdl_script/{name}" <<'{end}'
{text}
{end}
{program} "$_fdl_script/{name}" "$@\""""
# The name stands in a folder, and between quotes.
_NOT_IN_A_NAME = str.maketrans(dict.fromkeys('/"$`\\', "_"))


def stops_at_failures(script: str, errexit: Node | None) -> bool:
    """Whether the first line that fails ends a script.

    Args:
        script: The text of ``run``.
        errexit: What the manifest says; None for the default, which is true for several lines.
    """
    if script.startswith("#!"):
        return False
    if errexit is not None:
        return errexit.value is True
    lines = [line for line in map(str.strip, script.splitlines()) if line and line[0] != "#"]
    return len(lines) > 1


def shell_text(script: str, append: str | None, user: Sequence[str], name: str) -> str:
    """The text that ``sh`` runs: the script with its arguments.

    Args:
        script: The text of ``run``.
        append: Fixed arguments in shell syntax, or None.
        user: The arguments after fdl's own ``--``.
        name: The command, after which the file of an interpreter is named.
    """
    # As the kernel reads it: everything after the program's path is one argument.
    first = script[2:].partition("\n")[0].strip() if script.startswith("#!") else ""
    if not first:
        return compose(script, append, user)
    end = "FDL_SCRIPT"
    while f"\n{end}\n" in f"\n{script}\n":
        end += "_"
    inside = _IN_A_FILE.format(
        name=name.translate(_NOT_IN_A_NAME),
        end=end,
        text=script.removesuffix("\n"),
        program=join(first.split(maxsplit=1)),
    )
    return compose(inside, append, user)
