"""What an error inside a graph tells: the node, the part of it, shapes and dtypes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.graph import FixedSelector, FlowBuilder, NamedInputModule
from tests.rows import each_row

from .layers import double, start, triple

X = torch.ones(3, 4)


class Broken(nn.Module):
    def forward(self, _x):
        raise RuntimeError("broken")


class Maybe(NamedInputModule):
    """Fails in a way of its own when the reference is missing."""

    def forward_named(self, x, refs):
        return x + refs["hint"].mean()


def notes(graph, x=X, error=RuntimeError, **inputs):
    with pytest.raises(error) as caught:
        graph(x, **inputs)
    return caught.value.__notes__


# --- Gates and switches -------------------------------------------------------------------------


@each_row("place", [0, 1, 2])
def test_an_error_in_an_expert_names_it(place):
    experts = [double, double, double]
    experts[place] = Broken()
    graph = start().gate(nn.Linear(4, 3), experts).build()
    assert notes(graph)[0] == f"in gate_2, expert {place} (Broken)"
    assert notes(graph)[1].startswith("in node gate_2")


def test_an_expert_that_returns_no_tensor_is_named():
    graph = start().gate(nn.Linear(4, 2), [double, lambda _x: None]).build()
    assert "in gate_2, expert 1 (" in notes(graph, error=TypeError)[0]
    with pytest.raises(TypeError, match=r"node gate_2\.experts\.1 returned NoneType"):
        graph(X)


def test_an_error_in_the_router_of_a_gate_names_it():
    graph = start().gate(Broken(), [double, triple]).build()
    assert notes(graph)[0] == "in gate_2, router (Broken)"
    graph = start().gate(nn.Linear(7, 2), [double, triple]).build()
    assert notes(graph)[0] == "in gate_2, router (Linear)"


def test_errors_in_a_switch_name_router_and_branch():
    graph = start().switch(Broken(), [double, triple]).build()
    assert notes(graph)[0] == "in switch_2, router (Broken)"
    graph = start().switch(FixedSelector(1), [double, Broken()]).build()
    assert notes(graph)[0] == "in switch_2, branch 1 (Broken)"


# --- Dtypes -------------------------------------------------------------------------------------


def test_an_error_about_dtypes_shows_them():
    graph = start().through(nn.Linear(4, 2)).build()
    told = notes(graph, X.double())
    assert told == [
        "in node linear_2, input shapes: [3, 4]",
        "input dtypes: float64; its parameters: float32",
    ]
    assert "input dtypes: int64; its parameters: float32" in notes(graph, X.long())
    table = FlowBuilder.from_(nn.Embedding(4, 2)).build()
    assert "input dtypes: float32; its parameters: float32" in notes(table, X)


def test_an_error_about_shapes_does_not_speak_of_dtypes():
    graph = start().through(nn.Linear(5, 2)).build()
    assert notes(graph) == ["in node linear_2, input shapes: [3, 4]"]


def test_references_of_another_dtype_are_shown():
    class Product(NamedInputModule):
        def forward_named(self, x, refs):
            return x @ refs["w"]

    graph = start().input("w").through(Product()).using("w").build()
    told = notes(graph, w=torch.ones(4, 2, dtype=torch.float64))
    assert told[-1] == "input dtypes: float32, float64"


def test_an_input_that_was_left_out_is_shown_as_none():
    graph = start().input("hint", optional=True).through(Maybe()).using("hint").build()
    assert notes(graph, error=AttributeError) == ["in node maybe_3, input shapes: [3, 4], NoneType"]


# --- Shapes of what is added --------------------------------------------------------------------


def narrow(x):
    return x[:, :1]


def sums(**options):
    """Every way of adding [3, 4] and [3, 1]."""
    return {
        "add": start().split([nn.Identity(), narrow]).merge("add", **options),
        "mean": start().split([nn.Identity(), narrow]).merge("mean", **options),
        "three": start().split([double, double, narrow]).merge("add", **options),
        "also": start().also(narrow, **options),
        "also_with": start().also_with(narrow, double, **options),
    }


@each_row("how", sums())
def test_what_is_added_has_one_shape(how):
    graph = sums()[how].build()
    with pytest.raises(
        ValueError, match=r"the shapes must be equal; pass broadcast=True"
    ) as caught:
        graph(X)
    assert "[3, 1]" in str(caught.value)
    assert "[3, 4]" in str(caught.value)
    node = graph.topology.node(graph.topology.output).id
    assert str(caught.value).startswith(node)
    assert caught.value.__notes__[0].startswith(f"in node {node}")


def test_equally_many_elements_in_other_places_are_refused_as_well():
    graph = start().split([nn.Identity(), lambda x: x.transpose(0, 1)]).merge("add").build()
    with pytest.raises(ValueError, match=r"\[3, 1\] with \[1, 3\]"):
        graph(torch.ones(3, 1))
    graph = start().split([nn.Identity(), lambda x: x.squeeze(1)]).merge("mean").build()
    with pytest.raises(ValueError, match=r"\[3, 1\] with \[3\]"):
        graph(torch.ones(3, 1))


@each_row(("how", "value"), [("add", 2), ("mean", 1), ("three", 5), ("also", 2), ("also_with", 3)])
def test_other_shapes_are_broadcast_when_asked_for(how, value):
    graph = sums(broadcast=True)[how].build()
    assert torch.equal(graph(X), torch.full((3, 4), float(value)))
    plain = sums()[how].build()
    same = torch.ones(3, 1)
    assert torch.equal(graph(same), plain(same))
    assert graph.structural_hash() == plain.structural_hash()
