"""What virtual ranks train: samples, a network, an optimizer and the rates that are tried.

Small networks are trained for several seeds at once, as one module whose weights have a dimension
for the seeds. Every seed has its own initial weights, order of samples and shards, and its
arithmetic never touches that of another one. They share the clock, and so the windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from flodl import DataLoader, digits
from flodl.ddp_bench.data import load, prepare
from flodl.ddp_bench.models import TASKS as MODELS
from flodl.ddp_bench.models.text import GptNano
from flodl.ranks.epoch_check import permutation

SEEDS = (1000, 2000, 3000, 4000, 5000)
"""Far apart, because the order of an epoch is drawn with the seed plus its number."""
HELD_OUT = 128
"""Samples of the training part with which a learning rate is chosen."""


@final
@dataclass(frozen=True)
class Samples:
    """Samples to learn from, to choose a rate with, and to be judged by."""

    train: tuple[Tensor, Tensor]
    choose: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@final
@dataclass(frozen=True)
class Task:
    """What is trained, and what a batch of it costs on the virtual clock."""

    samples: Callable[[], Samples]
    network: Callable[[Sequence[int]], nn.Module]
    """Builds the network for some seeds."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Mean loss of each seed, ``[seeds]``, from outputs ``[seeds, B, ...]`` and targets."""
    seeds: tuple[tuple[int, ...], ...]
    """The seeds of each row."""
    batch: int
    epochs: int
    rates: tuple[float, ...]
    optimizer: Callable[[Any, float], torch.optim.Optimizer]
    batch_ms: float
    """Milliseconds of a batch on the fastest rank: given, not measured."""
    bytes: int
    """Bytes of an exchange: given."""
    about: str
    momenta: tuple[float, ...] = (0.5,)
    """Momenta of the outer optimizer that are tried."""

    @property
    def batches(self) -> int:
        """Batches of an epoch; incomplete ones are dropped."""
        return len(self.samples().train[1]) // self.batch


def _adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr, fused=True)


def _adamw(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, fused=True)


def _sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4, fused=True)


# --- MLP on digits -------------------------------------------------------------------------------


@final
class Perceptrons(nn.Module):
    """One perceptron 64-64-64-10 per seed, trained beside each other without touching."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        single = []
        for seed in seeds:
            torch.manual_seed(seed)
            single.append([nn.Linear(*shape) for shape in ((64, 64), (64, 64), (64, 10))])
        layers = list(zip(*single, strict=True))
        self.weights = nn.ParameterList(
            torch.stack([one.weight.detach().T for one in layer]) for layer in layers
        )
        self.biases = nn.ParameterList(
            torch.stack([one.bias.detach()[None] for one in layer]) for layer in layers
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[seeds, B, 64] -> [seeds, B, 10]``."""
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x.relu() if number else x, weight)
        return x


@cache
def _digits() -> Samples:
    def part(split: Any, count: int) -> tuple[Tensor, Tensor]:
        source = digits(split)
        batch = next(iter(DataLoader(source, count, shuffle=False, names=["image", "label"])))
        return batch["image"].flatten(1), batch["label"]

    inputs, labels = part("train", 1408)
    test_inputs, test_labels = part("test", 359)
    mixed = torch.from_numpy(permutation(len(labels), 0)).long()
    chosen, rest = mixed[:HELD_OUT], mixed[HELD_OUT:]
    return Samples(
        (inputs[rest], labels[rest]), (inputs[chosen], labels[chosen]), (test_inputs, test_labels)
    )


def _per_seed(logits: Tensor, targets: Tensor) -> Tensor:
    losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(len(logits), -1).mean(1)


# --- Tasks of ddp-bench, one seed per row --------------------------------------------------------


@final
class _Single(nn.Module):
    """A network of one seed, with the dimension for seeds in its inputs and outputs."""

    def __init__(self, build: Callable[[], nn.Module], seeds: Sequence[int]) -> None:
        super().__init__()
        (seed,) = seeds
        torch.manual_seed(seed)
        self.inner = build()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x[0])
        return found[None]


@cache
def _text() -> Samples:
    task = MODELS["gpt-nano"]
    data = load(task.data, "packaged", Path(), batch_size=16)
    train, test = (
        prepare(task, *(each.clone() for each in part.tensors)) for part in (data.train, data.test)
    )
    mixed = torch.from_numpy(permutation(len(train[1]), 0)).long()
    # Unequal shards are parts of the text, one after the other.
    chosen, rest = mixed[:HELD_OUT], mixed[HELD_OUT:].sort().values
    return Samples((train[0][rest], train[1][rest]), (train[0][chosen], train[1][chosen]), test)


NOISE = 16.0
"""Deviation of the noise of generated images; the best that is possible follows from it."""


