"""Bytes, stall and loss of two ranks that send float32, bf16 or int8 over a slow cable.

Run with ``python -m benchmarks.exchange --output docs/benchmarks/exchange.md``. Each rank is a
process in a network namespace of its own, so it needs root and ``ip`` and ``tc``. The cable between
them has a limited rate; the counter of its interface gives the bytes. A transformer learns to
predict the next of random words: each word has a few likely successors, so it can be learned.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import command_line, middle, page, publish, read_options, spread, table
from flodl import Batch, Callback, TensorDataSet, Trainer
from flodl.ranks.averaging import backends
from flodl.train.callbacks import TrainingRun
from tests.flodl.distributed.network import CABLE, Host, two_hosts

FORMATS = ("float32", "bf16", "int8")
POLICIES = ("cadence", "async")
PORT = 29541
WORDS, LENGTH, B = 256, 32, 8
"""Words of the language, words of a sample, samples of a batch."""
LIKELY = 4
"""Likely successors of a word."""
_SENT = Path("/sys/class/net") / CABLE / "statistics/tx_bytes"


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


class Beginning(Callback):
    """Reads what was sent before the first batch: the model, from rank 0."""

    def on_train_start(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Read the counter."""
        self.sent = int(_SENT.read_text())


def train_rank(options: dict[str, Any]) -> None:
    """Train on this rank, one of two; rank 0 prints its figures."""
    torch.set_num_threads(1)
    backends._WORTH_SHARING = sys.maxsize  # hosts share no memory, and these two would
    beginning = Beginning()
    handle = (
        Trainer.builder(
            lambda _: Predictor(options["width"], options["layers"]),
            lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
            loss_of,
        )
        .dataset(TensorDataSet(sentences(options["batches"] * B)))
        .batch_size(B)
        .num_epochs(options["epochs"])
        .engine("eager")
        .progress(False)
        .callbacks(beginning)
        .ddp({"policy": options["policy"], "exchange": options["format"]})
        .anchor(options["anchor"])
        .max_anchor(options["anchor"])
        .run()
    )
    if os.environ["RANK"] != "0":
        return
    metrics = handle.poll_metrics()
    figures = {
        "parameters": sum(one.numel() for one in handle.model.parameters()),
        "averages": handle.version,
        "bytes": int(_SENT.read_text()) - beginning.sent,
        "stall_ms": sum(one.comm_ms for one in metrics),
        "busy_ms": sum(rank.busy_ms for one in metrics for rank in one.per_rank) / 2,
        "loss": metrics[-1].avg_loss,
    }
    sys.stdout.write(json.dumps(figures))


# --- Both ranks ----------------------------------------------------------------------------------


def limit(host: Host, rate: str) -> None:
    """Limit what a host may send."""
    shape = ("tbf", "rate", rate, "burst", "256kb", "latency", "200ms")
    words = ("tc", "-n", host.name, "qdisc", "add", "dev", CABLE, "root", *shape)
    subprocess.run(words, check=True, capture_output=True)


def measure(hosts: Sequence[Host], options: dict[str, Any]) -> dict[str, float]:
    """Train two ranks, each on a host; return the figures of the first."""
    program = f"from benchmarks.exchange import train_rank; train_rank({options!r})"
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
    figures: dict[str, float] = json.loads(said[0].splitlines()[-1])
    return figures


def rows_of(found: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Return the table: a row per policy and format."""
    rows = []
    for name, rounds in found.items():
        policy, format = name.split()
        sent = [one["bytes"] / one["averages"] / one["parameters"] for one in rounds]
        stalls = [one["stall_ms"] / one["averages"] for one in rounds]
        shares = [one["busy_ms"] / (one["busy_ms"] + one["stall_ms"]) for one in rounds]
        losses = [one["loss"] for one in rounds]
        rows.append(
            [policy, format, middle(sent, ".2f"), middle(stalls), spread(stalls, ".1f"),
             middle(shares, ".3f"), middle(losses, ".4f")]
        )  # fmt: skip
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = command_line("exchange", __doc__, rounds=3)
    parser.add_argument("--rate", default="1gbit", help="of the cable; default: %(default)s")
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--layers", type=int, default=6, help="of the model")
    parser.add_argument("--batches", type=int, default=200, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--anchor", type=int, default=10, help="batches of a window")
    options = read_options(
        parser, argv, rounds=1, width=64, layers=1, batches=20, epochs=1, anchor=5
    )
    names = [f"{policy} {format}" for policy in POLICIES for format in FORMATS]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with two_hosts() as hosts:
        for host in hosts:
            limit(host, options.rate)
        for _ in range(options.rounds):
            for name in names:
                found[name].append(measure(hosts, asked(options, name)))
    parameters = found[names[0]][0]["parameters"]
    header = ["policy", "exchange", "bytes per parameter", "stall, ms", "spread", "share", "loss"]
    told = (
        f"Two ranks on one machine, one thread each, joined by a cable of {options.rate} without "
        f"further delay. A transformer of {parameters / 1e6:.1f} million parameters, a window of "
        f"{options.anchor} batches of {B} samples, {options.epochs} epochs of {options.batches} "
        f"batches, {options.rounds} rounds."
    )
    notes = (
        "*Bytes* are those that the interface of rank 0 has sent from its first batch on, for each "
        "average and parameter. *Stall* is the time of an average in which the ranks do not train. "
        "*Share* is the part of the time in which they do. *Loss* is the mean of the last epoch."
    )
    text = page(options, "Small exchanges", told, table(header, rows_of(found)), notes)
    publish(text, options.output)


def asked(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return what one training is told."""
    policy, format = name.split()
    names = ("width", "layers", "batches", "epochs", "anchor")
    return {one: getattr(options, one) for one in names} | {
        "policy": policy,
        "format": format,
        "timeout": 1800,
    }


if __name__ == "__main__":
    main()
