"""How well the ghost cluster foretells: its figures beside trainings of real processes.

Simulated ranks on the CPU train a tiny model, every batch padded to the time it is declared to
take and every average by that of the exchange. The figures are batches per second over a whole
training, warm-up included, as the ranks themselves measured it; starting the processes is not part
of it.

    python -m benchmarks.ghost [--seconds 10] [--output docs/benchmarks/ghost.md]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from benchmarks import ghost_exchange
from benchmarks.measure import (
    Bar,
    command_line,
    page,
    publish,
    read_options,
    table,
)
from flodl import Batch, TensorDataSet, Trainer
from flodl.ranks.planning.elche import ElCheConfig
from flodl.ranks.planning.schedule import ScheduleConfig
from flodl.ranks.settings import Policy
from flodl.ranks.simulate import Cluster, Prediction, choose, predict

BATCH = 4
WIDTH = 4
ENOUGH = Bar(0.95, least=True)
"""The chosen mode is good if it reaches this share of the fastest."""

MANY = (2, 8, 64, 256)
"""Numbers of ranks that are predicted and not measured."""

CLUSTERS = (
    Cluster(ms=(40, 100), sync_ms=15),
    Cluster(ms=(25, 40, 100), sync_ms=15),
    Cluster(ms=(40, 40), sync_ms=2),
    Cluster(ms=(30, 90), sync_ms=15),
    Cluster(ms=(20, 50), sync_ms=30),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was foretold for a cluster and what its ranks then did.

    Attributes:
        cluster: Speeds and cost.
        foretold: Prediction of each policy.
        measured: Batches per second of each policy.
        chosen: What ``fdl plan --simulate`` recommends.
    """

    cluster: Cluster
    foretold: Mapping[Policy, Prediction]
    measured: Mapping[Policy, float]
    chosen: Policy

    @property
    def name(self) -> str:
        """How the page calls the cluster."""
        paces = "/".join(f"{pace:g}" for pace in self.cluster.ms)
        return f"{paces} ms, average {self.cluster.average_ms:g} ms"

    @property
    def best(self) -> Policy:
        """The policy that was the fastest."""
        return max(self.measured, key=lambda policy: self.measured[policy])

    @property
    def reached(self) -> float:
        """Batches per second of the chosen policy, as a share of the fastest."""
        return self.measured[self.chosen] / self.measured[self.best]


def model(device: torch.device) -> nn.Module:
    """A model whose own time does not matter."""
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WIDTH).to(device)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(parameters, lr=1e-3)


def step(trained: nn.Module, batch: Batch) -> Tensor:
    """Loss of one batch."""
    x, y = batch
    return mse_loss(cast("Tensor", trained(x)), y)


def measured(cluster: Cluster, policy: Policy, batches: int) -> float:
    """Train in real processes; return their batches per second."""
    draw = torch.Generator().manual_seed(1)
    samples = torch.randn(batches * BATCH, WIDTH, generator=draw)
    handle = (
        Trainer.builder(model, optimizer, step)
        .dataset(TensorDataSet(samples, samples))
        .batch_size(BATCH)
        .num_epochs(1)
        .policy(policy)
        .ranks(len(cluster.ms))
        .simulate_ms(cluster.ms)
        .simulate_sync_ms(cluster.average_ms)
        .max_restarts(0)
        .engine("eager")
        .progress(False)
        .run()
    )
    epochs = handle.poll_metrics()
    handle.join()
    if not epochs:
        raise RuntimeError(f"{policy} on {cluster.ms} ended without an epoch")
    return 1000 * batches / epochs[0].epoch_ms


def compared(cluster: Cluster, seconds: float) -> Comparison:
    """Predict, choose, and then see."""
    batches = round(seconds * cluster.capacity(1000))
    config = ScheduleConfig(
        elche=ElCheConfig(world_size=len(cluster.ms)),
        policy=Policy.AUTO,
        epochs=1,
        batches_per_epoch=batches,
    )
    predictions = predict(cluster, config)
    foretold = {found.policy: found for found in predictions if found.policy is not None}
    return Comparison(
        cluster=cluster,
        foretold=foretold,
        measured={policy: measured(cluster, policy, batches) for policy in foretold},
        chosen=choose(predictions)[0],
    )


def figures(comparison: Comparison) -> list[list[str]]:
    """Rows of one cluster: a policy each."""
    return [
        [
            comparison.name,
            policy.value,
            f"{found.batches_per_s:.2f}",
            f"{comparison.measured[policy]:.2f}",
            f"{comparison.measured[policy] / found.batches_per_s:.3f}",
        ]
        for policy, found in comparison.foretold.items()
    ]


def choice(comparison: Comparison) -> list[str]:
    """Row of one cluster: what is recommended and what that is worth."""
    return [
        comparison.name,
        comparison.chosen.value,
        comparison.best.value,
        f"{comparison.reached:.3f}",
        ENOUGH.verdict(comparison.reached),
    ]


def manyfold() -> str:
    """Say what the formula of the exchange makes of many ranks: predictions alone."""
    rows = []
    for ranks in MANY:
        cluster = Cluster(ms=(40, 100) * (ranks // 2))
        config = ScheduleConfig(
            elche=ElCheConfig(world_size=ranks),
            policy=Policy.AUTO,
            epochs=5,
            batches_per_epoch=175 * ranks,
        )
        foretold = {found.mode: found.efficiency for found in predict(cluster, config)}
        rows.append(
            [
                str(ranks),
                f"{cluster.average_ms:.1f}",
                *(f"{foretold[mode]:.3f}" for mode in ("sync", "cadence", "async", "torch-ddp")),
            ]
        )
    header = ["ranks", "average ms", "sync", "cadence", "async", "torch-ddp"]
    return f"""## Many ranks, predicted

Part of the sum of speeds. Half of the ranks take 40 ms per batch and half 100 ms. An average takes
what the default of `Exchange` says: a ResNet-18 on 10 Gbit/s Ethernet.

{table(header, rows)}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 where a choice was not good enough."""
    parser = command_line("ghost", __doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="how long each training would take if no rank ever waited (default 10)",
    )
    options = read_options(parser, argv, seconds=1.0)
    torch.set_num_threads(1)
    clusters = CLUSTERS[: 1 if options.quick else None]
    comparisons = [compared(cluster, options.seconds) for cluster in clusters]
    rates = table(
        ["cluster", "policy", "predicted /s", "measured /s", "measured / predicted"],
        [row for comparison in comparisons for row in figures(comparison)],
    )
    choices = table(
        ["cluster", "recommended", "fastest", "of the fastest", "at least"],
        [choice(comparison) for comparison in comparisons],
    )
    exchange = [] if options.quick else [ghost_exchange.section()]
    text = page(
        options,
        "The ghost cluster: predicted and measured",
        "Real processes over Gloo on one machine, every batch and every average padded to the "
        "declared time. Batches per second of a whole training without the start of the "
        "processes; one training each.",
        rates,
        "## What `fdl plan --simulate` recommends",
        choices,
        manyfold().rstrip(),
        *exchange,
        packages=("torch", "flodl"),
    )
    publish(text, options.output)
    return 0 if all(ENOUGH.passes(each.reached) for each in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
