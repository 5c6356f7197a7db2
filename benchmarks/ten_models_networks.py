"""Ten networks as their users write them in plain PyTorch, with data drawn once and a loss.

Each is there in its full size and, for tests, in a small one with the same structure. ``LGN(a, b)``
stands for Linear, exact GELU, LayerNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what everyone calls it

Pair = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Iterable[Tensor]], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """A network to train and what to train it on.

    Attributes:
        name: The network's name.
        network: Makes the module; its weights come from torch's global generator.
        draw: Draws one batch, input and target, from a generator.
        loss: ``(model, batch) -> scalar``; a batch is anything that yields input and target.
        lr: Learning rate of Adam.
    """

    name: str
    network: Callable[[], nn.Module]
    draw: Callable[[torch.Generator], Pair]
    loss: Loss
    lr: float = 1e-3

    def build(self, seed: int = 0) -> nn.Module:
        """Make the module in training mode; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network().train()

    def data(self, batches: int = 50, seed: int = 1) -> list[Pair]:
        """Draw an epoch; the same seed gives the same batches, on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        return [self.draw(generator) for _ in range(batches)]


def mean_squared(model: nn.Module, batch: Iterable[Tensor]) -> Tensor:
    """Mean squared error."""
    x, y = batch
    return F.mse_loss(model(x), y)


def next_token(model: nn.Module, batch: Iterable[Tensor]) -> Tensor:
    """Cross-entropy over all positions of logits ``[B, T, V]``."""
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def lgn(width_in: int, width_out: int) -> nn.Sequential:
    """Linear, exact GELU, LayerNorm."""
    return nn.Sequential(nn.Linear(width_in, width_out), nn.GELU(), nn.LayerNorm(width_out))


def mlp(width: int, hidden: int) -> nn.Module:
    """``[B, width]`` to the same, through four wide layers."""
    return nn.Sequential(
        lgn(width, hidden),
        *(lgn(hidden, hidden) for _ in range(3)),
        nn.Linear(hidden, width),
    )


def convnet(channels: int, classes: int) -> nn.Module:
    """Five 3×3 convolutions, ``[B, 3, S, S]`` to ``[B, classes]``, halving the first four times."""
    layers: list[nn.Module] = []
    widths = [3, *(channels * 2**i for i in range(4))]
    for before, after in pairwise(widths):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    last = widths[-1]
    layers += [nn.Conv2d(last, last, 3, padding=1), nn.BatchNorm2d(last), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes))


class GruSequence(nn.Module):
    """A GRU cell in a loop over ``[B, T, width]``; the last state answers, ``[B, width]``."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, hidden)
        self.head = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Read the sequence."""
        h = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for step in range(x.shape[1]):
            h = self.cell(x[:, step], h)
        y: Tensor = self.head(h)
        return y


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each followed by its LayerNorm (Vaswani et al. 2017)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, width]`` to the same."""
        attended, _ = self.attention(x, x, x)
        x = self.norm1(x + attended)
        y: Tensor = self.norm2(x + self.feed_forward(x))
        return y


