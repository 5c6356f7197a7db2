"""Times of a graph's nodes: one forward, and many."""

from __future__ import annotations

import copy
import pickle
import re
import time

import pytest
import torch
from torch import nn

from flodl.graph import FlowBuilder, StateAdd
from flodl.graph.profile import LevelTiming


class Nap(nn.Module):
    """Takes this long."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return x


X = torch.ones(2, 3)


@pytest.fixture
def graph():
    return (
        FlowBuilder.from_(nn.Linear(3, 3))
        .tag("first")
        .split([Nap(0.002), nn.Linear(3, 3)])
        .tag_group("branch")
        .merge("add")
        .through(StateAdd())
        .using("memory")
        .tag("memory")
        .build()
    )


def test_nothing_is_timed_until_it_is_asked_for(graph):
    graph(X)
    assert graph.profile() is None
    assert graph.timing("first") == 0.0
    graph.enable_profiling()
    assert graph.profile() is None
    graph(X)
    assert graph.profile() is not None


def test_a_profile_has_every_node_and_level_and_its_times_add_up(graph):
    graph.enable_profiling()
    graph(X)
    profile = graph.profile()
    levels = graph.topology.levels
    assert [(node.id, node.level) for node in profile.nodes] == [
        (node.id, index) for index, level in enumerate(levels) for node in level
    ]
    tags = {node.id: node.tags for node in profile.nodes if node.tags}
    assert tags == {
        "linear_1": ("first",),
        "nap_2": ("branch_0",),
        "linear_3": ("branch_1",),
        "stateadd_5": ("memory",),
    }
    assert all(node.seconds > 0 for node in profile.nodes)
    assert profile.total == pytest.approx(sum(node.seconds for node in profile.nodes))
    assert [(level.index, level.num_nodes) for level in profile.levels] == [
        (index, len(level)) for index, level in enumerate(levels)
    ]
    for level in profile.levels:
        own = sum(node.seconds for node in profile.nodes if node.level == level.index)
        assert level.sum_nodes == level.wall == pytest.approx(own)
        assert level.parallelism == 1.0
    (nap,) = [node for node in profile.nodes if node.id == "nap_2"]
    assert graph.timing("branch_0") == nap.seconds >= 0.002


def test_parallelism_is_the_time_of_the_nodes_over_wall_time():
    assert LevelTiming(0, wall=2.0, sum_nodes=5.0, num_nodes=3).parallelism == 2.5
    assert LevelTiming(0, wall=2.0, sum_nodes=5.0, num_nodes=1).parallelism == 1.0
    assert LevelTiming(0, wall=0.0, sum_nodes=0.0, num_nodes=3).parallelism == 1.0


def test_a_profile_prints_as_a_table(graph):
    graph.enable_profiling()
    graph(X)
    lines = str(graph.profile()).splitlines()
    assert len(lines) == 1 + len(graph.topology.nodes)
    assert re.fullmatch(r"total +\d+\.\d{3} ms", lines[0])
    assert re.fullmatch(r"linear_1 +\d+\.\d{3} ms +\d+\.\d%  #first", lines[1])


def test_profiling_changes_no_result_and_leaves_no_trace_when_it_ends(graph):
    plain = graph(X)
    source = graph.source()
    graph.reset_state()
    graph.enable_profiling()
    assert torch.equal(graph(X), plain)
    graph.disable_profiling()
    assert graph.profile() is None
    assert graph.source() == source
    graph.enable_profiling()
    assert graph.profile() is None


def test_a_forward_that_fails_leaves_the_profile_of_the_one_before(graph):
    graph.enable_profiling()
    graph(X)
    before = graph.profile()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        graph(torch.ones(2, 7))
    assert graph.profile() == before
    graph.reset_state()
    graph(X)
    assert graph.profile() != before


def test_a_nested_graph_is_one_node_of_its_parent_and_can_be_profiled_alone():
    inner = FlowBuilder.from_(Nap(0.002)).through(nn.Linear(3, 3)).build()
    outer = FlowBuilder.from_(inner).tag("inner").through(inner).build()
    outer.enable_profiling()
    outer(X)
    assert [node.id for node in outer.profile().nodes] == ["graph_1", "graph_2"]
    assert outer.timing("inner") >= 0.002
    assert inner.profile() is None
    inner.enable_profiling()
    outer(X)
    assert [node.id for node in inner.profile().nodes] == ["nap_1", "linear_2"]
    assert inner.profile().total < outer.profile().total


@pytest.mark.parametrize("again", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_a_copy_is_not_profiled(graph, again):
    graph.enable_profiling()
    graph(X)
    other = again(graph)
    assert other.profile() is None
    other(X)
    assert other.profile() is None
    other.enable_profiling()
    other(X)
    assert other.profile() is not None
    assert graph.profile() is not None


def test_a_compiled_graph_runs_and_has_no_nodes_to_time():
    graph = FlowBuilder.from_(nn.Linear(3, 3)).through(nn.ReLU()).build()
    expected = graph(X)
    graph.enable_profiling()
    graph.compile(backend="eager", fullgraph=True)
    assert torch.equal(graph(X), expected)
    assert graph.profile() is None


@pytest.mark.gpu
def test_nodes_on_a_device_are_timed_by_events():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    heavy = [nn.Linear(4096, 4096) for _ in range(4)]
    flow = FlowBuilder.from_(heavy[0])
    for layer in heavy[1:]:
        flow.through(layer)
    graph = flow.tag("last").through(nn.ReLU()).build().cuda()
    x = torch.ones(8192, 4096, device="cuda")
    graph(x)
    graph.enable_profiling()
    torch.cuda.synchronize()
    start = time.perf_counter()
    graph(x)
    launched = time.perf_counter() - start
    profile = graph.profile()
    assert profile.total > launched
    assert all(node.seconds > 0 for node in profile.nodes)
