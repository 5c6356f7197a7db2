"""What each built-in command takes, as data for parsing, help, completion and the reference."""

from __future__ import annotations

from fdl.args.parameter import Parameter
from fdl.commands.builtin import DRY_RUN, JSON, Builtin, flag, optional
from fdl.commands.registry_libtorch import LIBTORCH

__all__ = ["REGISTRY", "SHELLS", "Builtin"]

SHELLS = ("bash", "zsh", "fish")

_COMMAND = Parameter(
    "command",
    shape="optional",
    completer="command-line",
    help='A command line without `fdl`, such as "train quick": look at what it would run with',
)
_CMD = optional(
    "cmd",
    "Only this command, as it is typed: `train`, `tools report`",
    variadic=True,
    completer="programs",
)
_CMD.shape = "list"

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
                DRY_RUN,
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
                optional(
                    "env",
                    "Environment to show, instead of the active one",
                    completer="environments",
                ),
                _COMMAND,
                JSON,
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
                DRY_RUN,
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
            parameters=(JSON,),
            handler="fdl.commands.schema:list_",
        ),
        Builtin(
            "clear",
            "Delete cached schemas",
            parameters=(_CMD, DRY_RUN),
            handler="fdl.commands.schema:clear",
        ),
        Builtin(
            "refresh",
            "Ask programs for their schemas again, and those never asked for the first time",
            parameters=(_CMD, DRY_RUN),
            handler="fdl.commands.schema:refresh",
        ),
        Builtin(
            "manifest",
            "Print the JSON Schema of fdl.yml, for editors",
            handler="fdl.commands.schema:manifest",
        ),
    ),
)

_RUN = optional(
    "run",
    "`last` (the usual one), `best:METRIC`, a name or its beginning, or a path",
    completer="runs",
)
_PLACES = optional(
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
                JSON,
            ),
            handler="fdl.commands.runs:list_",
            notes="A run is dead when it calls itself running and its process is gone.",
        ),
        Builtin(
            "show",
            "Show one run: metrics, configuration with its origins, environment, files",
            parameters=(_RUN, JSON),
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
                JSON,
            ),
            handler="fdl.commands.runs:compare",
        ),
        Builtin(
            "open",
            "Open a run's report in the browser; without a display, print its path",
            parameters=(_RUN, flag("print", "Print the path and open nothing")),
            handler="fdl.commands.runs:open_",
        ),
        Builtin(
            "tail",
            "Print the end of a run's log",
            parameters=(
                _RUN,
                flag("follow", "Go on with every new line until the run has ended", "f"),
                Parameter("lines", type="int", default=10, short="l", help="Lines to begin with"),
                flag("metrics", "The table of metrics instead of the log"),
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
                flag("yes", "Remove without asking", "y"),
                DRY_RUN,
            ),
            handler="fdl.commands.runs:clean",
            notes="All that is given has to apply. A run that is running stays, and so does what "
            "a link leads to.",
        ),
    ),
)

_PLANNED = Parameter(
    "command",
    kind="arg",
    shape="list",
    variadic=True,
    help="A command with its arguments, as it is typed: `train quick --ranks 2`",
)
_BENCH_ARGUMENTS = Parameter(
    "arguments",
    kind="arg",
    shape="list",
    variadic=True,
    help="A preset, and flags of the bench",
)
_HF_ARGUMENTS = Parameter(
    "arguments",
    kind="arg",
    shape="list",
    variadic=True,
    help="A command with its arguments; without, the commands are listed",
)

_PLAN = Builtin(
    "plan",
    parameters=(
        _PLANNED,
        Parameter(
            "simulate",
            type="float",
            shape="list",
            help="Predict the throughput of every mode for ranks that take so many milliseconds "
            "for a batch: 40,100",
        ),
        Parameter(
            "sync-ms",
            type="float",
            shape="optional",
            help="With --simulate: milliseconds that averaging takes",
        ),
        Parameter(
            "batches",
            type="int",
            shape="optional",
            help="With --simulate: batches of an epoch, when the manifest is not to say",
        ),
        Parameter(
            "epochs",
            type="int",
            shape="optional",
            help="With --simulate: epochs, when the manifest is not to say",
        ),
        JSON,
    ),
    handler="fdl.commands.plan:plan",
    open=True,
    notes="Nothing is started but, with --simulate, the prediction. What follows `--` goes to the "
    "command as it stands.",
)

