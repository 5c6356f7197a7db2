"""The flags of fdl itself, which stand before a command, and what those of them say about a run.

Imported on the warm path: nothing beyond our own error classes.
"""

from __future__ import annotations

from fdl.base.errors import UsageError
from fdl.base.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

GLOBAL_FLAGS = (
    "--help", "--version", "--env", "--quiet", "--ansi", "--no-ansi", "--no-append", "--dry-run",
    "--yes", "--jobs", "--force", "--gpus-each", "--each", "--zip", "--search", "--trials",
    "--goal", "--on", "--sync", "--name",
)  # fmt: skip
"""Long global flags, for suggestions."""

_BEFORE_COMMAND = ("-n", "-y", "--json", *GLOBAL_FLAGS)

_COUNTS = {"--jobs": "jobs", "--gpus-each": "gpus_each", "--trials": "trials"}
_WORDS = {"--search": "search", "--goal": "goal", "--on": "on", "--name": "name"}
SLURM = "slurm"
VALUED = frozenset((*_COUNTS, *_WORDS, "--each"))
_VALUES = {
    **dict.fromkeys(_COUNTS, "N"), "--search": "SAMPLER", "--goal": "METRIC:min",
    "--on": "HOST,HOST", "--each": "KEY=VALUES", "--name": "NAME",
}  # fmt: skip


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

    def given(self, flag: str, value: str | None) -> Work:
        """The same with one more flag that takes a value.

        Raises:
            UsageError: The value is missing, or not a number where one is needed.
        """
        if value is None or not value or (value.startswith("-") and flag != "--each"):
            needed = _VALUES.get(flag, "VALUE")
            raise UsageError(f"`{flag}` needs a value", hint=f"fdl {flag} {needed} COMMAND")
        if flag in _COUNTS:
            # A number of jobs, GPUs or trials has at most six digits.
            if not (value.isascii() and value.isdigit() and len(value) <= 6 and int(value) >= 1):
                raise UsageError(
                    f"`{flag} {value}`: not a number of at least 1", hint=f"fdl {flag} 2 COMMAND"
                )
            return self.replaced(**{_COUNTS[flag]: int(value)})
        if flag == "--each":
            return self.replaced(each=[*self.each, value])
        if flag == "--on" and not all(value.split(",")):
            raise UsageError(f"`--on {value}`: a name is empty", hint="fdl --on HOST,HOST COMMAND")
        if flag == "--name" and (value == "last" or value.startswith("best:") or "/" in value):
            raise UsageError(
                f"`--name {value}`: a run cannot have this name", hint="fdl --name baseline COMMAND"
            )
        return self.replaced(**{_WORDS[flag]: value})


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
    value = [_VALUES[flag]] if flag in _VALUES else []
    # `--json` alone prints nothing of a command.
    flags = ["--dry-run", flag] if flag == "--json" else [flag, *value]
    chosen = ["--env", env] if env else []
    typed = " ".join(["fdl", *flags, *chosen, command.removeprefix("fdl ")])
    return f"options of fdl stand before the command: {typed}"
