"""Predict the speed of every mode: ``python -m flodl.ranks.simulate --simulate 40,100``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict

from flodl.ranks.planning.elche import ElCheConfig
from flodl.ranks.planning.schedule import ScheduleConfig
from flodl.ranks.settings import Policy
from flodl.ranks.simulate import Prediction, choose, predict
from flodl.ranks.simulate.cluster import (
    DEFAULT_BANDWIDTH,
    DEFAULT_BYTES,
    DEFAULT_LATENCY_MS,
    Cluster,
    Exchange,
)
from flodl.terminal import aligned

MOST_BATCHES = 10_000_000
"""Limit of batches; more would take minutes to simulate and show nothing new."""
_SHOWN_RANKS = 8
"""Up to this number of ranks, the values of each rank are printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the prediction and return the exit code; bad arguments exit with 2."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.epochs * given.batches > MOST_BATCHES:
        parser.error(f"--epochs times --batches must not exceed {MOST_BATCHES:,}")
    exchange = Exchange(
        bytes=given.bytes, bandwidth=given.bandwidth * 1e9 / 8, latency_ms=given.latency
    )
    cluster = Cluster(ms=given.simulate, exchange=exchange, sync_ms=given.sync_ms)
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
        prog="python -m flodl.ranks.simulate",
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
        metavar="MS",
        help="milliseconds of one average of these ranks, as measured; replaces the three below",
    )
    parser.add_argument(
        "--bytes",
        type=_positive,
        default=DEFAULT_BYTES,
        metavar="N",
        help="bytes that are averaged, 4 per float32 parameter (default: a ResNet-18)",
    )
    parser.add_argument(
        "--bandwidth",
        type=_rate,
        default=DEFAULT_BANDWIDTH * 8 / 1e9,
        metavar="GBIT",
        help="Gbit/s between two ranks (default 10)",
    )
    parser.add_argument(
        "--latency",
        type=_duration,
        default=DEFAULT_LATENCY_MS,
        metavar="MS",
        help="milliseconds of one message (default 0.05)",
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds, such as 40")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of Gbit/s above 0, such as 10")
    return value


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _json(cluster: Cluster, config: ScheduleConfig, predictions: Sequence[Prediction]) -> str:
    policy, reason = choose(predictions)
    form = {
        "schema_version": 1,
        "ms": cluster.ms,
        "sync_ms": cluster.average_ms,
        "exchange": asdict(cluster.exchange) if cluster.sync_ms is None else None,
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
    paces = _paces_told(cluster.ms)
    ideal = sum(1000 / pace for pace in cluster.ms)
    policy, reason = choose(predictions)
    head = (
        f"{len(cluster.ms)} ranks with {paces} ms per batch; "
        f"{config.epochs} × {config.batches_per_epoch} batches.\n"
        f"{_average_told(cluster)}.\n"
        f"All ranks together could train {ideal:.1f} batches/s.\n"
    )
    return "\n".join(
        [head, *aligned(rows), "", f"Recommended: {reason}. --policy {policy} chooses it."]
    )


def _paces_told(paces: Sequence[float]) -> str:
    shown = [f"{pace:g}" for pace in paces[:_SHOWN_RANKS]]
    return ", ".join(shown if len(paces) <= _SHOWN_RANKS else [*shown, "…"])


def _average_told(cluster: Cluster) -> str:
    told = f"{cluster.average_ms:.4g} ms per averaging"
    if cluster.sync_ms is not None:
        return told
    wire = cluster.exchange
    return (
        f"{told} ({wire.bytes / 1e6:.4g} MB at {wire.bandwidth * 8 / 1e9:g} Gbit/s and "
        f"{wire.latency_ms:g} ms per message)"
    )


def _row(found: Prediction) -> tuple[str, ...]:
    return (
        found.mode,
        f"{found.batches_per_s:.1f}",
        f"{found.efficiency:.0%}",
        f"{found.ms / 1000:.1f} s",
        _idle_told(found.idle),
        f"{found.communication:.1%}",
        str(found.exchanges),
    )


def _idle_told(idle: Sequence[float]) -> str:
    if len(idle) <= _SHOWN_RANKS:
        return " ".join(f"{share:.0%}" for share in idle)
    return f"{min(idle):.0%} to {max(idle):.0%}"


if __name__ == "__main__":
    sys.exit(main())
