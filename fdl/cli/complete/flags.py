"""The flags of fdl itself, as candidates."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from fdl.cli.complete.offer import Offer


class Flag:
    """One global flag.

    Attributes:
        name: The long form.
        text: What it does.
        same: Words on the line after which it adds nothing: its short form, or its opposite.
    """

    __slots__ = ("name", "same", "text")

    def __init__(self, name: str, text: str, *same: str) -> None:
        self.name = name
        self.text = text
        self.same = same


ANYWHERE = (
    Flag("--help", "Show help for a command", "-h"),
    Flag("--env", "Use the overlay fdl.NAME.yml of each manifest"),
    Flag("-v", "Print more: -v verbose, -vv debug, -vvv trace", "-vv", "-vvv"),
    Flag("--quiet", "Print less", "-q"),
    Flag("--ansi", "Force colour", "--no-ansi"),
    Flag("--no-ansi", "Forbid colour", "--ansi"),
    Flag("--no-append", "Leave out the `append` arguments of a run command"),
)
"""Flags that count wherever they stand before ``--``."""

BEFORE = (
    Flag("--dry-run", "Show what would run, and run nothing", "-n"),
    Flag("--yes", "Answer every question with yes", "-y"),
    Flag("--jobs", "Run several commands, N at the same time"),
    Flag("--force", "Run a command even if its inputs are unchanged"),
    Flag("--gpus-each", "Give each command N GPUs of its own"),
    Flag("--each", "Run the command once for each value: lr=1e-3,3e-3 or seed=1..3"),
    Flag("--zip", "Take the values of `--each` side by side"),
    Flag("--search", "Let Optuna pick the values: tpe or random"),
    Flag("--trials", "How many runs a search makes"),
    Flag("--goal", "Metric that a search improves: val_loss:min"),
    Flag("--name", "Name of the run, for lists and commands"),
    Flag("--on", "Where it runs: slurm"),
)
"""Flags that count before the command only."""

VERSION = Flag("--version", "Show the version", "-V")
JSON = Flag("--json", "Print the dry run as one JSON document")


def add_global(offer: Offer, words: Collection[str], *, first: bool, env: bool = True) -> None:
    """Offer the flags that still have an effect; ``first``: the command is still to come."""
    flags = list(ANYWHERE)
    if first:
        flags += BEFORE
        if "-n" in words or "--dry-run" in words:
            flags.append(JSON)
        if not words:
            flags.append(VERSION)
    for flag in flags:
        given = flag.name in words or any(other in words for other in flag.same)
        if not given and (env or flag.name != "--env"):
            offer.add(flag.name, flag.text)