@cache
def prototypes() -> Tensor:
    """Smooth random images, one per class, ``[10, 3, 32, 32]``, each with variance 1."""
    drawn = torch.randn(10, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    smooth = interpolate(drawn, size=(32, 32), mode="bicubic", align_corners=False)
    return smooth / smooth.std((1, 2, 3), keepdim=True)


@cache
def generated() -> Samples:
    """Images of known difficulty: a prototype in white noise.

    No classifier is better than to take the nearest prototype, which is right for 0.95 of them.
    """

    def part(count: int, seed: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 10, (count,), generator=draw)
        noise = torch.randn(count, 3, 32, 32, generator=draw)
        return (prototypes()[labels] + NOISE * noise) / NOISE, labels

    return Samples(part(5_120, 1), part(512, 2), part(1_024, 3))


def _of(name: str) -> Callable[[Sequence[int]], nn.Module]:
    return lambda seeds: _Single(MODELS[name].build, seeds)


def _large_gpt(seeds: Sequence[int]) -> nn.Module:
    return _Single(partial(GptNano, width=384, depth=6, heads=6), seeds)


def _next_characters(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits[0].flatten(0, 1), targets[0].flatten())[None]


TASKS: Mapping[str, Task] = {
    "MLP": Task(
        _digits, Perceptrons, _per_seed, (SEEDS,), 16, 15, (1e-3, 3e-3, 1e-2), _adam, 10.0,
        1_250_000,
        "perceptron 64-64-64-10 with Adam on 1280 digits, 16 per batch, 15 epochs", (0.5, 0.9),
    ),
    "ResNet-20, generated": Task(
        generated, _of("resnet"), _per_seed, ((SEEDS[0],),), 32, 5, (0.1,), _sgd, 100.0,
        4 * 272_474,
        "ResNet-20 with SGD on 5,120 generated images of 3 × 32 × 32, 32 per batch, 5 epochs; no "
        "classifier can be right for more than 0.95 of them",
    ),
    "GPT of 10 M": Task(
        _text, _large_gpt, _next_characters, ((SEEDS[0],),), 16, 1, (1e-3,), _adamw, 1500.0,
        4 * 10_746_689,
        "GPT of 10.7 million parameters with AdamW on packaged Shakespeare, 16 windows of 128 "
        "characters per batch, 1 epoch",
    ),
}  # fmt: skip


@torch.no_grad()
def judged_by(
    task: Task, model: nn.Module, part: tuple[Tensor, Tensor], seeds: int
) -> tuple[Tensor, Tensor]:
    """Return loss and accuracy of every seed on some samples."""
    model.eval()
    inputs, targets = part
    losses, right = [], []
    for own, wanted in zip(torch.split(inputs, 512), torch.split(targets, 512), strict=True):
        many = own.expand(seeds, *own.shape)
        outputs, goals = model(many), wanted.expand(seeds, *wanted.shape)
        losses.append(task.loss(outputs, goals) * len(own))
        hits = (outputs.argmax(-1) == goals).double()
        right.append(hits.flatten(1).mean(1) * len(own))
    model.train()
    count = len(inputs)
    return torch.stack(losses).sum(0) / count, torch.stack(right).sum(0) / count


# --- Which samples a rank gets -------------------------------------------------------------------


@final
class Order:
    """The samples of every batch, one row per seed.

    Args:
        samples: Number of samples.
        batch: Samples of a batch.
        seeds: The seeds.
        labels: For shards of unequal kind: the samples sorted by these are cut into two pieces per
            rank, and each rank draws from two of them only (McMahan et al., 2017). None: every
            batch is drawn from all samples, in the order of flodl's loader.
        ranks: Number of ranks.

    Attributes:
        seed: The first seed.
        seeds: Their number.
        by_shards: Whether every rank has its own samples.
    """

    def __init__(
        self, samples: int, batch: int, seeds: Sequence[int], labels: Tensor | None, ranks: int
    ) -> None:
        self._samples, self._batch, self._drawn = samples, batch, tuple(seeds)
        self._length, self.by_shards = samples // batch, labels is not None
        self.seed, self.seeds = seeds[0], len(seeds)
        self._epochs: dict[int, Tensor] = {}
        self._shards = None if labels is None else _shards(labels, ranks, seeds)
        self._ahead = [torch.empty(len(seeds), 0, dtype=torch.long)] * ranks
        self._turns = [0] * ranks

    def rows(self, rank: int, numbers: Sequence[int], part: slice = slice(None)) -> Tensor:
        """Return ``[seeds, samples]`` for some batches of an epoch; of them, a part.

        Args:
            rank: The rank that trains them.
            numbers: Batches, counted through all epochs.
            part: Samples of all these batches that are meant.
        """
        if self._shards is not None:
            count = len(range(len(numbers) * self._batch)[part])
            return self._of_shard(rank, count)
        epoch, first = divmod(numbers[0], self._length)
        start = first * self._batch
        stop = start + len(numbers) * self._batch
        return self._epoch(epoch)[:, start:stop][:, part]

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            self._epochs = {kept: self._epochs[kept] for kept in self._epochs if kept >= epoch - 2}
            drawn = [
                torch.from_numpy(permutation(self._samples, seed + epoch)).long()
                for seed in self._drawn
            ]
            self._epochs[epoch] = torch.stack(drawn)
        return self._epochs[epoch]

    def _of_shard(self, rank: int, count: int) -> Tensor:
        """Take the next samples of a shard, which is gone through in a new order every time."""
        assert self._shards is not None
        shard = self._shards[rank]
        while self._ahead[rank].shape[1] < count:
            turn = 31 * rank + self._turns[rank]
            drawn = [permutation(shard.shape[1], seed + turn) for seed in self._drawn]
            places = torch.stack([torch.from_numpy(each).long() for each in drawn])
            self._ahead[rank] = torch.cat([self._ahead[rank], shard.gather(1, places)], 1)
            self._turns[rank] += 1
        found, self._ahead[rank] = self._ahead[rank].tensor_split([count], 1)
        return found


def _shards(labels: Tensor, ranks: int, seeds: Sequence[int]) -> list[Tensor]:
    """Return the samples of each rank, ``[seeds, samples]``."""
    size = len(labels) // (2 * ranks)
    ordered = []
    for seed in seeds:
        pieces = labels.argsort(stable=True)[: 2 * ranks * size].view(2 * ranks, size)
        ordered.append(pieces[torch.from_numpy(permutation(2 * ranks, seed)).long()])
    mixed = torch.stack(ordered)
    return [mixed[:, 2 * rank : 2 * rank + 2].flatten(1) for rank in range(ranks)]
