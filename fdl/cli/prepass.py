"""Global flags, taken out of the command line before anything else looks at it.

Imported on the warm path: nothing beyond our own error classes.
"""

from __future__ import annotations

from fdl.base.errors import UsageError
from fdl.base.global_flags import ANYWHERE, SPELLINGS, Work
from fdl.base.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


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
        one = SPELLINGS.get(token)
        counts = one is not None and not one.needs and (not tokens or one.place == ANYWHERE)
        if one and counts and one.field in Invocation.field_names:
            if one.field == "color" and found.get(one.field) is (not one.value):
                raise UsageError("`--ansi` and `--no-ansi` are mutually exclusive")
            if one.field == "help" and one.field not in found:
                helped = len(tokens)
            found[one.field] = one.value
        elif flag == "--env":
            found["env"] = _environment(found.get("env"), value if equals else next(words, None))
        elif not tokens and (more := work.taken(token, words)):
            work = more
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
