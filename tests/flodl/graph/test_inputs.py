"""Auxiliary inputs of a graph."""

from __future__ import annotations

import pytest
import torch

from flodl.errors import BuildError
from flodl.graph import FlowBuilder
from flodl.graph.routing import StateAdd
from tests.rows import each_row

from .layers import AddRef, double, start


def summing():
    return start().input("a", "b").through(StateAdd()).using("a", "b").build()


def numbers(*values):
    return [torch.tensor([float(value)]) for value in values]


@pytest.mark.case("runtime", 11)
def test_inputs_follow_the_entry_in_the_order_of_their_declaration():
    graph = summing()
    assert graph(*numbers(1, 10, 100)).tolist() == [111]
    with pytest.raises(ValueError, match=r"\b3\b.*\b1\b"):
        graph(*numbers(1))


def test_inputs_are_given_by_position_or_by_name():
    graph = start().input("c", "d").through(AddRef("c")).using("c").through(double)
    graph = graph.through(AddRef("d")).using("d").build()
    x, c, d = numbers(1, 10, 100)
    assert graph(x, c, d).tolist() == [122]
    assert graph(x, c=c, d=d).tolist() == [122]
    assert graph(x, d=d, c=c).tolist() == [122]
    assert graph(x, c, d=d).tolist() == [122]


@each_row("given", [0, 1, 2, 4])
def test_any_other_number_of_inputs_is_refused_with_both_numbers(given):
    graph = summing()
    values = numbers(*range(given))
    with pytest.raises(ValueError, match=rf"\b3\b.*\b{given}\b") as caught:
        graph(*values)
    assert "a, b" in str(caught.value)


def test_a_name_that_is_no_input_is_refused():
    x, a, b = numbers(1, 2, 3)
    with pytest.raises(ValueError, match="nope"):
        summing()(x, a, nope=b)
    with pytest.raises(ValueError, match=r"\ba\b"):
        summing()(x, a, b, a=a)


def test_an_input_is_a_node_with_a_number_and_a_tag():
    graph = summing()
    assert [node.id for node in graph.topology.nodes] == [
        "identity_1",
        "input_2",
        "input_3",
        "stateadd_4",
    ]
    assert graph.tag_names() == ["a", "b"]
    assert graph.topology.inputs[1:] == ("a", "b")
    graph(*numbers(1, 10, 100))
    assert graph.tagged("b").item() == 100


def test_an_input_moves_neither_the_stream_nor_the_target_of_references():
    graph = start().through(AddRef("c")).input("c").using("c").through(double).build()
    assert graph(*numbers(1, 10)).tolist() == [22]


def test_an_input_may_be_declared_anywhere_and_used_several_times():
    graph = start().through(double).input("c").through(AddRef("c")).using("c")
    graph = graph.through(double).through(AddRef("c")).using("c").build()
    assert graph(*numbers(1, 10)).tolist() == [34]


def test_an_unused_input_must_be_given_all_the_same():
    graph = start().input("c").through(double).build()
    assert graph(*numbers(1, 10)).tolist() == [2]
    with pytest.raises(ValueError, match=r"\b2\b.*\b1\b"):
        graph(*numbers(1))


def test_inputs_have_gradients():
    x, a, b = (value.requires_grad_() for value in numbers(1, 10, 100))
    summing()(x, a, b).sum().backward()
    assert [value.grad.item() for value in (x, a, b)] == [1, 1, 1]


@each_row(
    "describe",
    [
        lambda: start().tag("c").input("c"),
        lambda: start().input("c").input("c"),
        lambda: start().input("c", "c"),
        lambda: start().input("c").through(double).tag("c"),
    ],
)
def test_the_name_of_an_input_is_a_tag_and_can_be_taken(describe):
    builder = describe()
    with pytest.raises(BuildError, match=r"'c' (is taken|already)"):
        builder.build()


def test_an_input_declared_after_its_reader_arrives_one_call_later():
    graph = FlowBuilder.from_(StateAdd()).using("c").input("c").build()
    assert graph(*numbers(1, 10)).tolist() == [1]
    assert graph(*numbers(2, 20)).tolist() == [12]
    graph.reset_state()
    assert graph(*numbers(2, 30)).tolist() == [2]


def test_hooks_see_the_inputs_of_the_graph():
    graph = summing()
    seen = []
    graph.register_forward_hook(lambda _, inputs, output: seen.append((len(inputs), output.item())))
    graph(*numbers(1, 10, 100))
    assert seen == [(3, 111)]
