"""The flags of fdl itself, which stand before a command, and what those of them say about a run.

Imported on the warm path: nothing beyond our own error classes.
"""

from __future__ import annotations

from fdl.base.errors import UsageError
from fdl.base.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SLURM = "slurm"

BEFORE, BEHIND, ANYWHERE = "before", "behind", "anywhere"
"""Where a flag counts: before the command, also behind one whose program does not have it, or
everywhere."""


class Flag(Record):
    """One flag of fdl.

    Attributes:
        name: Its spelling to type.
        field: What it sets, of an invocation or of :class:`Work`; empty for a question.
        text: What it does, for completion; empty for one that is not offered.
        value: What the field becomes.
        needs: What its value is called: ``N``; empty for a flag without one.
        short: Another spelling.
        place: Where it counts.
    """

    name: str
    field: str
    text: str = ""
    value: object = True
    needs: str = ""
    short: str = ""
    place: str = BEFORE


FLAGS = (
    Flag("--help", "help", "Show help for a command", short="-h", place=ANYWHERE),
    Flag("--env", "env", "Use the overlay fdl.NAME.yml of each manifest", needs="NAME",
         place=ANYWHERE),
    Flag("-v", "verbosity", "Print more: -v verbose, -vv debug, -vvv trace", 2, place=ANYWHERE),
    Flag("-vv", "verbosity", value=3, place=ANYWHERE),
    Flag("-vvv", "verbosity", value=4, place=ANYWHERE),
    Flag("--quiet", "verbosity", "Print less", 0, short="-q", place=ANYWHERE),
    Flag("--ansi", "color", "Force colour", place=ANYWHERE),
    Flag("--no-ansi", "color", "Forbid colour", False, place=ANYWHERE),
    Flag("--no-append", "append", "Leave out the `append` arguments of a run command", False,
         place=ANYWHERE),
    Flag("--dry-run", "dry_run", "Show what would run, and run nothing", short="-n"),
    Flag("--yes", "yes", "Answer every question with yes", short="-y"),
    Flag("--jobs", "jobs", "Run several commands, N at the same time", needs="N"),
    Flag("--force", "force", "Run a command even if its inputs are unchanged"),
    Flag("--gpus-each", "gpus_each", "Give each command N GPUs of its own", needs="N"),
    Flag("--each", "each", "Run the command once for each value: lr=1e-3,3e-3 or seed=1..3",
         needs="KEY=VALUES", place=BEHIND),
    Flag("--zip", "zip", "Take the values of `--each` side by side", place=BEHIND),
    Flag("--search", "search", "Let Optuna pick the values: tpe or random", needs="SAMPLER",
         place=BEHIND),
    Flag("--trials", "trials", "How many runs a search makes", needs="N", place=BEHIND),
    Flag("--goal", "goal", "Metric that a search improves: val_loss:min", needs="METRIC:min",
         place=BEHIND),
    Flag("--name", "name", "Name of the run, for lists and commands", needs="NAME"),
    Flag("--on", "on", "Where it runs: slurm, or HOST,HOST", needs="HOST,HOST", place=BEHIND),
    Flag("--sync", "sync", "Copy the files that git tracks to the hosts of --on first",
         place=BEHIND),
    Flag("--json", "json", "Print the dry run as one JSON document"),
    Flag("--version", "", "Show the version"),
)  # fmt: skip
"""Every flag of fdl. Completion offers them in this order."""

SPELLINGS = {word: one for one in FLAGS for word in (one.name, one.short) if word}
"""Word -> the flag that it is."""

GLOBAL_FLAGS = tuple(one.name for one in FLAGS if one.name[:2] == "--" and one.field != "json")
"""Long global flags, for suggestions."""

_BEFORE_COMMAND = ("-n", "-y", "--json", *GLOBAL_FLAGS)


