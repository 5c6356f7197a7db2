"""How near a loop of the user's own comes to the sum of the speeds of unequal ranks.

Ranks are processes of this machine that sleep: a batch takes each of them as long as
``FLODL_SIM_MS`` says, a part of a batch that part of the time. So the exchanges are real and the
computers are not.

python -m benchmarks.setup_mode --output docs/benchmarks/setup_mode.md
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import (
    Bar,
    command_line,
    in_turns,
    page,
    publish,
    read_options,
    spread,
    table,
)
from flodl import DataLoader, LossContext, TensorDataSet, Trainer
from flodl.ranks.launch.start_ranks import launch_ranks
from flodl.ranks.settings import DdpConfig

MIXES = ((40.0, 100.0), (25.0, 40.0, 100.0), (40.0, 40.0))
SAMPLES = 70
BAR = Bar(0.85, least=True)
"""What a plain loop has to reach of the sum of the speeds of the first mix."""

WARM_UP = 60
"""Steps until the parts of the ranks have followed their speed twice."""


@dataclass(frozen=True)
class Measured:
    """What a loop came to."""

    batches_per_second: float
    ratios: tuple[float, ...]
    parts: tuple[int, ...]


def network() -> nn.Module:
    """A small perceptron: the exchange is to be seen, not the computation."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer."""
    return torch.optim.Adam(parameters)


def plain_loop(steps: int, warm_up: int) -> Measured:
    """Batches per second of a loop in which every rank iterates over the same batches."""
    setup = Trainer.setup(network(), None, adam, device="cpu")
    image, label = torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,))
    began = 0.0
    for step in range(warm_up + steps):
        if step == warm_up:
            began = time.perf_counter()
        cross_entropy(setup(image), label).backward()  # type: ignore[no-untyped-call]
        setup.step()
    seconds = time.perf_counter() - began
    return Measured(steps / seconds, setup.chunk_ratios, setup.shard_sizes)


def error(context: LossContext) -> Tensor:
    """The loss of windows."""
    return cross_entropy(context.output, context.batch["label"])


def windows(batches: int, _: int) -> Measured:
    """Batches per second of windows; the first epoch is not counted."""
    data = TensorDataSet(
        torch.randn(batches * SAMPLES, 64),
        torch.randint(10, (batches * SAMPLES,)),
        names=("image", "label"),
    )
    setup = Trainer.setup(network(), None, adam, config=DdpConfig())
    setup.set_data_loader(DataLoader(data, SAMPLES), "image")
    setup.set_loss_fn(error)
    counts: tuple[int, ...] = ()
    for epoch in range(2):
        began = time.perf_counter()
        for number, window in enumerate(setup.epoch(epoch)):
            counts = window.counts if number == 0 else counts
            setup.step()
    seconds = time.perf_counter() - began
    return Measured(batches / seconds, tuple(c / sum(counts) for c in counts), counts)


def row(name: str, ms: tuple[float, ...], found: Sequence[Measured]) -> list[str]:
    """A line of the table; the last cell is the bar, where there is one."""
    ideal = sum(1e3 / one for one in ms)
    parts = [one.batches_per_second / ideal for one in found]
    ratio, last = statistics.median(parts), found[-1]
    return [
        "/".join(f"{one:g}" for one in ms),
        name,
        f"{ratio * ideal:.2f}",
        f"{ideal:.2f}",
        f"{ratio:.3f}",
        spread(parts, ".3f"),
        " / ".join(f"{one:.3f}" for one in last.ratios),
        " / ".join(map(str, last.parts)),
        BAR.verdict(ratio) if (name, ms) == ("plain loop", MIXES[0]) else "",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("setup_mode", __doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="steps; default: %(default)s")
    options = read_options(parser, argv, rounds=1, steps=2, warm_up=1)
    loops = {"plain loop": plain_loop, "windows": windows}
    rows = []
    for ms in MIXES[: 1 if options.quick else None]:
        os.environ["FLODL_SIM_MS"] = ",".join(map(str, ms))

        def measure(name: str, ranks: int = len(ms)) -> Measured:
            sizes = (options.steps, options.warm_up)
            found: Measured = launch_ranks(loops[name], sizes, ranks, simulated=True)[0]
            return found

        found = in_turns(list(loops), measure, options.rounds, warmup=0)
        rows += [row(name, ms, each) for name, each in found.items()]
    header = ["ms per batch", "loop", "batches/s", "sum of speeds", "ratio", "spread", "parts"]
    intro = (
        f"Ranks over Gloo on one machine, {options.steps} batches of {SAMPLES} samples after a "
        f"warm-up, {options.rounds} rounds, medians. A plain loop divides every batch; windows "
        "give whole batches."
    )
    text = page(
        options,
        "Your own loop",
        intro,
        table([*header, "of one step", "at least"], rows),
        "A step of the plain loop exchanges twice. The cost of an exchange depends on the machine.",
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
