r"""Bytes, stall and loss of two ranks that send float32, bf16 or int8 over a slow cable.

Run with ``python -m benchmarks.exchange --output docs/benchmarks/exchange.md``. Each rank is a
process in a network namespace of its own, so it needs root and ``ip`` and ``tc``. The cable between
them has a limited rate; the counter of its interface gives the bytes. A transformer learns to
predict the next of random words: each word has a few likely successors, so it can be learned.

A second page is about a long cable and a large model, with the windows that the policy chooses::

    python -m benchmarks.exchange --round-trip-ms 30 --width 1024 --layers 10 --samples 2 \
        --epochs 1 --batches 400 --anchor 0 --rounds 1 --formats float32 bf16 \
        --output docs/benchmarks/exchange_far.md
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.long_cable import TUNNEL, long_cable
from benchmarks.measure import (
    command_line,
    judged,
    middle,
    page,
    publish,
    read_options,
    spread,
    table,
)
from flodl import Batch, Callback, TensorDataSet, Trainer
from flodl.ranks.averaging import backends
from flodl.train.callbacks import TrainingRun
from tests.flodl.distributed.network import CABLE, Host, two_hosts

FORMATS = ("float32", "bf16", "int8")
POLICIES = ("cadence", "async")
BARS = {"float32": 0.90, "bf16": 0.95}
"""Of the ideal, over the long cable."""
PORT = 29541
WORDS, LENGTH = 256, 32
"""Words of the language, words of a sample."""
ALONE = 20
"""Batches that each rank trains in a plain loop, while the other does so too."""
LIKELY = 4
"""Likely successors of a word."""


# --- One rank ------------------------------------------------------------------------------------


class Predictor(nn.Module):
    """A small transformer.

    Args:
        width: Of each word.
        layers: Of the transformer.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, words: Tensor) -> Tensor:
        """Return a score of each word at each place."""
        found = self.layers(self.words(words) + self.places, mask=self.mask, is_causal=True)
        scores: Tensor = self.scores(found)
        return scores


