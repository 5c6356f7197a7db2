"""Global flags, taken out of the command line before anything else looks at it.

Imported on the warm path: nothing beyond our own error classes.
"""

from __future__ import annotations

from fdl.base.errors import UsageError
from fdl.base.global_flags import VALUED, Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_VERBOSITY = {"-q": 0, "--quiet": 0, "-v": 2, "-vv": 3, "-vvv": 4}
_COLOR = {"--ansi": True, "--no-ansi": False}


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
        elif not found.tokens and token.partition("=")[0] in VALUED:
            flag, equals, value = token.partition("=")
            found.work.take(flag, value if equals else next(words, None))
        elif not _take(found, token):
            found.tokens.append(token)
        if found.help and not asked:
            helped = len(found.tokens)
    found.version = bool(found.tokens) and found.tokens[0] in ("-V", "--version")
    if found.help:
        from fdl.manifest.words import ALL_GROUPS
        from fdl.programs.parameters.parameter import help_word

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