class Transformer(nn.Module):
    """Tokens ``[B, T]`` to logits ``[B, T, vocabulary]``; learned positions, no mask."""

    def __init__(self, vocabulary: int, length: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(EncoderLayer(width, 8, hidden) for _ in range(4))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Predict."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.head(x)
        return y


class LstmSequence(nn.Module):
    """Two LSTM layers over ``[B, T, width]``; the last step answers, ``[B, width]``."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Read the sequence."""
        states, _ = self.lstm(x)
        y: Tensor = self.head(states[:, -1])
        return y


def autoencoder(channels: int) -> nn.Module:
    """Images ``[B, 3, S, S]`` to the same through ``[B, 8·channels, S/16, S/16]``."""
    widths = [3, *(channels * 2**i for i in range(4))]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    for before, after in zip(widths[:1:-1], widths[-2:0:-1], strict=True):
        layers += [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(widths[1], 3, 4, 2, 1), nn.Tanh())


class ResidualTower(nn.Module):
    """``x + LGN(x)`` with blocks of their own, between two Linear layers."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.entry = nn.Linear(width, width)
        self.blocks = nn.ModuleList(lgn(width, width) for _ in range(blocks))
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, width]`` to the same."""
        x = self.entry(x)
        for block in self.blocks:
            x = x + block(x)
        y: Tensor = self.exit(x)
        return y


class GatedRouting(nn.Module):
    """A softmax gate over experts that all run; their outputs are added by weight."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.entry = nn.Sequential(nn.Linear(width, width), nn.GELU())
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(lgn(width, width) for _ in range(experts))
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, width]`` to the same."""
        x = self.entry(x)
        weights = torch.softmax(self.gate(x), dim=-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)  # [B, experts, width]
        y: Tensor = self.exit((outputs * weights.unsqueeze(-1)).sum(dim=1))
        return y


class Refinement(nn.Module):
    """One block applied again and again, ``x + LGN(x)`` with shared weights."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.entry = lgn(width, width)
        self.block = lgn(width, width)
        self.exit = nn.Linear(width, width)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        """``[B, width]`` to the same."""
        x = self.entry(x)
        for _ in range(self.times):
            x = x + self.block(x)
        y: Tensor = self.exit(x)
        return y


def normal(inputs: tuple[int, ...], targets: tuple[int, ...], generator: torch.Generator) -> Pair:
    """Standard normal input and target, both with the batch first."""
    return torch.randn(inputs, generator=generator), torch.randn(targets, generator=generator)


def itself(shape: tuple[int, ...], generator: torch.Generator) -> Pair:
    """A standard normal input that is its own target."""
    x = torch.randn(shape, generator=generator)
    return x, x


def tokens(shape: tuple[int, ...], vocabulary: int, generator: torch.Generator) -> Pair:
    """Input and target tokens ``[B, T]``."""
    x = torch.randint(vocabulary, shape, generator=generator)
    return x, torch.randint(vocabulary, shape, generator=generator)


def rows(batch: int, width: int) -> Callable[[torch.Generator], Pair]:
    """Batches ``[batch, width]`` with targets of the same shape."""
    return partial(normal, (batch, width), (batch, width))


def networks(*, small: bool = False) -> dict[str, Benchmark]:
    """All ten by name.

    Args:
        small: Tiny sizes with the same structure: milliseconds for a step, for tests.
    """
    b, w, image = (4, 16, 32) if small else (256, 1024, 64)
    half, length = w // 2, 3 if small else 50
    quarter = w // 4
    channels, pictures, vocabulary = (4, 4, 32) if small else (64, 128, 8192)
    positions, sequences = (6, 3) if small else (128, 128)
    texts = 2 if small else 32
    sequence = partial(normal, (sequences, length, quarter), (sequences, quarter))
    photos = (pictures, 3, image, image)
    return {
        benchmark.name: benchmark
        for benchmark in (
            Benchmark(
                name="mlp", network=partial(mlp, w, 2 * w), draw=rows(b, w), loss=mean_squared
            ),
            Benchmark(
                name="convnet",
                network=partial(convnet, channels, 100),
                draw=partial(normal, photos, (pictures, 100)),
                loss=mean_squared,
            ),
            Benchmark(
                name="gru_seq",
                network=partial(GruSequence, quarter, half),
                draw=sequence,
                loss=mean_squared,
            ),
            Benchmark(
                name="transformer",
                network=partial(Transformer, vocabulary, positions, half, 2 * w),
                draw=partial(tokens, (texts, positions), vocabulary),
                loss=next_token,
                lr=1e-4,
            ),
            Benchmark(
                name="lstm_seq",
                network=partial(LstmSequence, quarter, half),
                draw=sequence,
                loss=mean_squared,
            ),
            Benchmark(
                name="conv_autoenc",
                network=partial(autoencoder, channels),
                draw=partial(itself, (2 if small else 64, 3, image, image)),
                loss=mean_squared,
            ),
            Benchmark(
                name="residual_tower",
                network=partial(ResidualTower, w, 12),
                draw=rows(b, w),
                loss=mean_squared,
            ),
            Benchmark(
                name="gated_routing",
                network=partial(GatedRouting, half, 8),
                draw=rows(b, half),
                loss=mean_squared,
            ),
            Benchmark(
                name="iterative_refine",
                network=partial(Refinement, w, 8),
                draw=rows(b, w),
                loss=mean_squared,
            ),
            Benchmark(
                name="feedback_fixed",
                network=partial(Refinement, half, 10),
                draw=rows(b // 2, half),
                loss=mean_squared,
            ),
        )
    }
