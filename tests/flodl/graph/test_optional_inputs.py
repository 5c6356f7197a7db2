"""Inputs that a call may leave out, the name of the first one, and tags that are not kept."""

import copy

import pytest
import torch
from torch import nn

from flodl import (
    BuildError,
    DataLoader,
    FlowBuilder,
    NamedInputModule,
    StateError,
    TensorDataSet,
)
from tests.rows import each_row


class Shift(NamedInputModule):
    def forward_named(self, x, refs):
        by = refs["by"]
        return x if by is None else x + by


def shifted(**how):
    flow = FlowBuilder.from_(nn.Identity()).entry("x").tag("start", **how)
    return flow.input("by", "unused", optional=True).through(Shift()).using("by").build()


def test_what_is_left_out_is_none_inside():
    graph, x, by = shifted(), torch.ones(2, 3), torch.full((2, 3), 4.0)
    assert torch.equal(graph(x), x)
    assert torch.equal(graph(x, by), x + by)
    assert torch.equal(graph(x, None), x)
    assert torch.equal(graph(by=by, x=x), x + by)


def test_a_call_without_the_entry_or_with_too_much_says_what_there_is():
    graph, x = shifted(), torch.ones(1)
    with pytest.raises(ValueError, match=r"takes 1 to 3 input\(s\) \(x, by, unused\), got 1"):
        graph(by=x)
    with pytest.raises(ValueError, match=r"takes 1 to 3 .* got 4"):
        graph(x, x, x, x)
    with pytest.raises(ValueError, match="no further input 'to'; its inputs are x, by, unused"):
        graph(x, to=x)


def test_an_input_that_was_left_out_has_no_tagged_value():
    graph = shifted()
    graph(torch.ones(2))
    assert graph.tagged("by") is None
    graph(torch.ones(2), torch.ones(2)).sum()
    graph.detach_state()
    assert torch.equal(graph.tagged("by"), torch.ones(2))


def test_a_nested_graph_hands_nothing_on_as_nothing():
    inner = FlowBuilder.from_(Shift()).input("by", optional=True).using("by").build()
    outer = FlowBuilder().input("by", optional=True).through(inner).using("by").build()
    assert torch.equal(outer(torch.ones(2)), torch.ones(2))
    assert torch.equal(outer(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


class Weighted(NamedInputModule):
    def forward_named(self, x, refs):
        first, second = refs["first"], refs["second"]
        return x + (0 if first is None else first) + (0 if second is None else 10 * second)


def weighted():
    """A graph whose needed input stands between two optional ones."""
    flow = FlowBuilder.from_(Weighted()).input("first", optional=True).input("needed")
    return flow.input("second", optional=True).using("first", "second").build()


@each_row(
    ("given", "expected"),
    [
        (("second", "needed"), 21.0),
        (("needed", "first"), 3.0),
        (("needed",), 1.0),
        (("first", "needed", "second"), 23.0),
    ],
)
def test_a_nested_graph_need_not_be_given_what_may_be_left_out(given, expected):
    flow = FlowBuilder().input("first", "needed", "second").through(weighted()).using(*given)
    outer, two = flow.build(), torch.tensor(2.0)
    assert outer(torch.tensor(1.0), two, two, two).item() == expected


def test_a_nested_graph_of_optional_inputs_can_stand_alone():
    inner = FlowBuilder.from_(Shift()).input("by", optional=True).using("by").build()
    assert torch.equal(FlowBuilder.from_(inner).build()(torch.ones(2)), torch.ones(2))


@each_row("given", [("first",), ("first", "needed", "other")])
def test_a_nested_graph_says_which_inputs_it_needs(given):
    flow = FlowBuilder().input("first", "needed", "other").through(weighted()).using(*given)
    with pytest.raises(BuildError, match=r"\['first \(optional\)', 'needed', 'second \(optional"):
        flow.build()


def test_a_loop_of_a_graph_leaves_out_what_may_be():
    body = FlowBuilder.from_(Shift()).input("by", "unused", optional=True).using("by").build()
    outer = FlowBuilder().input("by").loop_body(body).for_n(3).using("by").build()
    assert torch.equal(outer(torch.zeros(2), torch.ones(2)), torch.full((2,), 3.0))


def test_the_structure_tells_optional_from_needed():
    needed = FlowBuilder.from_(Shift()).input("by").using("by").build()
    optional = FlowBuilder.from_(Shift()).input("by", optional=True).using("by").build()
    assert needed.structural_hash() != optional.structural_hash()


def test_a_loader_need_not_have_what_may_be_left_out():
    data = TensorDataSet(torch.arange(4.0), torch.zeros(4), names=["x", "y"])
    graph = shifted()
    graph.set_data_loader(DataLoader(data, batch_size=4, shuffle=False), "x")
    batch = next(iter(graph.epoch(0)))
    assert torch.equal(graph.forward_batch(batch), torch.arange(4.0))


def test_a_loader_that_has_it_is_used():
    data = TensorDataSet(torch.arange(4.0), torch.ones(4), names=["x", "by"])
    graph = shifted()
    graph.set_data_loader(DataLoader(data, batch_size=4, shuffle=False), "x")
    batch = next(iter(graph.epoch(0)))
    assert torch.equal(graph.forward_batch(batch), torch.arange(4.0) + 1)


def test_an_entry_cannot_have_the_name_of_another_input():
    with pytest.raises(BuildError, match="entry: the graph has an input 'by' already"):
        FlowBuilder().input("by").entry("by").build()


def test_a_tag_that_is_not_kept_serves_using_and_dies_in_the_forward():
    class Add(NamedInputModule):
        def forward_named(self, x, refs):
            return x + refs["start"]

    graph = FlowBuilder.from_(nn.Identity()).tag("start", keep=False)
    graph = graph.through(nn.ReLU()).tag("middle").through(Add()).using("start").build()
    assert torch.equal(graph(torch.tensor([-1.0, 2.0])), torch.tensor([-1.0, 4.0]))
    assert graph.tagged("start") is None
    assert torch.equal(graph.tagged("middle"), torch.tensor([0.0, 2.0]))
    assert graph.tag_names() == ["start", "middle"]
    assert "v1" in graph.source().partition("return")[0]
    assert "v1," not in graph.source().partition("return")[2]


def test_copies_keep_which_inputs_are_optional_and_which_tags_pass():
    graph = copy.deepcopy(shifted(keep=False))
    graph(torch.ones(1))
    assert graph.topology.optional == {"by", "unused"}
    assert graph.tagged("start") is None


def test_what_cannot_be_collected_says_why():
    graph = shifted(keep=False)
    graph(torch.ones(1))
    with pytest.raises(StateError, match=r"'start' has no value .* with tag\(…, keep=False\)"):
        graph.collect("start")
    with pytest.raises(StateError, match=r"'by' has no value .* the last call left this input out"):
        graph.collect("by")
