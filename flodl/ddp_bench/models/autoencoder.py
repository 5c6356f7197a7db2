"""A convolutional autoencoder for MNIST."""

from __future__ import annotations

from torch import nn

from flodl.ddp_bench.models.task import SQUARED_ERROR, Task, adam, reconstruction


def _autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 3, stride=2, padding=1, output_padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 3, stride=2, padding=1, output_padding=1),
        nn.Sigmoid(),
    )


CONV_AE = Task(
    name="conv-ae",
    data="mnist",
    build=_autoencoder,
    loss=reconstruction,
    judgement=SQUARED_ERROR,
    lr=1e-3,
    optimizer=adam,
    epochs=5,
    own_target=True,
)
