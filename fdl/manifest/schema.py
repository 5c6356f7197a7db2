"""The keys and values that a manifest may hold, in one table.

:mod:`fdl.manifest.check` checks a tree by this table and words the errors. Editors get the table as
JSON Schema, the reference as Markdown tables. Later code uses the nodes themselves.
"""

from __future__ import annotations

from fdl.manifest.cluster import SLURM
from fdl.manifest.ddp import DDP, SPEED_HINT
from fdl.manifest.kinds import (
    SWITCH,
    Judged,
    Key,
    Kind,
    ListOf,
    Number,
    Referring,
    Section,
    Table,
    Text,
    Whole,
    one_of,
)
from fdl.manifest.mistakes import Empty, Misplaced, Refused, Unsuitable
from fdl.manifest.run_folder import KEEP, METRIC, METRICS, OUTPUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.kinds import Rule
    from fdl.manifest.mistakes import Mistake, Path
    from fdl.node import Node

_MEMORY = ("auto", "keep", "default")

_SCALAR: Rule = {"type": ["string", "number", "boolean"]}
_ENV_FILE: Rule = {
    "anyOf": [
        {"type": "string"},
        {
            "additionalProperties": False,
            "properties": {"path": {"type": "string"}, "required": {"type": "boolean"}},
            "required": ["path"],
            "type": "object",
        },
    ]
}


def _demand_of_option(value: object) -> str:
    """A null in a list removes nothing. Lists in lists are for programs that can read them."""
    if isinstance(value, dict):
        return next(filter(None, (_demand_of_option(one.value) for one in value.values())), "")
    if not isinstance(value, list):
        return ""
    if any(one.value is None for one in value):
        return "may not list a null"
    return next(filter(None, (_demand_of_option(one.value) for one in value)), "")


class Settings(Table):
    """Options of a program: name -> value, or a mapping for dotted names.

    Attributes:
        named: Whether its JSON Schema is a reference to the definition.
    """

    named: bool = False

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Check the names at every depth, and the values."""
        if not isinstance(node.value, dict):
            found.append(Unsuitable(node, path, "must be a mapping"))
            return
        if path[-1] == "options" and path[-2:-1] in (("options",), ("training",)):
            problem = f"is in the wrong place: `options` stands beside `{path[-2]}`"
            found.append(Misplaced(node, path, problem))
            return
        for name, child in node.value.items():
            below = (*path, name)
            if problem := self.name_problem(name):
                found.append(Misplaced(child, below, problem))
            elif child.empty and any(mark in name for mark in ":="):
                # Any other name may be a flag, which only the program knows.
                found.append(Empty(child, below))
            elif isinstance(child.value, dict):
                self.judge(child, below, found)
            elif child.value is not None and (demand := _demand_of_option(child.value)):
                found.append(Refused(child, below, demand))

    def name_problem(self, name: str) -> str:
        """Refuse names that no command line can hold."""
        if not any(char.isspace() for char in name):
            return ""
        return "has blanks, so it names no option; remove them"

    def rules(self) -> list[Rule]:
        """An object with settings at every depth."""
        if self.named:
            return [{"$ref": "#/$defs/Settings"}]
        return [
            {"additionalProperties": {"anyOf": [*_SETTING, {"type": "null"}]}, "type": "object"}
        ]


class Parent(Kind):
    """The path of another manifest."""

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Refuse everything but text that is not blank."""
        value = node.value
        if isinstance(value, str) and value.strip():
            return
        demand = "must be the path of the manifest to inherit from"
        kinds = {bool: " (a boolean)", int: " (a number)", float: " (a number)"}
        found.append(Unsuitable(node, path, demand, kinds.get(type(value), "")))

    def rules(self) -> list[Rule]:
        """Text that is not blank."""
        return [{"pattern": "\\S", "type": "string"}]


def _demand_of_variable(value: object) -> str:
    fits = not isinstance(value, dict | list)
    return "" if fits else "is one variable, so it holds text, a number, true or false"


class Variables(Table):
    """Environment variables: name -> value."""

    settings: bool = True

    value: Kind | None = Judged(_demand_of_variable, [_SCALAR], described=False)

    def name_problem(self, name: str) -> str:
        """Refuse names that no environment can hold."""
        if name and "=" not in name:
            return ""
        return "names no variable: a name is not empty and holds no `=`"