def sentences(count: int) -> Tensor:
    """Return rows of words, of which each follows from the one before by chance."""
    generator = torch.Generator().manual_seed(0)
    successors = torch.randint(WORDS, (WORDS, LIKELY), generator=generator)
    words = torch.randint(WORDS, (count,), generator=generator)
    rows = [words]
    for _ in range(LENGTH):
        chosen = torch.randint(LIKELY, (count,), generator=generator)
        words = successors[words, chosen]
        rows.append(words)
    return torch.stack(rows, 1)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of the words that come next."""
    rows = batch[0]
    scores = model(rows[:, :-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())


def sent() -> int:
    """Return the bytes that the cable of this host has taken so far."""
    interface = Path("/sys/class/net", os.environ["GLOO_SOCKET_IFNAME"])
    return int((interface / "statistics/tx_bytes").read_text())


class Times(Callback):
    """Notes when the first batch begins and the last one ends, and what was sent before it."""

    def on_train_start(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Read the counter: the model came from rank 0."""
        self.sent, self.began = sent(), time.perf_counter()

    def on_train_end(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Read the clock."""
        self.seconds = time.perf_counter() - self.began


def train_alone(options: dict[str, Any]) -> None:
    """Train a plain loop that exchanges nothing; print its batches per second."""
    torch.set_num_threads(1)
    model = Predictor(options["width"], options["layers"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    samples = options["samples"]
    rows = sentences((ALONE + 1) * samples)
    for n in range(ALONE + 1):
        if n == 1:  # the first one prepares memory
            began = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(model, Batch((rows[n * samples : (n + 1) * samples],), ("words",)))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    sys.stdout.write(json.dumps({"batches_per_s": ALONE / (time.perf_counter() - began)}))


def train_rank(options: dict[str, Any]) -> None:
    """Train on this rank, one of two; rank 0 prints its figures."""
    torch.set_num_threads(1)
    backends._WORTH_SHARING = sys.maxsize  # hosts share no memory, and these two would
    times = Times()
    builder = (
        Trainer.builder(
            lambda _: Predictor(options["width"], options["layers"]),
            lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
            loss_of,
        )
        .dataset(TensorDataSet(sentences(options["batches"] * options["samples"])))
        .batch_size(options["samples"])
        .num_epochs(options["epochs"])
        .engine("eager")
        .progress(False)
        .callbacks(times)
        .ddp({"policy": options["policy"], "exchange": options["format"]})
    )
    if options["anchor"]:
        builder = builder.anchor(options["anchor"]).max_anchor(options["anchor"])
    handle = builder.run()
    if os.environ["RANK"] != "0":
        return
    metrics = handle.poll_metrics()
    figures = {
        "parameters": sum(one.numel() for one in handle.model.parameters()),
        "averages": handle.version,
        "bytes": sent() - times.sent,
        "batches_per_s": options["batches"] * options["epochs"] / times.seconds,
        "stall_ms": sum(one.comm_ms for one in metrics),
        "busy_ms": sum(rank.busy_ms for one in metrics for rank in one.per_rank) / 2,
        "loss": metrics[-1].avg_loss,
    }
    sys.stdout.write(json.dumps(figures))


# --- Both ranks ----------------------------------------------------------------------------------


def limit(host: Host, mbit: float) -> None:
    """Limit what a host may send."""
    shape = ("tbf", "rate", f"{mbit:g}mbit", "burst", "256kb", "latency", "200ms")
    words = ("tc", "-n", host.name, "qdisc", "add", "dev", CABLE, "root", *shape)
    subprocess.run(words, check=True, capture_output=True)


def measure(hosts: Sequence[Host], options: dict[str, Any], what: str) -> list[dict[str, float]]:
    """Let a function of this module run on each host; return what they print."""
    program = f"from benchmarks.exchange import {what}; {what}({options!r})"
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank, host in enumerate(hosts):
            environ = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": str(PORT),
                "FLODL_HOST": host.name,
                "GLOO_SOCKET_IFNAME": options["interface"],
                "PYTHONPATH": str(Path(__file__).parents[1]),
            }
            running.append(
                subprocess.Popen(
                    [*host.within, sys.executable, "-c", program],
                    env=os.environ | host.environ | environ,
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            said = [process.communicate(timeout=options["timeout"])[0] for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()
    if any(process.returncode for process in running):
        raise SystemExit("a rank has failed")
    return [json.loads(text.splitlines()[-1]) for text in said if text.strip()]


def rows_of(
    found: dict[str, list[dict[str, float]]], ideal: Sequence[float], far: bool
) -> list[list[str]]:
    """Return the table: a row per policy and format.

    Args:
        found: The figures of each training, by policy and format.
        ideal: Batches per second of both plain loops together, in each round.
        far: Whether the bars of a long cable hold.
    """
    rows = []
    for name, rounds in found.items():
        policy, format = name.split()
        bytes = [one["bytes"] / one["averages"] / one["parameters"] for one in rounds]
        stalls = [one["stall_ms"] / one["averages"] for one in rounds]
        busy = [one["busy_ms"] / (one["busy_ms"] + one["stall_ms"]) for one in rounds]
        shares = [one["batches_per_s"] / whole for one, whole in zip(rounds, ideal, strict=True)]
        losses = [one["loss"] for one in rounds]
        bar = BARS.get(format) if far else None
        verdict = f"{bar:.2f} {judged(statistics.median(shares) >= bar)}" if bar else ""
        rows.append(
            [policy, format, middle([one["averages"] for one in rounds], ".0f"),
             middle(bytes, ".2f"), middle(stalls), spread(stalls, ".1f"), middle(busy, ".3f"),
             middle(shares, ".3f"), verdict, middle(losses, ".4f")]
        )  # fmt: skip
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = command_line("exchange", __doc__, rounds=3)
    parser.add_argument("--mbit", type=float, default=1000, help="per second, of the cable")
    parser.add_argument(
        "--round-trip-ms", type=float, default=0, help="of the cable; 0: as the kernel has it"
    )
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--layers", type=int, default=6, help="of the model")
    parser.add_argument("--samples", type=int, default=8, help="of a batch")
    parser.add_argument("--batches", type=int, default=200, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--anchor", type=int, default=10, help="batches of a window; 0: the policy chooses"
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    options = read_options(
        parser, argv, rounds=1, width=64, layers=1, batches=20, epochs=1, anchor=5
    )
    names = [f"{policy} {format}" for policy in POLICIES for format in options.formats]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    ideal = []
    with two_hosts() as hosts, cable_of(hosts, options):
        for _ in range(options.rounds):
            alone = measure(hosts, asked(options, names[0]), "train_alone")
            ideal.append(sum(one["batches_per_s"] for one in alone))
            for name in names:
                found[name] += measure(hosts, asked(options, name), "train_rank")
    header = ["policy", "exchange", "averages", "bytes per parameter", "stall, ms", "spread",
              "share", "of ideal", "bar", "loss"]  # fmt: skip
    rows = rows_of(found, ideal, far=bool(options.round_trip_ms))
    told = setting(options, found[names[0]][0]["parameters"])
    publish(page(options, "Small exchanges", told, table(header, rows), NOTES), options.output)


NOTES = (
    "*Bytes* are those that the interface of rank 0 has sent from its first batch on, for each "
    "average and parameter. *Stall* is the time of an average in which the ranks do not train. "
    "*Share* is the part of the time in which they do. *Of ideal* are the batches per second of "
    "both ranks, divided by those of two plain loops of torch that run at the same time and "
    "exchange nothing. *Loss* is the mean of the last epoch."
)


def setting(options: argparse.Namespace, parameters: float) -> str:
    """Say what was trained, and over which cable."""
    far = options.round_trip_ms
    seconds = parameters * 32 / (options.mbit * 1e6)
    cable = (
        f"with {far:g} ms there and back. A process carries its packets, which have up to 64 kB, "
        "because the kernel of this machine has no `netem`. It shares the processors with the "
        f"ranks; the cable alone needs {seconds:.1f} s for an average in float32"
        if far
        else "without further delay"
    )
    window = f"a window of {options.anchor} batches" if options.anchor else "windows of the policy"
    return (
        f"Two ranks on one machine, one thread each, joined by a cable of {options.mbit:g} Mbit/s "
        f"{cable}. A transformer of {parameters / 1e6:.1f} million parameters, batches of "
        f"{options.samples} samples of {LENGTH} words, {window}, {options.epochs} epochs of "
        f"{options.batches} batches, {options.rounds} rounds."
    )


def cable_of(
    hosts: Sequence[Host], options: argparse.Namespace
) -> contextlib.AbstractContextManager[None]:
    """Give the cable between the hosts its rate and its length."""
    if options.round_trip_ms:
        return long_cable(hosts, options.mbit * 1e6, options.round_trip_ms / 1e3)
    for host in hosts:
        limit(host, options.mbit)
    return contextlib.nullcontext()


def asked(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return what one training is told."""
    policy, format = name.split()
    names = ("width", "layers", "samples", "batches", "epochs", "anchor")
    return {one: getattr(options, one) for one in names} | {
        "interface": TUNNEL if options.round_trip_ms else CABLE,
        "policy": policy,
        "format": format,
        "timeout": 1800,
    }


if __name__ == "__main__":
    main()