class Work(Record):
    """The flags before a command that say how it is run, and how often.

    Attributes:
        jobs: ``--jobs N``: how many commands run at once; None without the flag.
        force: ``--force``: run a command even if its inputs are unchanged.
        gpus_each: ``--gpus-each N``: GPUs of each job; 0 leaves the visible ones to all.
        each: ``--each KEY=VALUES``, in their order: what a sweep varies.
        zip: ``--zip``: take the values side by side, not their product.
        search: ``--search SAMPLER``: who chooses the values; empty for all of them.
        trials: ``--trials N``: how many are tried; 0 without the flag.
        goal: ``--goal METRIC:min`` or ``:max``; empty without the flag.
        on: ``--on slurm`` or ``--on HOST,HOST``: where it runs; empty for this machine.
        sync: ``--sync``: copy the files that git tracks to the hosts first.
        name: ``--name NAME``: what the run is called; empty without the flag.
    """

    jobs: int | None = None
    force: bool = False
    gpus_each: int = 0
    each: Sequence[str] = ()
    zip: bool = False
    search: str = ""
    trials: int = 0
    goal: str = ""
    on: str = ""
    sync: bool = False
    name: str = ""

    @property
    def hosts(self) -> bool:
        """Whether it runs on hosts that are named, not on a cluster."""
        return bool(self.on) and self.on != SLURM

    def wants_sweep(self) -> bool:
        """Whether a flag asks for runs with several values."""
        return bool(self.each or self.zip or self.search or self.trials or self.goal)

    def taken(self, word: str, rest: Iterator[str]) -> Work | None:
        """The same with the flag that a word is; None if it is not one of these.

        Raises:
            UsageError: The value is missing, or not a number where one is needed.
        """
        name, equals, value = word.partition("=")
        flag = SPELLINGS.get(name)
        if flag is None or flag.field not in self.field_names:
            return None
        if flag.needs:
            return self._given(flag, value if equals else next(rest, ""))
        return None if equals else self.replaced(**{flag.field: True})

    def _given(self, flag: Flag, value: str) -> Work:
        name = flag.name
        if not value or (value.startswith("-") and name != "--each"):
            raise UsageError(f"`{name}` needs a value", hint=f"fdl {name} {flag.needs} COMMAND")
        if flag.needs == "N":
            # A number of jobs, GPUs or trials has at most six digits.
            if not (value.isascii() and value.isdigit() and len(value) <= 6 and int(value) >= 1):
                raise UsageError(
                    f"`{name} {value}`: not a number of at least 1", hint=f"fdl {name} 2 COMMAND"
                )
            return self.replaced(**{flag.field: int(value)})
        if name == "--each":
            return self.replaced(each=[*self.each, value])
        if name == "--on":
            names = [one.strip() for one in value.split(",")]
            if not all(names):
                hint = "fdl --on HOST,HOST COMMAND"
                raise UsageError(f"`--on {value}`: a name is empty", hint=hint)
            value = ",".join(names)
        if name == "--name" and (value == "last" or value.startswith("best:") or "/" in value):
            raise UsageError(
                f"`--name {value}`: a run cannot have this name", hint="fdl --name baseline COMMAND"
            )
        return self.replaced(**{flag.field: value})


def misplaced(token: str, env: str | None) -> str:
    """The hint for a global flag that stands behind the word for the environment; else empty."""
    if env is None or token.partition("=")[0] not in _BEFORE_COMMAND:
        return ""
    return f"options of fdl stand before the environment: fdl {token} {env} COMMAND"


def before_command(flag: str, command: str, env: str | None) -> str:
    """The hint for a global flag that stands behind a command; else empty.

    Args:
        flag: The flag that the command does not know, without a value.
        command: The command as typed: ``fdl train quick``.
        env: The environment in use, which the command to type has to name.
    """
    if flag not in _BEFORE_COMMAND:
        return ""
    needs = SPELLINGS[flag].needs if flag != "--env" else ""
    # `--json` alone prints nothing of a command.
    flags = ["--dry-run", flag] if flag == "--json" else [flag, *([needs] if needs else [])]
    chosen = ["--env", env] if env else []
    typed = " ".join(["fdl", *flags, *chosen, command.removeprefix("fdl ")])
    return f"options of fdl stand before the command: {typed}"