def _demand_of_env_files(value: object) -> str:
    items = [item.value for item in value] if isinstance(value, list) else [value]
    if all(_is_env_file(item) for item in items):
        return ""
    return "must be a path, or a list of paths and of `{path: FILE, required: false}`"


def _is_env_file(value: object) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, str) and bool(value.strip())
    path, required = value.get("path"), value.get("required")
    return (
        value.keys() <= {"path", "required"}
        and path is not None
        and isinstance(path.value, str)
        and (required is None or isinstance(required.value, bool))
    )


def _demand_of_texts(value: object) -> str:
    items = [item.value for item in value] if isinstance(value, list) else [value]
    fits = all(isinstance(item, str) and item.strip() for item in items)
    return "" if fits else "must be text, or a list of texts"


_ITEM: Rule = {"type": ["string", "number", "boolean", "array", "object"]}
_SETTING: list[Rule] = [_SCALAR, {"items": _ITEM, "type": "array"}, {"$ref": "#/$defs/Settings"}]
_SETTINGS: Rule = {
    "additionalProperties": {"anyOf": [*_SETTING, {"type": "null"}]},
    "description": "Settings with dotted names: `optimizer: {lr: 0.1}` is `optimizer.lr`.",
    "type": "object",
}
STYLE = one_of("kebab", "snake", "keyvalue", "hydra", "fire")
ENV_FILES = Judged(_demand_of_env_files, [_ENV_FILE, {"items": _ENV_FILE, "type": "array"}])

TEXTS = Judged(
    _demand_of_texts, [{"type": "string"}, {"items": {"type": "string"}, "type": "array"}]
)


def _demand_of_values(value: object) -> str:
    items = [item.value for item in value] if isinstance(value, list) else [value]
    fits = items and all(
        isinstance(item, str | bool | int | float) and item != "" for item in items
    )
    return "" if fits else "must be a value, or a list of values, none of them empty"


VALUES = Judged(_demand_of_values, [_SCALAR, {"items": _SCALAR, "type": "array"}], described=False)

STOP_TIMEOUT = Key(
    "stop_timeout",
    Number(least=0),
    "Seconds from a stop signal until the program and all its processes are killed (default, or "
    "null: no limit).",
)
GRACE = Key(
    "grace",
    Number(least=0),
    "Seconds until processes left over after a program ended on a signal are killed, at most until "
    "the end of `stop_timeout` (default: 10).",
)


def _demand_of_factor(value: object) -> str:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    return "" if fits else "must be a number above 0 and at most 1"


