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

_TORCH = Parameter(
    "torch",
    shape="optional",
    completer="torch-versions",
    help="Version of torch, when it is not to be the usual one",
)
_SOURCE = Parameter(
    "source",
    shape="optional",
    completer="libtorch-sources",
    help="Where it comes from: `archive` (the official one, as usual), `wheel` (torch's Python "
    "package, through pip), or a local archive, wheel or folder",
)
_GLOBAL = _flag("global", "Use the store of this user, not the project's")
_PATH = Parameter(
    "path",
    type="path",
    shape="optional",
    help="Unpack into this folder and leave the store alone",
)
_VARIANT_ID = _optional("id", "Installed variant, such as precompiled/cu128", completer="variants")
_ARCHS = Parameter(
    "archs", shape="optional", help='GPU architectures, such as "6.1;12.0"; without, your cards\''
)

_LIBTORCH = Builtin(
    "libtorch",
    children=(
        Builtin(
            "install",
            "Install what fits this machine, put it into use, show how to use it",
            parameters=(
                _optional(
                    "variant",
                    "auto, cpu or a CUDA build such as cu128",
                    default="auto",
                    completer="libtorch-names",
                ),
                _TORCH,
                _SOURCE,
                _GLOBAL,
                _DRY_RUN,
            ),
            handler="fdl.commands.libtorch:install",
        ),
        Builtin(
            "download",
            "The same with the choice spelled out",
            parameters=(
                _flag("cpu", "The CPU variant, whatever cards there are"),
                Parameter(
                    "cuda",
                    shape="optional",
                    completer="cuda-versions",
                    help="The variant of this CUDA version: 12.6, 12.8 …",
                ),
                _TORCH,
                _SOURCE,
                _PATH,
                _flag("no-activate", "Install only; what is in use stays in use"),
                _GLOBAL,
                _DRY_RUN,
            ),
            handler="fdl.commands.libtorch:download",
        ),
        Builtin(
            "build",
            "Build from source for exactly your GPU architectures; takes hours, can be resumed",
            parameters=(
                _ARCHS,
                Parameter("jobs", type="int", default=6, help="Files to compile at the same time"),
                _flag("docker", "Build in a container"),
                _flag("native", "Build with the tools of this machine"),
                _TORCH,
                Parameter(
                    "repository",
                    shape="optional",
                    help="Git repository of the sources, when it is not PyTorch's own",
                ),
                _GLOBAL,
                _DRY_RUN,
            ),
            handler="fdl.commands.libtorch_build:build",
        ),
        Builtin(
            "list",
            "List the installed variants",
            parameters=(_JSON, _GLOBAL),
            handler="fdl.commands.libtorch:list_",
        ),
        Builtin(
            "info",
            "Describe the variant in use",
            parameters=(_JSON, _GLOBAL),
            handler="fdl.commands.libtorch:info",
        ),
        Builtin(
            "activate",
            "Put an installed variant into use",
            parameters=(_VARIANT_ID, _GLOBAL, _DRY_RUN),
            handler="fdl.commands.libtorch:activate",
        ),
        Builtin(
            "remove",
            "Delete an installed variant",
            parameters=(_VARIANT_ID, _GLOBAL, _DRY_RUN),
            handler="fdl.commands.libtorch:remove",
        ),
        Builtin(
            "env",
            "Print what a shell, CMake, Cargo or direnv needs to use a variant",
            parameters=(
                _VARIANT_ID,
                Parameter(
                    "format",
                    choices=("shell", "cmake", "cargo", "json", "direnv"),
                    default="shell",
                    help="What to print it for",
                ),
                _GLOBAL,
            ),
            handler="fdl.commands.libtorch:env",
        ),
        Builtin(
            "exec",
            "Run one program with the variables of the variant in use",
            parameters=(
                Parameter(
                    "command",
                    kind="arg",
                    shape="list",
                    variadic=True,
                    help="The program and its arguments, behind `--`",
                ),
                _GLOBAL,
                _DRY_RUN,
            ),
            handler="fdl.commands.libtorch:exec_",
        ),
        Builtin(
            "check",
            "Read from the installed libraries which cards and systems they run on",
            parameters=(
                _optional(
                    "target", "Installed variant or a folder with lib/", completer="variants"
                ),
                Parameter(
                    "archs",
                    shape="optional",
                    help='Cards to judge for, such as "6.1;12.0"; without, those of this machine',
                ),
                _JSON,
                _GLOBAL,
            ),
            handler="fdl.commands.libtorch_check:check",
        ),
    ),
)

_SKILL = Builtin(
    "skill",
    children=(
        Builtin(
            "list", "List the skills and where they can go", handler="fdl.commands.skill:list_"
        ),
        Builtin(
            "install",
            "Write a skill where the coding assistant of this folder finds it",
            parameters=(
                Parameter(
                    "tool",
                    shape="optional",
                    help="claude or cursor; without, those that are found here",
                ),
                Parameter("skill", default="port", help="Which skill"),
                _DRY_RUN,
            ),
            handler="fdl.commands.skill:install",
        ),
    ),
)

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

