"""Print what every mode would achieve: ``python -m flodl.distributed.ghost --simulate 40,100``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict

from flodl.distributed.config import Policy
from flodl.distributed.ghost.cluster import Cluster
from flodl.distributed.ghost.prediction import Prediction, choose, predict
from flodl.distributed.planning.elche import ElCheConfig
from flodl.distributed.planning.scheduler import ScheduleConfig

MOST_BATCHES = 10_000_000
"""More would take minutes to simulate and tell nothing new."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code; bad arguments end the program with 2."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.epochs * given.batches > MOST_BATCHES:
        parser.error(f"--epochs times --batches must not exceed {MOST_BATCHES:,}")
    cluster = Cluster(ms=given.simulate, sync_ms=given.sync_ms)
    config = ScheduleConfig(
        elche=ElCheConfig(world_size=len(cluster.ms)),
        policy=Policy.AUTO,
        epochs=given.epochs,
        batches_per_epoch=given.batches,
    )
    predictions = predict(cluster, config, horizon=None)
    text = (
        _json(cluster, config, predictions) if given.json else _page(cluster, config, predictions)
    )
    sys.stdout.write(text + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flodl.distributed.ghost",
        description="Predict how fast a training in several ranks would be in every mode.",
    )
    parser.add_argument(
        "--simulate",
        type=_paces,
        required=True,
        metavar="MS,MS",
        help="milliseconds per batch of each rank, such as 40,100",
    )
    parser.add_argument(
        "--sync-ms",
        type=_duration,
        default=15.0,
        metavar="MS",
        help="milliseconds of one averaging (default 15)",
    )
    parser.add_argument(
        "--batches", type=_positive, default=350, metavar="N", help="per epoch (default 350)"
    )
    parser.add_argument("--epochs", type=_positive, default=5, metavar="N", help="(default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _paces(text: str) -> tuple[float, ...]:
    paces = tuple(_duration(part) for part in text.split(","))
    if not all(paces):
        raise argparse.ArgumentTypeError(f"{text!r}: no batch takes 0 ms; write what it takes")
    if len(paces) < 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} is one rank; write the milliseconds of at least two, such as 40,100"
        )
    return paces


def _duration(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds, such as 40")
    return value


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _json(cluster: Cluster, config: ScheduleConfig, predictions: Sequence[Prediction]) -> str:
    policy, reason = choose(predictions)
    form = {
        "ms": cluster.ms,
        "sync_ms": cluster.sync_ms,
        "epochs": config.epochs,
        "batches": config.batches_per_epoch,
        "predictions": [asdict(found) for found in predictions],
        "chosen": policy,
        "reason": reason,
    }
    return json.dumps(form, indent=2)


def _page(cluster: Cluster, config: ScheduleConfig, predictions: Sequence[Prediction]) -> str:
    rows = [
        ("mode", "batches/s", "of the sum", "time", "idle per rank", "exchanging", "exchanges"),
        *(_row(found) for found in predictions),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
    paces = ", ".join(f"{pace:g}" for pace in cluster.ms)
    ideal = sum(1000 / pace for pace in cluster.ms)
    _, reason = choose(predictions)
    head = (
        f"{len(cluster.ms)} ranks with {paces} ms per batch, {cluster.sync_ms:g} ms per averaging; "
        f"{config.epochs} × {config.batches_per_epoch} batches.\n"
        f"All ranks together could train {ideal:.1f} batches/s.\n"
    )
    return "\n".join([head, *lines, "", f"With mode auto: {reason}."])


def _row(found: Prediction) -> tuple[str, ...]:
    return (
        found.mode,
        f"{found.batches_per_s:.1f}",
        f"{found.efficiency:.0%}",
        f"{found.ms / 1000:.1f} s",
        " ".join(f"{share:.0%}" for share in found.idle),
        f"{found.communication:.1%}",
        str(found.exchanges),
    )


if __name__ == "__main__":
    sys.exit(main())
