"""Models that predict a text character by character."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flodl.ddp_bench.models.task import CHARACTER_LOSS, Task, adam, classification
from flodl.nn.schedule import CosineScheduler, Scheduler, WarmupScheduler

CHARACTERS = 65
WINDOW = 128


class CharRnn(nn.Module):
    """Embedding, two LSTM layers and a linear layer: ``[B, T]`` int64 to logits ``[B, T, 65]``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 128)
        self.lstm = nn.LSTM(128, 256, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(256, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; every window begins with an empty state."""
        hidden, _ = self.lstm(self.embedding(x))
        logits: Tensor = self.head(hidden)
        return logits


class GptNano(nn.Module):
    """A decoder of four pre-norm blocks (a small version of Radford et al., 2019).

    ``[B, T]`` int64, with T up to 128, to logits ``[B, T, 65]``.

    Args:
        width: Numbers of a position.
        depth: Number of blocks.
        heads: Of each attention.
    """

    def __init__(self, width: int = 128, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(WINDOW, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                dim_feedforward=4 * width,
                dropout=0.1,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; a character attends to itself and to earlier ones."""
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        hidden = self.characters(x) + self.positions.weight[:length]
        for block in self.blocks:
            hidden = block(hidden, src_mask=future, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def _initialise(module: nn.Module) -> None:
    """Set small normal weights as in GPT-2; torch's default embeddings are fifty times larger."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def _rmsprop(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=lr, alpha=0.99)


def _warm_cosine(lr: float, batches: int) -> Scheduler:
    """Return a linear warm-up over a fifth of the training, then a cosine to 1e-5."""
    rise = batches // 5
    fall = CosineScheduler(lr, min(1e-5, lr), max(1, batches - rise))
    return WarmupScheduler(fall, lr, rise)


CHAR_RNN = Task(
    name="char-rnn",
    data="shakespeare",
    build=CharRnn,
    loss=classification,
    judgement=CHARACTER_LOSS,
    lr=2e-3,
    optimizer=_rmsprop,
    epochs=50,
    reference=1.5,
)
GPT_NANO = Task(
    name="gpt-nano",
    data="shakespeare",
    build=GptNano,
    loss=classification,
    judgement=CHARACTER_LOSS,
    lr=3e-4,
    optimizer=adam,
    schedule=_warm_cosine,
    epochs=50,
)