_RUN = _optional(
    "run",
    "`last` (the usual one), `best:METRIC`, a name or its beginning, or a path",
    completer="runs",
)
_PLACES = _optional(
    "path",
    "Runs or folders of runs, instead of every `output.dir` of the manifest",
    type="path",
    variadic=True,
)
_PLACES.shape = "list"
_STATE = Parameter(
    "state",
    shape="optional",
    completer="run-states",
    help="Only runs in this state: running, complete, interrupted, diverged, failed or dead",
)

_RUNS = Builtin(
    "runs",
    children=(
        Builtin(
            "list",
            "List the runs, newest first",
            parameters=(
                _PLACES,
                _STATE,
                Parameter(
                    "best",
                    shape="optional",
                    completer="metrics",
                    help="Best value of this metric first; `margin:max` says where better lies",
                ),
                _JSON,
            ),
            handler="fdl.commands.runs:list_",
            notes="A run is dead when it calls itself running and its process is gone.",
        ),
        Builtin(
            "show",
            "Show one run: metrics, configuration with its origins, environment, files",
            parameters=(_RUN, _JSON),
            handler="fdl.commands.runs:show",
        ),
        Builtin(
            "compare",
            "Show what tells runs apart; a star marks the best value of each metric",
            parameters=(
                Parameter(
                    "runs",
                    kind="arg",
                    shape="list",
                    variadic=True,
                    completer="runs",
                    help="Two or more runs, named as in `fdl runs show`",
                ),
                _JSON,
            ),
            handler="fdl.commands.runs:compare",
        ),
        Builtin(
            "open",
            "Open a run's report in the browser; without a display, print its path",
            parameters=(_RUN, _flag("print", "Print the path and open nothing")),
            handler="fdl.commands.runs:open_",
        ),
        Builtin(
            "tail",
            "Print the end of a run's log",
            parameters=(
                _RUN,
                _flag("follow", "Go on with every new line until the run has ended", "f"),
                Parameter("lines", type="int", default=10, short="l", help="Lines to begin with"),
                _flag("metrics", "The table of metrics instead of the log"),
            ),
            handler="fdl.commands.runs:tail",
            notes="With --follow the exit code is 0 when the run completes, else 1.",
        ),
        Builtin(
            "clean",
            "List the runs that would go, with their sizes, and remove them when you agree",
            parameters=(
                _PLACES,
                Parameter(
                    "keep",
                    type="int",
                    shape="optional",
                    help="The newest N of each folder stay",
                ),
                Parameter(
                    "older-than",
                    shape="optional",
                    help="Only runs that began longer ago: 30d, 12h, 2w",
                ),
                _STATE,
                _flag("yes", "Remove without asking", "y"),
                _DRY_RUN,
            ),
            handler="fdl.commands.runs:clean",
            notes="All that is given has to apply. A run that is running stays, and so does what "
            "a link leads to.",
        ),
    ),
)

REGISTRY = {
    builtin.name: builtin
    for builtin in (
        Builtin(
            "setup",
            parameters=(
                _flag("non-interactive", "Ask nothing: every question takes its default", "y"),
                _flag("force", "Install libtorch afresh, also where a CUDA variant is in use"),
                _DRY_RUN,
            ),
            handler="fdl.commands.setup:setup",
        ),
        _LIBTORCH,
        Builtin(
            "init",
            parameters=(
                Parameter("name", kind="arg", help="Folder to create; also the project's name"),
                _flag("docker", "Containers that bring torch along"),
                _flag("native", "Python and torch of this machine, no containers"),
                _DRY_RUN,
            ),
            handler="fdl.commands.init:init",
            notes="Without --docker and --native, you are asked; where nobody can answer, it is "
            "containers that use the libtorch of the project.",
        ),
        Builtin(
            "diagnose",
            parameters=(
                _flag("check", "Exit with 1 when something needs attention"),
                _JSON,
            ),
            handler="fdl.commands.diagnose:diagnose",
        ),
        Builtin(
            "install",
            parameters=(
                _flag("check", "Only compare the installed version with the newest"),
                _flag("dev", "Link to the fdl that is running, for working on fdl itself"),
                _DRY_RUN,
            ),
            handler="fdl.commands.install:install",
        ),
        _SKILL,
        Builtin(
            "api-ref",
            parameters=(
                Parameter(
                    "path",
                    type="path",
                    shape="optional",
                    help="A checkout or an installed package to read, instead of the nearest",
                ),
                _JSON,
            ),
            handler="fdl.commands.api_ref:api_ref",
        ),
        Builtin("list", parameters=(_JSON,), handler="fdl.commands.list:list_"),
        _RUNS,
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
