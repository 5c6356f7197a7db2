"""The shell text of a ``run:`` command, and the words of a program's command line.

Imported on the warm path. ``shlex`` would also load ``re``, so quoting is done here.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-")


def program_words() -> list[str]:
    """The words behind the program on its command line.

    In a notebook there are none. Those of its kernel name a file of Jupyter.
    """
    kernel = sys.modules.get("ipykernel.kernelapp")
    words = sys.argv[1:]
    if kernel is not None and kernel.IPKernelApp.initialized():
        return [] if words == kernel.IPKernelApp.instance().argv else words
    return words


def quote(token: str) -> str:
    """One POSIX shell word for ``token``; the same result as ``shlex.quote``."""
    if token and _SAFE.issuperset(token):
        return token
    return "'" + token.replace("'", "'\"'\"'") + "'"


def quote_cmd(token: str) -> str:
    """One word for ``cmd.exe``, quoted as Microsoft's C runtime parses it."""
    from subprocess import list2cmdline

    return list2cmdline([token])


def join(tokens: Iterable[str]) -> str:
    """A POSIX shell command line that gives exactly ``tokens``."""
    return " ".join(map(quote, tokens))


def compose(
    run: str,
    append: str | None,
    user: Sequence[str],
    quoted: Callable[[str], str] = quote,
) -> str:
    """Combine a script, its fixed arguments and the user's arguments.

    Both argument sources may contain a ``--``. The part before it goes to the tool. The part
    after it goes behind a ``--`` to the program that the tool runs. On each side, user arguments
    follow the fixed ones. So they override in a parser where the last one wins.

    Args:
        run: The script, verbatim.
        append: Fixed arguments in shell syntax, inserted verbatim; None or blank for none.
        user: The user's arguments after fdl's own ``--``, one token each.
        quoted: Turns a user token into one word of the target shell.
    """
    before, separator, after = _split(append) if append else ("", False, "")
    cut = user.index("--") if "--" in user else len(user)
    tool = [quoted(token) for token in user[:cut]]
    inner = [quoted(token) for token in user[cut + 1 :]]
    words = [before, *tool]
    if separator or inner:
        words += ["--", after, *inner]
    arguments = " ".join(word for word in words if word)
    # A block scalar ends in a newline, which would make the arguments a separate command.
    return f"{run.rstrip()} {arguments}" if arguments else run


def _split(append: str) -> tuple[str, bool, str]:
    """Split ``append`` at its first ``--`` between blanks: before, whether there is one, after."""
    start = append.find("--")
    while start >= 0:
        end = start + 2
        opens = start == 0 or append[start - 1].isspace()
        if opens and (end == len(append) or append[end].isspace()):
            return append[:start].strip(), True, append[end:].strip()
        start = append.find("--", start + 1)
    return append.strip(), False, ""
