"""Graphs that no description could give back, and what they are told."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from flodl.errors import BuildError
from flodl.graph import FlowBuilder, Graph, Lambda
from flodl.graph.routing import StateAdd
from tests.rows import each_row


def double(x):
    return 2 * x


def closure(n):
    def add(x):
        return x + n

    return add


class Untold(nn.Module):
    """Forgets its argument."""

    def __init__(self, secret):
        super().__init__()
        self.kept = secret + 1


class Misleading(nn.Module):
    """What it keeps under its argument's name is another value."""

    def __init__(self, rate=1):
        super().__init__()
        self.rate = 2 * rate


class Weighted(nn.Module):
    """Takes a tensor."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)


def patched():
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: x
    return layer


def changed():
    layer = nn.Sequential(nn.Linear(2, 2))
    layer[0].weight = nn.Parameter(torch.zeros(5, 2))
    return layer


def mixed():
    layer = nn.LSTM(2, 2)
    layer.weight_hh_l0 = nn.Parameter(layer.weight_hh_l0.half())
    return layer


@each_row(
    ("module", "reason"),
    [
        (Lambda(lambda x: x), "<lambda> is local to a function"),
        (Lambda(closure(1)), "add is local to a function"),
        (Lambda(functools.partial(double)), "a partial has no name"),
        (Lambda(nn.Linear(2, 2).forward), "Linear.forward is not what its module"),
        (Untold(1), "its constructor needs 'secret'.*flodl_spec"),
        (Misleading(1), "the attribute rate is 4 instead of 2.*flodl_spec"),
        (Weighted(torch.zeros(2)), "takes a tensor as 'table'"),
        (patched(), "forward, which was replaced"),
        (changed(), "shapes"),
        (mixed(), "several dtypes"),
        (nn.LazyLinear(3), "has not seen an input"),
        (nn.Sequential(nn.ReLU(), Lambda(lambda x: x)), r"Sequential\.1.*Lambda\.function"),
        (nn.ParameterList([nn.Parameter(torch.zeros(2))]), "ParameterList"),
    ],
)  # fmt: skip
def test_a_graph_that_cannot_be_described_says_which_node_and_why(module, reason):
    graph = FlowBuilder.from_(nn.Identity()).through(module).build()
    node = graph.topology.nodes[1].id
    with pytest.raises(BuildError, match=f"cannot be described: {node}: .*{reason}"):
        graph.to_spec()


def test_a_carried_state_with_a_value_of_its_own_cannot_be_described():
    graph = (
        FlowBuilder.from_(nn.Linear(2, 2))
        .through(StateAdd())
        .using("h", init={"h": torch.ones_like})
        .tag("h")
        .build()
    )
    with pytest.raises(BuildError, match="state_read_3: 'h' begins with the value given as using"):
        graph.to_spec()


def test_a_replaced_composite_cannot_be_described():
    graph = FlowBuilder.from_(nn.Identity()).loop_body(nn.Tanh()).for_n(2).build()
    graph._modules["loop_2"] = nn.Linear(2, 2)
    with pytest.raises(BuildError, match="loop_2: a loop with a Linear in place of its module"):
        graph.to_spec()


def test_modules_nested_too_deep_cannot_be_described():
    module = nn.ReLU()
    for _ in range(150):
        module = nn.Sequential(module)
    with pytest.raises(BuildError, match="more than 100 levels of modules"):
        FlowBuilder.from_(module).build().to_spec()


def test_a_graph_of_another_class_inside_cannot_be_described():
    class Special(Graph):
        def forward(self, *inputs):
            return -super().forward(*inputs)

    plain = FlowBuilder.from_(nn.ReLU()).build()
    special = Special(plain.topology, {1: nn.ReLU()})
    with pytest.raises(BuildError, match=r"special_1: .*Special is a graph of another class"):
        FlowBuilder.from_(special).build().to_spec()


def test_parameters_that_only_the_constructor_shares_cannot_be_described():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.there = nn.Linear(2, 2)
            self.back = nn.Linear(2, 2)
            self.back.weight = self.there.weight

        def forward(self, x):
            return self.back(self.there(x))

    graph = FlowBuilder.from_(Tied()).build()
    made = Graph.from_spec(graph.to_spec(), [Tied])
    assert made.tied_1.back.weight is made.tied_1.there.weight
    graph.tied_1.back.weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(BuildError, match=r"parameters are shared.*: tied_1.there.weight, tied"):
        graph.to_spec()


def test_a_module_that_a_constructor_copies_cannot_be_described_as_shared():
    class Copying(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = nn.Linear(layer.in_features, layer.out_features)

        def forward(self, x):
            return self.layer(x)

    copied = Copying(nn.Linear(2, 2))
    graph = FlowBuilder.from_(copied).through(copied.layer).build()
    with pytest.raises(BuildError, match=r"modules are shared.*: copying_1.layer, linear_2"):
        graph.to_spec()


def test_two_classes_of_one_name_cannot_be_told_apart():
    def activation(slope):
        class Activation(nn.Module):
            def forward(self, x):
                return slope * x

        return Activation()

    graph = FlowBuilder.from_(activation(1)).through(activation(2)).build()
    with pytest.raises(BuildError, match=r"activation_2: two different things are called .*Activ"):
        graph.to_spec()