REGISTRY = {
    builtin.name: builtin
    for builtin in (
        Builtin(
            "setup",
            parameters=(
                flag("non-interactive", "Ask nothing: every question takes its default", "y"),
                flag("force", "Install libtorch afresh, also where a CUDA variant is in use"),
                DRY_RUN,
            ),
            handler="fdl.commands.setup:setup",
        ),
        LIBTORCH,
        Builtin(
            "init",
            parameters=(
                Parameter("name", kind="arg", help="Folder to create; also the project's name"),
                flag("docker", "Containers that bring torch along"),
                flag("native", "Python and torch of this machine, no containers"),
                flag("with-hf", "With a playground for Hugging Face models, as by `fdl add`"),
                DRY_RUN,
            ),
            handler="fdl.commands.init:init",
            notes="Without --docker and --native, you are asked; where nobody can answer, it is "
            "containers that use the libtorch of the project.",
        ),
        Builtin(
            "add",
            parameters=(
                Parameter(
                    "target",
                    kind="arg",
                    choices=("flodl-hf", "hf"),
                    help="What to add; both names mean the same",
                ),
                flag("playground", "A folder flodl-hf/ with models to try, and a command for it"),
                flag("install", "The extra `flodl[hf]` among what the project demands"),
                Parameter(
                    "flavor",
                    shape="optional",
                    choices=("full", "vision", "offline"),
                    help="What --install demands: everything; no tokenizers; no network either",
                ),
                DRY_RUN,
            ),
            handler="fdl.commands.add:add",
            notes="Without --playground and --install, you are asked. The version is the one that "
            "the project uses; a range becomes the locked or installed version.",
        ),
        Builtin(
            "diagnose",
            parameters=(
                flag("check", "Exit with 1 when something needs attention"),
                JSON,
            ),
            handler="fdl.commands.diagnose:diagnose",
        ),
        Builtin(
            "install",
            parameters=(
                flag("check", "Only compare the installed version with the newest"),
                flag("dev", "Link to the fdl that is running, for working on fdl itself"),
                DRY_RUN,
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
                JSON,
            ),
            handler="fdl.commands.api_ref:api_ref",
        ),
        Builtin("list", parameters=(JSON,), handler="fdl.commands.list:list_"),
        _RUNS,
        Builtin(
            "verify-run",
            parameters=(_RUN, JSON, DRY_RUN),
            handler="fdl.commands.verify_run:verify_run",
            notes="The exit code is 0 where it is proved, 1 where it is not, and 2 where the run "
            "has no record to read.",
        ),
        _PLAN,
        Builtin(
            "ddp-bench",
            parameters=(_BENCH_ARGUMENTS,),
            handler="fdl.commands.ddp_bench:ddp_bench",
            open=True,
            wraps=True,
        ),
        Builtin(
            "flodl-hf",
            parameters=(_HF_ARGUMENTS,),
            handler="fdl.commands.flodl_hf:flodl_hf",
            open=True,
            wraps=True,
        ),
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
                JSON,
            ),
            handler="fdl.commands.why:why",
        ),
        _CONFIG,
        _SCHEMA,
        Builtin(
            "completions",
            parameters=(optional("shell", "Shell to complete in", choices=SHELLS, default="bash"),),
            handler="fdl.commands.completions:completions",
        ),
        Builtin(
            "autocomplete",
            parameters=(DRY_RUN,),
            handler="fdl.commands.completions:autocomplete",
            notes="The shell is taken from $SHELL; running it again replaces what it wrote before.",
        ),
    )
}
"""The built-in commands of the help page, in its order."""
