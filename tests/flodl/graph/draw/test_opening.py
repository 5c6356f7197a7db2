"""Which composites of a drawing are open."""

from __future__ import annotations

import pytest
from torch import nn

from flodl.errors import PathError
from flodl.graph import FlowBuilder
from flodl.graph.draw.describe import describe
from flodl.graph.draw.drawing import opened

from .graphs import encoder, everything


def drawn(graph, depth=1, expand=()):
    """The ids of all boxes that are drawn."""
    return [box.id for box in opened(describe(graph), depth, expand).walk()]


@pytest.fixture
def graph():
    return FlowBuilder.from_(nn.Linear(4, 4)).through(encoder(), name="front").build()


INNER = ["graph_2/linear_1", "graph_2/loop_2"]
BODY = ["graph_2/loop_2/body", "graph_2/loop_2/cond"]


def test_depth_opens_that_many_diagrams(graph):
    outer = ["linear_1", "graph_2"]
    assert drawn(graph) == outer
    assert drawn(graph, 2) == outer + INNER
    assert drawn(graph, 3) == outer + INNER + BODY
    assert drawn(graph, 99) == outer + INNER + BODY


@pytest.mark.parametrize("path", ["front", "encoder"])
def test_a_path_opens_one_composite_by_its_key_or_its_label(graph, path):
    assert drawn(graph, expand=[path]) == ["linear_1", "graph_2", *INNER]


@pytest.mark.parametrize("path", ["front.scan", "encoder.scan"])
def test_what_lies_around_an_open_composite_is_open_too(graph, path):
    assert drawn(graph, expand=(path,)) == drawn(graph, 3)


def test_everything_with_parts_can_be_opened():
    graph = everything()
    closed = drawn(graph)
    for path, parts in {
        "loop_11": ["body"],
        "gate_12": ["router", "experts_0", "experts_1"],
        "switch_13": ["router", "branches_0", "branches_1"],
        "map_14": ["body"],
        "enc": ["linear_1", "loop_2"],
    }.items():
        added = [id_ for id_ in drawn(graph, expand=[path]) if id_ not in closed]
        assert [id_.partition("/")[2] for id_ in added] == parts, path
    added = drawn(graph, expand=["gate_12.experts.1.scan"])
    assert "gate_12/experts_1/loop_2/cond" in added
    assert "graph_17/loop_2" not in added


def test_the_path_of_a_box_leads_to_its_module():
    graph = everything()
    boxes = [box for box in opened(describe(graph), 9, ()).walk() if box.path]
    assert len(boxes) > 30
    for box in boxes:
        module = graph.get_submodule(box.path)
        assert sum(p.numel() for p in module.parameters()) == box.weight.elements, box.id


def test_a_path_that_leads_nowhere_is_answered_with_near_ones(graph):
    with pytest.raises(PathError, match=r"'encoder.scam' names no .*did you mean encoder.scan"):
        graph.svg(expand=["encoder.scam"])
    with pytest.raises(PathError, match=r"'linear_1' names no nested graph.*there is \['front'"):
        graph.dot(expand=["linear_1"])
    with pytest.raises(PathError, match=r"there is \[\]"):
        FlowBuilder().build().svg(expand=["x"])


def test_depth_and_expand_are_checked(graph):
    with pytest.raises(ValueError, match="1 or more: 0"):
        graph.svg(depth=0)
    with pytest.raises(ValueError, match=r"several paths, not one text: expand=\('front',\)"):
        graph.svg_with_profile(expand="front")


def test_a_composite_whose_module_was_replaced_is_a_plain_box():
    graph = everything()
    graph._modules["loop_11"] = nn.Linear(4, 4)
    assert not any(id_.startswith("loop_11/") for id_ in drawn(graph, 9))
    with pytest.raises(PathError, match="'loop_11' names no"):
        graph.svg(expand=["loop_11"])
