"""What each built-in command takes, as data for parsing, help, completion and the reference."""

from __future__ import annotations

from fdl.args.parameter import Parameter
from fdl.commands import BUILTINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SHELLS = ("bash", "zsh", "fish")


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
    """

    __slots__ = ("children", "handler", "help", "name", "notes", "parameters")

    def __init__(
        self,
        name: str,
        help: str = "",
        *,
        parameters: Sequence[Parameter] = (),
        children: Sequence[Builtin] = (),
        handler: str = "",
        notes: str = "",
    ) -> None:
        self.name = name
        self.help = help or BUILTINS.get(name, "")
        self.parameters = tuple(parameters)
        self.children = {child.name: child for child in children}
        self.handler = handler
        self.notes = notes

    def takes(self, name: str) -> bool:
        """Whether it has an option of this name."""
        return any(one.name == name for one in self.parameters)


def _flag(name: str, help: str, short: str | None = None) -> Parameter:
    return Parameter(name, type="bool", shape="flag", short=short, help=help)


def _optional(name: str, help: str, **more: object) -> Parameter:
    return Parameter(name, kind="arg", shape="optional", help=help, **more)  # type: ignore[arg-type]


_DRY_RUN = _flag("dry-run", "Show what would happen and change nothing", "n")
_JSON = _flag("json", "Print one JSON document")
_COMMAND = Parameter(
    "command",
    shape="optional",
    completer="command-line",
    help='A command line without `fdl`, such as "train quick": look at what it would run with',
)
_CMD = _optional(
    "cmd",
    "Only this command, as it is typed: `train`, `tools report`",
    variadic=True,
    completer="programs",
)
_CMD.shape = "list"

_CONFIG = Builtin(
    "config",
    children=(
        Builtin(
            "show",
            "Print the merged manifest as YAML with the file and line of every value",
            parameters=(
                _optional(
                    "env",
                    "Environment to show, instead of the active one",
                    completer="environments",
                ),
                _COMMAND,
                _JSON,
            ),
            handler="fdl.commands.config:show",
        ),
        Builtin(
            "set",
            "Change one value where it takes effect; comments and layout stay as they are",
            parameters=(
                Parameter(
                    "path",
                    kind="arg",
                    completer="fields",
                    help="Dotted path: `training.lr`, `commands.t.run`",
                ),
                Parameter("value", kind="arg", help="The new value, as YAML: `0.01`, `[a, b]`"),
                Parameter(
                    "where",
                    shape="optional",
                    completer="layers",
                    help="Layer to write to: a file like `fdl.ci.yml`, an environment, or `base`",
                ),
                _DRY_RUN,
            ),
            handler="fdl.commands.config:set_",
        ),
    ),
)

_SCHEMA = Builtin(
    "schema",
    children=(
        Builtin(
            "list",
            "List the cached schemas of programs and whether they are fresh",
            parameters=(_JSON,),
            handler="fdl.commands.schema:list_",
        ),
        Builtin(
            "clear",
            "Delete cached schemas",
            parameters=(_CMD, _DRY_RUN),
            handler="fdl.commands.schema:clear",
        ),
        Builtin(
            "refresh",
            "Ask programs for their schemas again, and those never asked for the first time",
            parameters=(_CMD, _DRY_RUN),
            handler="fdl.commands.schema:refresh",
        ),
        Builtin(
            "manifest",
            "Print the JSON Schema of fdl.yml, for editors",
            handler="fdl.commands.schema:manifest",
        ),
    ),
)

REGISTRY = {
    builtin.name: builtin
    for builtin in (
        Builtin(
            "init",
            parameters=(
                Parameter("name", kind="arg", help="Folder to create; also the project's name"),
                _flag("native", "Python and torch of this machine, no containers"),
                _DRY_RUN,
            ),
            handler="fdl.commands.init:init",
        ),
        Builtin("list", parameters=(_JSON,), handler="fdl.commands.list:list_"),
        Builtin(
            "why",
            parameters=(
                Parameter(
                    "field",
                    kind="arg",
                    completer="fields",
                    help="`training.lr`, `commands.test.run`, `env.HF_HOME`, or "
                    "`RUN_OR_CHECKPOINT:training.lr`",
                ),
                _COMMAND,
                _JSON,
            ),
            handler="fdl.commands.why:why",
        ),
        _CONFIG,
        _SCHEMA,
        Builtin(
            "completions",
            parameters=(
                _optional("shell", "Shell to complete in", choices=SHELLS, default="bash"),
            ),
            handler="fdl.commands.completions:completions",
        ),
        Builtin(
            "autocomplete",
            parameters=(_DRY_RUN,),
            handler="fdl.commands.completions:autocomplete",
            notes="The shell is taken from $SHELL; running it again replaces what it wrote before.",
        ),
    )
}
"""The built-in commands of the help page, in its order."""
