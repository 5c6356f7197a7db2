"""What every benchmark shares: the command line, turns, medians, spread, bars and the page.

The rules that this module keeps are in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import compileall
import platform
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from fdl.version import __version__

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]

NOT_YET = "not measured yet"
"""What a table has instead of a figure."""

# --- The command line --------------------------------------------------------------------------


def command_line(
    name: str, doc: str | None, *, rounds: int | None = None
) -> argparse.ArgumentParser:
    """The options that every benchmark has; a program adds its own.

    Args:
        name: The module below ``benchmarks``.
        doc: Its docstring. The first line becomes the help.
        rounds: Default of ``--rounds``; None where a program has no rounds.
    """
    summary = (doc or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=summary)
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, to test the program")
    parser.add_argument("--output", type=Path, help="also write the page to this file")
    return parser


def read_options(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None, **quick: object
) -> argparse.Namespace:
    """Read the command line; ``options.command`` is the command that the page names.

    Then compile fdl and flodl, as pip does when it installs them: no round pays for it.

    Args:
        parser: From :func:`command_line`.
        argv: The words; those of the process by default.
        quick: Defaults that ``--quick`` sets.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if "--quick" in words:
        parser.set_defaults(**quick)
    options = parser.parse_args(words)
    if options.quick and options.output is not None and options.output.exists():
        parser.error(f"--quick would replace the figures in {options.output}; name a new file")
    shown = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if "--output" not in (before, word) and not word.startswith("--output=")
    ]
    options.command = shlex.join([*parser.prog.split(), *shown])
    for package in () if options.quick else ("fdl", "flodl", "benchmarks"):
        compileall.compile_dir(ROOT / package, quiet=2)
    return options


def end_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit, so that the program ends what it has started."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


# --- Turns -------------------------------------------------------------------------------------


def in_turns(
    names: Sequence[str], measure: Callable[[str], T], rounds: int, warmup: int = 1
) -> dict[str, list[T]]:
    """Measure every subject once per round, so that drift of the machine affects all alike.

    The order rotates from round to round: the subject after the slowest one is not always
    the same one.

    Args:
        names: The subjects.
        measure: Measures one of them.
        rounds: Rounds that count.
        warmup: Rounds before them, which do not count.

    Returns:
        Name -> what each round gave.
    """
    found: dict[str, list[T]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            measured = measure(name)
            if number >= warmup:
                found[name].append(measured)
    return found


def interleaved(
    subjects: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds of every subject in every round, by :func:`in_turns`."""
    return in_turns(list(subjects), lambda name: seconds_of(subjects[name]), rounds, warmup)


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# --- Figures -----------------------------------------------------------------------------------


def ratios(subject: Sequence[float], base: Sequence[float]) -> list[float]:
    """Subject/base of every round: the two of one round share the state of the machine."""
    return [mine / theirs for mine, theirs in zip(subject, base, strict=True)]


def median_ratio(subject: Sequence[float], base: Sequence[float]) -> float:
    """Median of :func:`ratios`."""
    return statistics.median(ratios(subject, base))


def middle(values: Sequence[float], form: str = ".1f", scale: float = 1.0) -> str:
    """The median, times ``scale``."""
    return f"{statistics.median(values) * scale:{form}}"


def spread(values: Sequence[float], form: str = ".2f", scale: float = 1.0) -> str:
    """The range of the middle 80 %; of fewer than ten values that is the whole range."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    low, high = (ordered[at] * scale for at in (cut, -1 - cut))
    return f"{low:{form}} … {high:{form}}"


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure has to reach.

    Attributes:
        limit: The most that passes.
        least: ``limit`` is the least that passes instead.
        earlier: Limits that this bar had before. They stay on the page.
        form: How a limit is printed.
    """

    limit: float
    least: bool = False
    earlier: tuple[float, ...] = ()
    form: str = ".2f"

    def passes(self, value: float, limit: float | None = None) -> bool:
        """Whether a figure reaches the bar, or one of its earlier limits."""
        bound = self.limit if limit is None else limit
        return value >= bound if self.least else value <= bound

    def verdict(self, value: float) -> str:
        """PASS or MISSED beside the bar, and the same beside each earlier limit."""
        now, *former = (
            f"{limit:{self.form}} {judged(self.passes(value, limit))}"
            for limit in (self.limit, *self.earlier)
        )
        return now + "".join(f", earlier {one}" for one in former)


def judged(good: bool) -> str:
    """The word for a bar that is reached, or not."""
    return "PASS" if good else "MISSED"


# --- The page ----------------------------------------------------------------------------------


def environment(*packages: str) -> str:
    """One line about the machine and the versions that were measured."""
    versions = []
    for package in packages:
        try:
            # Also where the project is not installed but lies in the path.
            found = __version__ if package == "flodl" else version(package)
            versions.append(f"{package} {found}")
        except PackageNotFoundError:
            versions.append(f"{package} not installed")
    if "torch" in packages and (torch := sys.modules.get("torch")) is not None:
        count = torch.get_num_threads()
        versions.append(f"{count} thread{'s' * (count > 1)}")
    parts = [
        processor(),
        f"Python {platform.python_version()}",
        *versions,
        date.today().isoformat(),
    ]
    return ", ".join(parts)


_VECTORS = {
    "avx512_bf16": "AVX-512 with bfloat16",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}
"""Flag in Linux's list of a processor -> its widest vectors, the widest ones first."""


def processor() -> str:
    """The processor's name as the system tells it, and its widest vectors.

    Rented machines hide the model, and kernels of torch and oneDNN differ with the vectors.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    vectors = next((f", {name}" for flag, name in _VECTORS.items() if flag in flags), "")
    return f"{names[0]} × {len(names)}{vectors}" if names else platform.machine()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def page(
    options: argparse.Namespace,
    title: str,
    intro: str,
    *parts: str,
    packages: Sequence[str] = ("torch",),
) -> str:
    """A page: title, machine, versions, date and command, then what was found."""
    told = f"{environment(*packages)}. {intro} `{options.command}`"
    small = ["Quick run with the smallest sizes: no figure here counts."] if options.quick else []
    return "\n\n".join([f"# {title}", told, *small, *parts]).rstrip()


def publish(text: str, output: Path | None) -> None:
    """Print the page, and write it where ``--output`` says."""
    sys.stdout.write(text + "\n")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
