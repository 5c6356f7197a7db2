"""Classifiers and an autoencoder for MNIST."""

from __future__ import annotations

from torch import nn

from flodl.ddp_bench.models.task import (
    ACCURACY,
    SQUARED_ERROR,
    Task,
    adam,
    classification,
    reconstruction,
)


def _logistic() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def _lenet() -> nn.Module:
    """LeNet-5 with batch normalization (LeCun et al., 1998; Ioffe and Szegedy, 2015)."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


LOGISTIC = Task(
    name="logistic",
    data="mnist",
    build=_logistic,
    loss=classification,
    judgement=ACCURACY,
    lr=1e-3,
    optimizer=adam,
    epochs=5,
    reference=0.92,
)
MLP = Task(
    name="mlp",
    data="mnist",
    build=_mlp,
    loss=classification,
    judgement=ACCURACY,
    lr=1e-3,
    optimizer=adam,
    epochs=5,
    reference=0.975,
)
LENET = Task(
    name="lenet",
    data="mnist",
    build=_lenet,
    loss=classification,
    judgement=ACCURACY,
    lr=1e-3,
    optimizer=adam,
    epochs=5,
    reference=0.99,
)


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
