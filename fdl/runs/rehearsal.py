"""The result of a rehearsal, as a page for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from fdl.base.tables import headed, table
from fdl.runs.text import duration, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Group


def page(result: Mapping[str, Any]) -> Group:
    """What a training will need: the phases, then the estimates.

    Args:
        result: The document that the Trainer wrote.
    """
    rows = [
        (str(one["name"]), _seconds(one["seconds"]), decimal(int(one["peak_bytes"])))
        for one in result["phases"]
    ]
    sections = [
        ("Rehearsed:", table(_facts(result), wrap=(1,))),
        ("Phases, last step:", table([("", "time", "peak memory"), *rows], right=(1, 2))),
        ("Estimates:", table(_estimates(result), wrap=(1,))),
    ]
    if result.get("failed_in"):
        failure = [(f"in {result['failed_in']}", printable(str(result["error"])))]
        sections.insert(0, ("Failed:", table(failure, wrap=(1,))))
    return headed([one for one in sections if rows or one[0] in ("Failed:", "Rehearsed:")])


def _facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    size, batches = result["batch_size"], result["batches"]
    each = f"{size} samples" if size is not None else "made by the data"
    return [
        ("device", printable(str(result["device"]))),
        ("parameters", f"{result['parameters']:,}"),
        ("batches", f"{each}; {result['largest']}"),
        ("epoch", f"{batches:,} batches" if batches is not None else "its length is unknown"),
    ]


def _estimates(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("memory", f"{decimal(result['peak_bytes'])} of {decimal(result['available_bytes'])}")]
    rows.append(("largest batch size", _largest(result)))
    if result["epoch_seconds"] is not None:
        rows.append(("time per epoch", f"about {duration(result['epoch_seconds'])}"))
        total = duration(result["total_seconds"])
        rows.append((f"{result['epochs']} epochs", f"about {total}"))
    if result["run_bytes"] is not None:
        rows.append(("run directory", f"about {decimal(result['run_bytes'])}"))
    return rows


def _largest(result: Mapping[str, Any]) -> str:
    largest, size, batches = (
        result[name] for name in ("largest_batch_size", "batch_size", "batches")
    )
    if largest is None:
        return "unknown: a step needs little memory"
    if batches is not None and largest >= size * batches:
        return "the whole data set fits"
    return f"about {largest:,} samples, in 90 % of the memory"


def _seconds(value: float) -> str:
    return duration(value) if value >= 1 else f"{1000 * value:.1f}ms"
