"""Global flags, taken out of the command line before anything else looks at it.

Imported on the warm path: nothing beyond our own error classes.
"""

from __future__ import annotations

from fdl.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_VERBOSITY = {"-q": 0, "--quiet": 0, "-v": 2, "-vv": 3, "-vvv": 4}
_COLOR = {"--ansi": True, "--no-ansi": False}

GLOBAL_FLAGS = (
    "--help", "--version", "--env", "--quiet", "--ansi", "--no-ansi", "--no-append", "--dry-run",
    "--yes", "--jobs", "--force", "--gpus-each", "--each", "--zip", "--search", "--trials",
    "--goal", "--on", "--name",
)  # fmt: skip
"""Long global flags, for suggestions."""

_BEFORE_COMMAND = ("-n", "-y", "--json", *GLOBAL_FLAGS)

_COUNTS = {"--jobs": "jobs", "--gpus-each": "gpus_each", "--trials": "trials"}
_WORDS = {"--search": "search", "--goal": "goal", "--on": "on", "--name": "name"}
_VALUED = frozenset((*_COUNTS, *_WORDS, "--each"))
_VALUES = {
    **dict.fromkeys(_COUNTS, "N"), "--search": "SAMPLER", "--goal": "METRIC:min", "--on": "slurm",
    "--each": "KEY=VALUES", "--name": "NAME",
}  # fmt: skip


class Work:
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
        on: ``--on slurm``: where it runs; empty for this machine.
        name: ``--name NAME``: what the run is called; empty without the flag.
    """

    __slots__ = (
        "each", "force", "goal", "gpus_each", "jobs", "name", "on", "search", "trials", "zip",
    )  # fmt: skip

    def __init__(self) -> None:
        self.jobs: int | None = None
        self.force = False
        self.gpus_each = 0
        self.each: list[str] = []
        self.zip = False
        self.search = ""
        self.trials = 0
        self.goal = ""
        self.on = ""
        self.name = ""

    def wants_sweep(self) -> bool:
        """Whether a flag asks for runs with several values."""
        return bool(self.each or self.zip or self.search or self.trials or self.goal)

    def take(self, flag: str, value: str | None) -> None:
        """Record a flag that takes a value.

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
            setattr(self, _COUNTS[flag], int(value))
        elif flag == "--each":
            self.each.append(value)
        elif flag == "--on" and value != "slurm":
            raise UsageError(f"`--on {value}`: fdl knows slurm", hint="fdl --on slurm COMMAND")
        elif flag == "--name" and (value == "last" or value.startswith("best:") or "/" in value):
            raise UsageError(
                f"`--name {value}`: a run cannot have this name", hint="fdl --name baseline COMMAND"
            )
        else:
            setattr(self, _WORDS[flag], value)


class Invocation:
    """A command line with its global flags taken out.

    Attributes:
        tokens: What remains: the command, its arguments, the first ``--`` and everything after it.
        color: True for ``--ansi``, False for ``--no-ansi``, None without either.
        verbosity: 0 for ``-q``, 2 to 4 for ``-v`` to ``-vvv``, None without either; the last wins.
        append: False when ``--no-append`` was given.
        env: The environments named by ``--env``, joined by commas, or None.
        first_word_env: The environment that the first word named; taken out of ``tokens``.
        help: Whether ``-h`` or ``--help`` was given, or nothing was left to run.
        help_word: The word behind it, which names a group of options. Behind a command such words
            are not in ``tokens``: they select nothing.
        version: Whether the first remaining token asks for the version.
        dry_run: Whether ``-n`` or ``--dry-run`` stood before the command.
        json: Whether ``--json`` stood before the command.
        yes: Whether ``-y`` or ``--yes`` stood before the command: questions answer themselves.
        work: How the command is run, and how often.
    """

    __slots__ = (
        "append", "color", "dry_run", "env", "first_word_env", "help", "help_word", "json",
        "tokens", "verbosity", "version", "work", "yes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.color: bool | None = None
        self.verbosity: int | None = None
        self.append = True
        self.env: str | None = None
        self.first_word_env: str | None = None
        self.help = False
        self.help_word = ""
        self.version = False
        self.dry_run = False
        self.json = False
        self.yes = False
        self.work = Work()

    def exported(self) -> dict[str, str]:
        """The variables through which children learn of the flags; empty without flags."""
        variables = {}
        if self.verbosity is not None:
            variables["FLODL_VERBOSITY"] = str(self.verbosity)
        if self.color is not None:
            variables["FLODL_COLOR"] = "always" if self.color else "never"
        if self.work.name:
            variables["FDL_RUN_NAME"] = self.work.name
        return variables


def scan(argv: Sequence[str]) -> Invocation:
    """Split a command line into global flags and the rest; nothing after ``--`` is read.

    Raises:
        UsageError: The flags contradict each other or are not available.
    """
    found = Invocation()
    end = argv.index("--") if "--" in argv else len(argv)
    words = iter(argv[:end])
    helped = 0
    for token in words:
        asked = found.help
        if token == "--env" or token.startswith("--env="):
            _select(found, token.partition("=")[2] if "=" in token else next(words, None))
        elif not found.tokens and token.partition("=")[0] in _VALUED:
            flag, equals, value = token.partition("=")
            found.work.take(flag, value if equals else next(words, None))
        elif not _take(found, token):
            found.tokens.append(token)
        if found.help and not asked:
            helped = len(found.tokens)
    found.version = bool(found.tokens) and found.tokens[0] in ("-V", "--version")
    if found.help:
        from fdl.parameters.parameter import ALL_GROUPS, help_word

        word = help_word(argv[:end])
        found.help_word = word if helped or word == ALL_GROUPS else ""
        if helped:
            del found.tokens[helped:]
    if found.tokens[:1] == ["help"]:
        # `fdl help train` is `fdl train --help`.
        del found.tokens[0]
        found.help = True
        found.help_word = "all" if found.tokens == ["all"] else found.help_word
    found.tokens.extend(argv[end:])
    found.help = found.help or not found.tokens
    return found


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


def _take(found: Invocation, token: str) -> bool:
    """Record a global flag; False when ``token`` is none."""
    if not token.startswith("-"):
        return False
    if token in _VERBOSITY:
        found.verbosity = _VERBOSITY[token]
    elif token in _COLOR:
        wanted = _COLOR[token]
        if found.color is (not wanted):
            raise UsageError("`--ansi` and `--no-ansi` are mutually exclusive")
        found.color = wanted
    elif token == "--no-append":
        found.append = False
    elif token in ("-h", "--help"):
        found.help = True
    # Behind the command these belong to the command: programs have their own dry runs.
    elif not found.tokens and token in ("-n", "--dry-run"):
        found.dry_run = True
    elif not found.tokens and token == "--json":
        found.json = True
    elif not found.tokens and token in ("-y", "--yes"):
        found.yes = True
    elif not found.tokens and token == "--force":
        found.work.force = True
    elif not found.tokens and token == "--zip":
        found.work.zip = True
    else:
        return False
    return True


def _select(found: Invocation, name: str | None) -> None:
    """Record the environment of ``--env``."""
    if name is None:
        raise UsageError("`--env` needs the name of an environment", hint="fdl --env NAME COMMAND")
    if not name:
        raise UsageError("`--env=` names no environment", hint="fdl --env NAME COMMAND")
    if name.startswith("-"):
        raise UsageError(f"`--env` needs the name of an environment, and `{name}` is a flag")
    if found.env is not None:
        raise UsageError(
            f"`--env` was given twice: {found.env} and {name}",
            hint=f"--env {found.env},{name}" if found.env != name else "give it once",
        )
    found.env = name
