"""What every benchmark shares: interleaved rounds, medians, ratios, and the page they end on."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def interleaved(
    subjects: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Time every subject once per round, so that drift of the machine hits all of them alike.

    The order rotates from round to round: the subject after the heaviest one is not always
    the same one.

    Args:
        subjects: Name -> what to time.
        rounds: Timed rounds; the ``warmup`` rounds before them are thrown away.
        warmup: Untimed rounds.

    Returns:
        Name -> seconds of each timed round.
    """
    names = list(subjects)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            start = time.perf_counter()
            subjects[name]()
            elapsed = time.perf_counter() - start
            if number >= warmup:
                seconds[name].append(elapsed)
    return seconds


def median_ratio(subject: Sequence[float], base: Sequence[float]) -> float:
    """Median over the rounds of subject/base: pairs of one round share the state of the machine."""
    return statistics.median(mine / theirs for mine, theirs in zip(subject, base, strict=True))


def environment(*packages: str) -> str:
    """One line about the machine and the versions that were measured."""
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} not installed")
    parts = [
        processor(),
        f"Python {platform.python_version()}",
        *versions,
        date.today().isoformat(),
    ]
    return ", ".join(parts)


def processor() -> str:
    """The processor's name as the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return f"{names[0]} × {len(names)}" if names else platform.machine()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def publish(page: str, output: Path | None) -> None:
    """Print the page, and write it where ``--output`` says."""
    sys.stdout.write(page + "\n")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page + "\n", encoding="utf-8")