class SwitchOr(Kind):
    """True, false, or a section that means true.

    Args:
        section: The section.
    """

    section: Section

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Refuse everything but a boolean or a mapping, and check the mapping."""
        if isinstance(node.value, bool):
            return
        if not isinstance(node.value, dict):
            found.append(Unsuitable(node, path, "must be true, false or a mapping"))
            return
        self.section.judge(node, path, found)

    def rules(self) -> list[Rule]:
        """A boolean, or the section."""
        return [{"type": "boolean"}, *self.section.rules()]


GUARDS = Section(
    "Guards",
    "What a training does after a bad loss.",
    Key(
        "spike",
        Number(above=1),
        "Distance of a spike from the median of the last losses, in multiples of their spread "
        "(default: 30).",
    ),
    Key(
        "window",
        Whole(least=16),
        "Number of last losses that a loss is compared with, at most (default: 64).",
    ),
    Key("snapshots", Whole(least=1), "Snapshots kept in host memory (default: 2)."),
    Key(
        "every",
        Whole(least=1),
        "Optimizer steps between two snapshots (default: so that they take at most 0.25 % of the "
        "time).",
    ),
    Key(
        "memory",
        Whole(least=1),
        "Bytes that all snapshots of a process may take (default: half of the available memory).",
    ),
    Key(
        "attempts",
        Whole(least=1),
        "How often the training goes back for one place in the data (default: 3).",
    ),
    Key(
        "lower_lr",
        Judged(_demand_of_factor, [{"exclusiveMinimum": 0, "maximum": 1, "type": "number"}]),
        "Factor of the learning rate from the second attempt at one place on (default: 0.5).",
    ),
)

TRAINING = Section(
    "Training",
    "The length and pace of a training.",
    Key("epochs", Referring(Whole()), "Passes over the data."),
    Key("batch_size", Referring(Whole(least=1)), "Samples per batch."),
    Key(
        "batches_per_epoch",
        Referring(Whole()),
        "Batches per epoch, instead of all data.",
    ),
    Key("lr", Referring(Number()), "Learning rate."),
    Key("seed", Referring(Whole()), "Seed of the random numbers."),
    Key(
        "engine",
        Referring(one_of("eager", "auto", "compiled", "cuda_graph")),
        "How a Trainer of flodl computes a step: as a plain loop (`eager`, default) or faster.",
    ),
    Key(
        "guards",
        SwitchOr(GUARDS),
        "Whether a Trainer of flodl goes back after a bad loss and leaves its batches out: true, "
        "or a mapping of the keys below. It reaches the program in `FLODL_GUARDS`.",
    ),
    # Only mappings get here. They belong to the program, which knows their keys.
    others=Settings(named=True),
)

COMMAND = Section(
    "Command",
    "One entry of ``commands``; which keys go together is judged when it is resolved.",
    Key("description", Text(), "One line for lists and help pages."),
    Key("run", Text(), "A shell command; arguments follow on the command line after `--`."),
    Key("subcommand", Text(), "Subcommand of `entry`'s program that the preset calls: `fit`."),
    Key("style", STYLE, "Spelling of options for this `entry`; see the same key of the manifest."),
    Key(
        "append", Text(), "Arguments that are always added to `run`; `--no-append` leaves them out."
    ),
    Key(
        "errexit",
        SWITCH,
        "Whether `run` ends at the first line that fails (default: true if it has several lines).",
    ),
    Key(
        "args",
        Table(),
        "Arguments of `run`: name -> default, or a row as in `schema`, with `positional: true` for "
        'a word without a flag. The script gets each as a variable, and these words as `"$@"`.',
    ),
    Key(
        "path",
        Text(),
        "A folder with an fdl.yml of its own; without `run` and `path`, the folder of this name.",
    ),
    Key("entry", Text(), "Program to run instead of the `entry` of the folder's fdl.yml."),
    Key(
        "cwd",
        Text(),
        "Folder in which the command runs, relative to the fdl.yml; by default its own folder.",
    ),
    Key(
        "confirm",
        Text(),
        "Question to ask before the command runs; `fdl -y` answers yes. By default none.",
    ),
    Key("docker", Text(), "Docker compose service in which `run` runs."),
    Key(
        "env",
        Variables(),
        "Environment variables of the command; those of your shell win.",
    ),
    Key(
        "env_file",
        ENV_FILES,
        "Files of `NAME=value` lines with further variables; they win over `env`.",
    ),
    Key(
        "needs",
        TEXTS,
        "Commands that run before this one, as you type them after `fdl`; each runs once.",
    ),
    Key(
        "inputs",
        TEXTS,
        "Files that the command reads, as patterns (`data/**/*.csv`), and variables (`env:NAME`). "
        "It is skipped if none has changed since its last success (default: it always runs).",
    ),
    Key(
        "outputs",
        TEXTS,
        "Files that the command writes, as patterns; if one is missing or changed, it runs.",
    ),
    STOP_TIMEOUT,
    GRACE,
    Key("slurm", SLURM, "What the command asks of a cluster, with `fdl --on slurm`."),
    Key("ddp", DDP, "How the preset spreads the work over devices."),
    Key("training", TRAINING, "Length and pace of the preset's training."),
    Key("output", OUTPUT, "Where the preset's run writes."),
    Key(
        "metrics",
        METRICS,
        "Metrics that the program prints, besides those of the manifest; a null removes one.",
    ),
    Key(
        "options",
        Settings(),
        "Further options of the preset: `model: big` is `--model big`, `fast: true` is `--fast`. "
        "Mappings become dotted names; a key that begins with `-` is passed unchanged.",
    ),
    settings=False,
)

SWEEP = Section(
    "Sweep",
    "One command, run once for each combination of values.",
    Key("command", Text(), "The command as you type it after `fdl`: `train quick`.", required=True),
    Key(
        "each",
        Table(VALUES),
        "Option or setting -> its values: a list, or text such as `1..3`, `a,b` and, for a search, "
        "`1e-5..1e-1:log`.",
        required=True,
    ),
    Key("zip", SWITCH, "Whether values are taken side by side (default: every combination)."),
    Key("jobs", Whole(least=1), "Number of runs at the same time (default: 1)."),
    Key("gpus_each", Whole(least=1), "GPUs that each run has to itself (default: all share)."),
    Key(
        "search",
        Text(),
        "Sampler of Optuna that picks the values: `tpe` or `random`, with a seed as in `tpe:1`.",
    ),
    Key("trials", Whole(least=1), "Number of runs of a search."),
    Key("goal", Text(), "Metric to optimize, with its direction: `val_loss:min`."),
)

ROOT = Section(
    "Root",
    "A whole manifest, of a project or of the folder of a command.",
    Key("description", Text(), "One line about the project or the folder."),
    Key(
        "commands",
        Table(COMMAND),
        "Name -> what it does: a shell command (`run`), a folder (`path`), or a preset of `entry`.",
    ),
    Key("inherit-from", Parent(), "Manifest to inherit from; values of this file win."),
    Key(
        "include",
        ENV_FILES,
        "Files with further `commands`, as if they were written here. By default none.",
    ),
    Key(
        "entry",
        Text(),
        "Program of this folder: `python main.py`. It gets the settings below as options.",
    ),
    Key("subcommand", Text(), "Subcommand of the program that gets the settings: `fit`."),
    Key(
        "style",
        STYLE,
        "Spelling of options for a program whose options fdl does not know: `kebab` "
        "(`--batch-size 8`), `snake` (`--batch_size 8`), `keyvalue` (`batch_size=8`), `hydra`, or "
        "`fire` (`--sizes '[1, 2]'`).",
    ),
    Key(
        "cwd",
        Text(),
        "Folder in which `entry` runs, relative to this file; by default the folder of this file.",
    ),
    Key("docker", Text(), "Docker compose service in which `entry` runs."),
    Key(
        "memory",
        one_of(*_MEMORY),
        "Whether `entry` keeps freed memory for its next step: `keep`, `default` (never) or "
        "`auto` (programs that use flodl; default). The variable `FDL_MEMORY` wins.",
    ),
    Key(
        "env",
        Variables(),
        "Environment variables of all commands; those of your shell win.",
    ),
    Key(
        "env_file",
        ENV_FILES,
        "Files of `NAME=value` lines with further variables; they win over `env`.",
    ),
    STOP_TIMEOUT,
    GRACE,
    Key(
        "secrets",
        ListOf(Text()),
        "Variables whose values are never printed, besides those with names such as `HF_TOKEN`.",
    ),
    Key("slurm", SLURM, "What commands ask of a cluster, with `fdl --on slurm`."),
    Key("ddp", DDP, "How the work is spread over devices."),
    Key("training", TRAINING, "Length and pace of a training."),
    Key("output", OUTPUT, "Folder of the runs, port of the live page, and which runs to keep."),
    Key(
        "metrics",
        METRICS,
        "Metrics that `entry` prints: name -> `{value: REGEX, step: REGEX}`. fdl records them.",
    ),
    Key(
        "options",
        Settings(),
        "Further options of `entry`: `weight_decay: 0.1` is `--weight-decay 0.1`. Those of a "
        "preset win.",
    ),
    Key("sweeps", Table(SWEEP), "Name -> sweep: `fdl sweep run NAME` runs it."),
    Key(
        "arg-name",
        Text(),
        "Name of the preset on the help page: `recipe` gives `<recipe>` (default: `preset`).",
    ),
    Key(
        "schema",
        Table(),
        "Arguments of `entry`, for a program that does not answer `--fdl-schema`.",
    ),
    Key(
        "compile",
        SWITCH,
        "Whether fdl may start `entry` with `--fdl-schema` to ask for its arguments, although its "
        "source does not mention `FdlArgs` (default: false).",
    ),
    settings=False,
)

SECTIONS = {"ddp": DDP, "training": TRAINING, "output": OUTPUT}
"""The sections that a manifest and an entry of `commands` may both hold: name -> section."""


def json_schema() -> Rule:
    """The table as JSON Schema: the manifest at the top, its sections in ``$defs``."""
    sections = sorted(
        (COMMAND, DDP, GUARDS, KEEP, METRIC, OUTPUT, SLURM, SPEED_HINT, SWEEP, TRAINING),
        key=lambda one: one.name,
    )
    definitions = {one.name: one.definition() for one in sections}
    return {**ROOT.definition(), "$defs": {**definitions, "Settings": _SETTINGS}}
