"""Layers with results one can work out in one's head."""

from __future__ import annotations

import torch
from torch import nn

from flodl.graph import FlowBuilder
from flodl.graph.modules import NamedInputModule
from flodl.graph.routing import StateAdd


def double(x):
    return x * 2


def triple(x):
    return x * 3


def column(*values):
    """A batch of samples with one number each."""
    return torch.tensor([[float(value)] for value in values])


def start():
    """A flow that begins with the graph's input as it is."""
    return FlowBuilder.from_(nn.Identity())


def linear(weight, bias):
    """A linear layer with these numbers."""
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def eye(width, bias=0.0):
    """The identity as a linear layer, plus a constant."""
    return linear(torch.eye(width).tolist(), [bias] * width)


class AddRef(NamedInputModule):
    """The stream plus the references of these names, which must all be there."""

    def __init__(self, *names):
        super().__init__()
        self.names = names

    def forward_named(self, x, refs):
        return x + sum(refs[name] for name in self.names)


class Bias(nn.Module):
    """The stream plus a learned number that starts at a given value."""

    def __init__(self, width=1, value=0.0):
        super().__init__()
        self.b = nn.Parameter(torch.full((width,), value))

    def forward(self, x):
        return x + self.b


class Recorder(nn.Module):
    """Passes the stream on (through a function), and remembers what it was given."""

    def __init__(self, function=None):
        super().__init__()
        self.function = function
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return x if self.function is None else self.function(x)


def memory(builder, tag="m"):
    """Append an addition of what it returned in the previous call."""
    return builder.through(StateAdd()).using(tag).tag(tag)
