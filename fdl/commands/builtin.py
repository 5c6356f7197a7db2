"""One built-in command, as data, and the arguments that several of them share."""

from __future__ import annotations

from fdl.args.parameter import Parameter
from fdl.commands import BUILTINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Builtin:
    """One built-in command, or a group of them.

    Attributes:
        name: The word that names it.
        help: One line, without a full stop.
        parameters: What it takes, in the order of its help page. A ``completer`` here is no shell
            snippet but the name of a source in :mod:`fdl.complete.sources`.
        children: The commands of a group; a group has no handler.
        handler: ``module:function``; the function takes a :class:`~fdl.app.Call` and returns the
            exit code.
        notes: A paragraph at the end of its help page.
        open: Whether words that it does not know belong to what it starts; they are the value of
            its last argument.
        wraps: Whether it is a program with presets, help pages and dry runs like a command's.
    """

    __slots__ = (
        "children", "handler", "help", "name", "notes", "open", "parameters", "wraps",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        help: str = "",
        *,
        parameters: Sequence[Parameter] = (),
        children: Sequence[Builtin] = (),
        handler: str = "",
        notes: str = "",
        open: bool = False,
        wraps: bool = False,
    ) -> None:
        self.name = name
        self.help = help or BUILTINS.get(name, "")
        self.parameters = tuple(parameters)
        self.children = {child.name: child for child in children}
        self.handler = handler
        self.notes = notes
        self.open = open
        self.wraps = wraps

    def takes(self, name: str) -> bool:
        """Whether it has an option of this name."""
        return any(one.name == name for one in self.parameters)


def flag(name: str, help: str, short: str | None = None) -> Parameter:
    """An option that takes no value."""
    return Parameter(name, type="bool", shape="flag", short=short, help=help)


def optional(name: str, help: str, **more: object) -> Parameter:
    """An argument that may be left out."""
    return Parameter(name, kind="arg", shape="optional", help=help, **more)  # type: ignore[arg-type]


DRY_RUN = flag("dry-run", "Show what would happen and change nothing", "n")
JSON = flag("json", "Print one JSON document")
