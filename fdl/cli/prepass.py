"""Global flags, taken out of the command line before anything else looks at it.

Imported on the warm path: nothing beyond our own error classes.
"""

from __future__ import annotations

from fdl.base.errors import UsageError
from fdl.base.global_flags import VALUED, Work
from fdl.base.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# Flags that count wherever they stand: flag -> name of the value, and the value.
_ANYWHERE: dict[str, tuple[str, object]] = {
    "-q": ("verbosity", 0), "--quiet": ("verbosity", 0),
    "-v": ("verbosity", 2), "-vv": ("verbosity", 3), "-vvv": ("verbosity", 4),
    "--ansi": ("color", True), "--no-ansi": ("color", False), "--no-append": ("append", False),
    "-h": ("help", True), "--help": ("help", True),
}  # fmt: skip
# Behind the command these belong to the command: programs have their own dry runs.
_BEFORE: dict[str, tuple[str, object]] = {
    "-n": ("dry_run", True), "--dry-run": ("dry_run", True), "--json": ("json", True),
    "-y": ("yes", True), "--yes": ("yes", True),
}  # fmt: skip
_OF_WORK = {"--force": "force", "--zip": "zip", "--sync": "sync"}


class Invocation(Record):
    """A command line with its global flags taken out.

    Attributes:
        tokens: What remains: the command, its arguments, the first ``--`` and everything after it.
        color: True for ``--ansi``, False for ``--no-ansi``, None without either.
        verbosity: 0 for ``-q``, 2 to 4 for ``-v`` to ``-vvv``, None without either; the last wins.
        append: False when ``--no-append`` was given.
        env: The environments named by ``--env``, joined by commas, or None.
        first_word_env: The environment that the first word named; it is not in ``tokens``.
        help: Whether ``-h`` or ``--help`` was given, or nothing was left to run.
        help_word: The word behind it, which names a group of options. Behind a command such words
            are not in ``tokens``: they select nothing.
        version: Whether the first remaining token asks for the version.
        dry_run: Whether ``-n`` or ``--dry-run`` stood before the command.
        json: Whether ``--json`` stood before the command.
        yes: Whether ``-y`` or ``--yes`` stood before the command: questions answer themselves.
        work: How the command is run, and how often.
    """

    tokens: Sequence[str] = ()
    color: bool | None = None
    verbosity: int | None = None
    append: bool = True
    env: str | None = None
    first_word_env: str | None = None
    help: bool = False
    help_word: str = ""
    version: bool = False
    dry_run: bool = False
    json: bool = False
    yes: bool = False
    work: Work = Work()

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

    def behind_environment(self) -> Invocation:
        """The command line behind its first word, which names the environment."""
        env, *rest = self.tokens
        return self.replaced(tokens=rest, first_word_env=env, help=self.help or not rest)


def scan(argv: Sequence[str]) -> Invocation:
    """Split a command line into global flags and the rest; nothing after ``--`` is read.

    Raises:
        UsageError: The flags contradict each other or are not available.
    """
    found: dict[str, Any] = {}
    tokens: list[str] = []
    work = Work()
    end = argv.index("--") if "--" in argv else len(argv)
    words = iter(argv[:end])
    helped = 0
    for token in words:
        flag, equals, value = token.partition("=")
        if token in _ANYWHERE or (not tokens and token in _BEFORE):
            name, said = _ANYWHERE.get(token) or _BEFORE[token]
            if name == "color" and found.get(name) is (not said):
                raise UsageError("`--ansi` and `--no-ansi` are mutually exclusive")
            if name == "help" and name not in found:
                helped = len(tokens)
            found[name] = said
        elif flag == "--env":
            found["env"] = _environment(found.get("env"), value if equals else next(words, None))
        elif not tokens and flag in VALUED:
            work = work.given(flag, value if equals else next(words, None))
        elif not tokens and token in _OF_WORK:
            work = work.replaced(**{_OF_WORK[token]: True})
        else:
            tokens.append(token)
    found["version"] = tokens[:1] in (["-V"], ["--version"])
    if "help" in found:
        from fdl.manifest.words import ALL_GROUPS
        from fdl.programs.parameters.parameter import help_word

        word = help_word(argv[:end])
        found["help_word"] = word if helped or word == ALL_GROUPS else ""
        if helped:
            del tokens[helped:]
    if tokens[:1] == ["help"]:
        # `fdl help train` is `fdl train --help`.
        del tokens[0]
        found["help"] = True
        if tokens == ["all"]:
            found["help_word"] = "all"
    tokens += argv[end:]
    found["help"] = "help" in found or not tokens
    return Invocation(tokens, work=work, **found)


def _environment(known: object, name: str | None) -> str:
    """The environment of ``--env``, which may be given once."""
    if name is None:
        raise UsageError("`--env` needs the name of an environment", hint="fdl --env NAME COMMAND")
    if not name:
        raise UsageError("`--env=` names no environment", hint="fdl --env NAME COMMAND")
    if name.startswith("-"):
        raise UsageError(f"`--env` needs the name of an environment, and `{name}` is a flag")
    if known is not None:
        raise UsageError(
            f"`--env` was given twice: {known} and {name}",
            hint=f"--env {known},{name}" if known != name else "give it once",
        )
    return name
