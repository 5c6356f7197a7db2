"""How to repeat a run, as a value in which one part at a time can be swapped."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fdl.base.errors import FdlError
from fdl.base.shell_words import join
from fdl.runs.code_changes import read_code
from fdl.runs.json_file import read_json
from fdl.runs.run import ENVIRONMENT
from fdl.runs.settings import variables
from fdl.runs.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fdl.runs.run import Run
    from fdl.runs.trace import Trace

_HIDDEN = "<secret>"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to repeat a run.

    Attributes:
        start: The interpreter, and the script or ``-m`` and the module.
        words: The arguments of the program.
        cwd: Its working directory.
        project_root: The root of the project, or empty.
        code: The run directory whose record of the code is used; None for today's code.
        threads: Threads of torch; None for those of the program.
        engine: The engine; None for that of the program.
        ranks: Processes that a launcher starts; 1 for none.
        variables: Of the environment, by name; the others are as today. None unsets one.
    """

    start: tuple[str, ...]
    words: tuple[str, ...]
    cwd: Path
    project_root: str
    code: Path | None
    threads: int | None
    engine: str | None
    ranks: int
    variables: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        """The words of each option, by its name without dashes; empty: words before the first."""
        return dict(_grouped(self.words))

    def shown(self) -> str:
        """The command line with the variables that the record sets, for a terminal."""
        given = [f"{name}={value}" for name, value in self.variables.items() if value is not None]
        return printable(join([*given, *self.start, *self.words]))


def recipe_of(run: Run, trace: Trace) -> Recipe:
    """Return how to repeat a run.

    Raises:
        FdlError: Its record does not say enough.
    """
    record = run.record
    start, argv, cwd = (record.get(name) for name in ("start", "argv", "cwd"))
    if not (isinstance(start, list) and isinstance(argv, list) and isinstance(cwd, str)):
        raise FdlError(
            f"{run.path} cannot be repeated: its run.json does not say how its program was started",
            hint="train again with this version of flodl",
        )
    words = tuple(str(word) for word in argv[1:])
    if any(_HIDDEN in word for word in words):
        raise FdlError(
            f"{run.path} cannot be repeated: its command line has a secret, which is not recorded",
            hint="pass the secret in an environment variable, and train again",
        )
    if not Path(cwd).is_dir():
        raise FdlError(
            f"{run.path} cannot be repeated: its working directory {cwd} does not exist here",
            hint="repeat it on the machine where it was trained",
        )
    return Recipe(
        start=tuple(str(word) for word in start),
        words=words,
        cwd=Path(cwd),
        project_root=str(record.get("project_root") or ""),
        code=run.path if read_code(run.path) is not None else None,
        threads=_threads(run),
        engine=_text(trace.facts.get("engine")),
        ranks=int(record.get("launched_ranks") or 1),
        variables={
            name: str(one.value)
            for name, one in (variables(run) or {}).items()
            if _HIDDEN not in str(one.value)
        },
    )


def swapped(words: Sequence[str], other: Sequence[str], name: str) -> tuple[str, ...]:
    """Return words in which one option is as in other words: changed, added or left out."""
    groups, wanted = list(_grouped(words)), dict(_grouped(other)).get(name)
    found: list[str] = []
    for known, group in groups:
        found += group if known != name else wanted or ()
    if wanted is not None and name not in dict(groups):
        found = [*found, *wanted] if name else [*wanted, *found]
    return tuple(found)


def shown(group: Sequence[str]) -> str:
    """An option with its values; of one that is repeated, the last, which counts."""
    last = max((at for at, word in enumerate(group) if _names_option(word)), default=0)
    return " ".join(group[last:])


def _grouped(words: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Cut words into options with their values; an option that is repeated is one group."""
    groups: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if _names_option(word):
            name = word.partition("=")[0].lstrip("-").removeprefix("no-").replace("_", "-")
        groups.setdefault(name, []).append(word)
    for known, group in groups.items():
        yield known, tuple(group)


def _names_option(word: str) -> bool:
    if not word.startswith("-"):
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _threads(run: Run) -> int | None:
    found: Any = read_json(run.path / ENVIRONMENT)
    threads = found.get("threads") if isinstance(found, dict) else None
    return threads if isinstance(threads, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
