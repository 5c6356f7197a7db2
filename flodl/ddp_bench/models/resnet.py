"""ResNet-20 for CIFAR-10, as a torch module and as a flodl graph.

Source: K. He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2; shortcuts
of type B (a 1×1 convolution if the shape changes).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from flodl.ddp_bench.models.task import ACCURACY, Task, classification
from flodl.graph import FlowBuilder, Graph
from flodl.nn.schedule import MultiStepLR, Scheduler

_STAGES = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
"""Input channels, output channels, stride of the first block."""
_BLOCKS = 3


class Residual(nn.Module):
    """``relu(shortcut(x) + convolutions(x))``."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.convolutions = _convolutions(before, after, stride)
        self.shortcut = _shortcut(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, before, H, W] -> [B, after, H/stride, W/stride]``."""
        return torch.relu(self.shortcut(x) + self.convolutions(x))


def _shapes() -> list[tuple[int, int, int]]:
    """Return input channels, output channels and stride of every block."""
    return [
        (before, after, stride) if number == 0 else (after, after, 1)
        for before, after, stride in _STAGES
        for number in range(_BLOCKS)
    ]


def _convolutions(before: int, after: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
    )


def _shortcut(before: int, after: int, stride: int) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
    )


def _stem() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())


def _head() -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _resnet() -> nn.Module:
    blocks = [Residual(*shape) for shape in _shapes()]
    return nn.Sequential(_stem(), *blocks, _head())


def _resnet_graph() -> nn.Module:
    flow = FlowBuilder.from_(_stem())
    for shape in _shapes():
        main = _convolutions(*shape)
        flow = flow.also_with(_shortcut(*shape), main).through(nn.ReLU())
    return flow.through(_head()).label("resnet-20").build()


def _recorded_classification(model: nn.Module, output: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy; the graph also records the accuracy of every training batch."""
    # With torch's data parallelism the graph is inside a wrapper.
    inner = model.module if isinstance(getattr(model, "module", None), nn.Module) else model
    if isinstance(inner, Graph) and inner.training:
        inner.record_scalar("train_acc", (output.detach().argmax(dim=1) == target).float().mean())
    return classification(model, output, target)


def _sgd(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-4)


def _steps(lr: float, batches: int) -> Scheduler:
    return MultiStepLR(lr, (batches // 2, batches * 3 // 4), 0.1)


RESNET = Task(
    name="resnet",
    data="cifar10",
    build=_resnet,
    loss=classification,
    judgement=ACCURACY,
    lr=0.1,
    optimizer=_sgd,
    schedule=_steps,
    epochs=200,
    reference=0.9125,
    augment=True,
)
RESNET_GRAPH = replace(
    RESNET, name="resnet-graph", build=_resnet_graph, loss=_recorded_classification
)
