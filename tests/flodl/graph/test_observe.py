"""Metrics of a graph: buffered per batch, averaged per flush, looked at as trends."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from flodl.errors import StateError
from flodl.graph import FlowBuilder
from flodl.graph.history import MetricHistory
from flodl.graph.observe import Reduce
from tests.rows import each_row


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Pair(nn.Module):
    """Gives [3, 4] to whoever asks."""

    def forward(self, x):
        return x.new_tensor([3.0, 4.0])


class Total(nn.Module):
    """The sum of everything, as one element."""

    def forward(self, x):
        return x.sum()


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


@pytest.fixture
def graph():
    return FlowBuilder.from_(nn.Linear(2, 2)).build()


@pytest.fixture
def pair():
    """Tags: ``pair`` of shape [2], ``total`` without dimensions."""
    return FlowBuilder.from_(Pair()).tag("pair").through(Total()).tag("total").build()


@pytest.fixture
def heads():
    """A tag group ``head`` of three scalars: 1, 2 and 4 times the sum of the input."""
    streams = [Total(), nn.Sequential(Total(), Times(2)), nn.Sequential(Total(), Times(4))]
    return FlowBuilder().split(streams).tag_group("head").merge("add").build()


@pytest.fixture
def tree():
    """A graph with a labelled graph ``encoder`` in it, which holds another, ``core``."""
    core = FlowBuilder.from_(nn.Linear(2, 2)).label("core").build()
    encoder = FlowBuilder.from_(nn.Linear(2, 2)).through(core).label("encoder").build()
    return FlowBuilder.from_(encoder).through(nn.Linear(2, 1)).build()


# --- Recording -------------------------------------------------------------------------------


@pytest.mark.case("runtime", 27)
def test_two_flushes_make_an_improving_trend(graph):
    graph.record("loss", [0.5, 0.4, 0.3])
    graph.flush()
    graph.record("loss", [0.1, 0.05])
    graph.flush()
    assert graph.trend("loss").values == pytest.approx([0.4, 0.075])
    assert graph.trend("loss").improving()
    assert graph.trend("loss").improving(2)


def test_a_flush_appends_the_mean_and_clears_the_buffer(graph):
    graph.record("loss", [0.5, 0.4, 0.3])
    graph.record_scalar("acc", 1)
    assert graph.collected("loss") == [0.5, 0.4, 0.3]
    assert graph.latest_metrics() == []
    graph.flush()
    assert graph.latest_metrics() == [("loss", pytest.approx(0.4)), ("acc", 1.0)]
    assert graph.collected("loss") == []
    assert graph.flush_count == 1


def test_flushing_nothing_adds_no_point(graph):
    graph.flush()
    graph.record("loss", [])
    graph.flush()
    assert graph.flush_count == 0
    assert graph.latest_metrics() == []


def test_named_metrics_flush_alone(graph):
    graph.record_scalar("a", 1)
    graph.record_scalar("b", 2)
    graph.flush("b", "b")
    assert graph.latest_metrics() == [("b", 2.0)]
    assert graph.collected("a") == [1.0]
    graph.flush()
    assert graph.latest_metrics() == [("a", 1.0), ("b", 2.0)]
    assert graph.flush_count == 2


def test_tensors_and_numbers_mix_and_keep_their_order(graph):
    graph.record("m", [torch.tensor(1.0), 2, torch.tensor([3], dtype=torch.int64)])
    graph.record("m", torch.tensor([[4.0, 5.0]]))
    graph.record("m", torch.empty(0))
    assert graph.collected("m") == [1, 2, 3, 4, 5]
    graph.record_scalar("m", torch.tensor(True))
    assert graph.collected("m") == [1, 2, 3, 4, 5, 1]


def test_a_recorded_loss_keeps_no_autograd_graph(graph):
    output = graph(torch.ones(1, 2))
    graph.record("outputs", output)
    graph.record_scalar("loss", output.sum())
    (kept,) = graph._metrics._pending["outputs"]
    assert not kept.tensor.requires_grad
    assert kept.tensor.data_ptr() == output.data_ptr()
    assert graph._metrics._pending["loss"] == [output.sum().item()]
    graph.flush()
    assert dict(graph.latest_metrics())["outputs"] == pytest.approx(output.mean().item())


def test_a_recorded_buffer_keeps_its_value_of_that_moment(graph):
    static = torch.tensor([1.0, 2.0])
    weight = graph.linear_1.weight
    before = weight[0].tolist()
    graph.record("static", static)
    graph.record("weight", weight[0])
    graph.record_scalar("one", static[0])
    static.fill_(9)
    with torch.no_grad():
        weight.fill_(9)
    assert graph.collected("static") == [1.0, 2.0]
    assert graph.collected("weight") == before
    assert graph.collected("one") == [1.0]


def test_a_result_changed_in_place_afterwards_is_reported_not_miscounted(graph):
    output = graph(torch.ones(1, 2)) * 1
    graph.record("output", output)
    output += 1
    with pytest.raises(StateError, match=r"'output' was changed in place .* tensor\.clone"):
        graph.flush()


def test_a_scalar_is_read_before_it_changes(graph):
    loss = graph(torch.ones(1, 2)).sum()
    before = loss.item()
    graph.record_scalar("loss", loss)
    loss += 1
    assert graph.collected("loss") == [before]


def test_tensors_of_inference_mode_can_be_recorded(graph):
    with torch.inference_mode():
        graph.record_scalar("m", torch.tensor(2.0) * 2)
        graph.record("m", torch.ones(2) * 3)
    assert graph.collected("m") == [4.0, 3.0, 3.0]


def test_a_scalar_with_several_elements_is_refused(graph):
    with pytest.raises(ValueError, match=r"'loss': .* shape \[2\]; reduce it first"):
        graph.record_scalar("loss", torch.ones(2))
    graph.record_scalar("loss", 1)
    assert graph.collected("loss") == [1]


def test_long_epochs_keep_few_tensors_and_every_value(graph):
    for batch in range(3000):
        graph.record("m", torch.tensor([batch, batch + 0.5]))
        if batch % 1000 == 0:
            graph.record_scalar("m", -1)
    kept = graph._metrics._pending["m"]
    assert len(kept) < 1024 + 10
    values = graph.collected("m")
    assert values.count(-1) == 3
    assert [value for value in values if value >= 0] == [half / 2 for half in range(6000)]
    graph.flush()
    assert graph.trend("m").latest() == pytest.approx(sum(values) / 6003)


# --- Collecting ------------------------------------------------------------------------------


def test_collect_buffers_the_value_of_a_tag(pair):
    for _ in range(2):
        pair(torch.ones(1))
        pair.collect("total")
    assert pair.collected("total") == [7.0, 7.0]
    pair.flush()
    assert pair.latest_metrics() == [("total", 7.0)]


def test_names_may_come_as_a_list(heads, tmp_path):
    for _ in range(2):
        heads(torch.ones(1))
        heads.collect(["head"])
        heads.record("loss", 3.0)
        heads.flush(["head", "loss"])
    assert [trend.latest() for trend in heads.trends(["head"])] == [1, 2, 4]
    heads.export_trends(tmp_path / "some.csv", ["loss"], "head_1")
    assert (tmp_path / "some.csv").read_text().startswith("epoch,loss,head_1\n")
    heads.plot_html(tmp_path / "some.html", ["loss", "head"])
    assert "head_2" in (tmp_path / "some.html").read_text()


@pytest.mark.case("runtime", 28)
@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (Reduce.SUM, 7),
        (Reduce.MEAN, 3.5),
        (Reduce.MAX, 4),
        (Reduce.MIN, 3),
        (Reduce.NORM, 5),
        ("norm", 5),
    ],
)
def test_a_reduction_makes_one_value_of_a_tensor(pair, reduce, expected):
    pair(torch.ones(1))
    pair.collect_with("pair", reduce)
    assert pair.collected("pair") == [expected]


@pytest.mark.case("runtime", 28)
def test_collect_refuses_several_elements_and_says_what_to_do(pair):
    pair(torch.ones(1))
    with pytest.raises(ValueError, match=r"'pair' has shape \[2\].*collect_with\('pair', Reduce"):
        pair.collect("total", "pair")
    assert pair.collected("total") == []


@pytest.mark.case("runtime", 28)
def test_a_tag_with_a_typo_is_an_error_before_and_after_a_forward(pair):
    with pytest.raises(KeyError, match="typo"):
        pair.collect("total", "typo")
    pair(torch.ones(1))
    with pytest.raises(KeyError, match="typo"):
        pair.collect("typo")
    with pytest.raises(KeyError, match="did you mean total"):
        pair.collect_with(["pair", "totl"], Reduce.MEAN)
    assert pair.collected("pair") == []


def test_before_a_forward_there_is_nothing_to_collect(pair):
    with pytest.raises(StateError, match=r"'total' has no value to collect: no forward has run"):
        pair.collect("total")
    with pytest.raises(StateError, match="no forward has run"):
        pair.collect_with("pair", Reduce.MEAN)


def test_with_observation_switched_off_there_is_nothing_to_collect(pair):
    pair.observe(False)
    pair(torch.ones(1))
    with pytest.raises(StateError, match=r"turn it on with observe\(True\)"):
        pair.collect("total")


def test_one_element_bypasses_the_reduction():
    class Negative(nn.Module):
        def forward(self, x):
            return -x.sum()

    graph = FlowBuilder.from_(Negative()).tag("t").build()
    graph(torch.ones(3))
    graph.collect_with("t", Reduce.NORM)
    assert graph.collected("t") == [-3.0]


@each_row("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool])
@each_row("reduce", list(Reduce))
def test_every_kind_of_tensor_can_be_reduced(dtype, reduce):
    graph = FlowBuilder().tag("x").build()
    graph(torch.ones(4, dtype=dtype))
    graph.collect_with("x", reduce)
    expected = {Reduce.SUM: 4, Reduce.NORM: 2}.get(reduce, 1)
    assert graph.collected("x") == [expected]


def test_half_precision_does_not_overflow_in_a_reduction():
    graph = FlowBuilder().tag("x").build()
    graph(torch.full((4,), 60_000, dtype=torch.float16))
    graph.collect_with("x", Reduce.SUM)
    assert graph.collected("x") == [240_000]


def test_a_tensor_without_elements_cannot_be_reduced():
    graph = FlowBuilder().tag("x").build()
    graph(torch.empty(0, 3))
    with pytest.raises(ValueError, match=r"'x' has shape \[0, 3\]: there is nothing to reduce"):
        graph.collect_with("x", Reduce.SUM)


def test_an_unknown_reduction_is_refused_with_those_there_are(pair):
    pair(torch.ones(1))
    with pytest.raises(ValueError, match=r"no reduction 'median'; choose one of 'mean', 'sum'"):
        pair.collect_with("pair", "median")


def test_a_collected_value_keeps_no_autograd_graph():
    graph = FlowBuilder.from_(nn.Linear(2, 2)).tag("out").build()
    output = graph(torch.ones(1, 2))
    graph.collect_with("out", Reduce.NORM)
    graph.detach_state()
    assert graph.collected("out") == [pytest.approx(output.norm().item())]
    output.sum().backward()
    assert graph.out.weight.grad is not None


# --- Groups ----------------------------------------------------------------------------------


def test_a_group_stands_for_its_members(heads):
    heads(torch.ones(3))
    heads.collect("head")
    heads.collect_with(["head", "head_0"], Reduce.MEAN)
    assert heads.collected("head_0") == [3.0, 3.0]
    assert heads.collected("head_2") == [12.0, 12.0]
    heads.record_scalar("loss", 1)
    heads.flush("head")
    assert heads.latest_metrics() == [("head_0", 3.0), ("head_1", 6.0), ("head_2", 12.0)]
    assert heads.collected("loss") == [1.0]


def test_trends_of_a_group(heads):
    for scale in (1.0, 2.0):
        heads(torch.full((1,), scale))
        heads.collect("head")
        heads.flush()
    assert heads.trends("head").slopes() == [1, 2, 4]
    heads.record_scalar("loss", 1)
    assert heads.trends("head_1", "loss").slopes() == [2, 0]
    assert len(heads.trends()) == 0


# --- Trends and the tree ---------------------------------------------------------------------


def test_a_metric_without_points_has_an_empty_trend(graph):
    graph.record("loss", 0.5)
    assert len(graph.trend("loss")) == 0
    assert math.isnan(graph.trend("loss").latest())


@pytest.mark.case("runtime", 30)
def test_a_metric_flushed_once_has_not_stalled(graph):
    graph.record_scalar("loss", 0.5)
    graph.flush()
    assert graph.trend("loss").stalled(10, 1e-4) is False


@pytest.mark.case("runtime", 25)
def test_a_flush_reaches_labelled_graphs_below(tree):
    tree.record_at("encoder.loss", [0.5, 0.3])
    tree.record_scalar("total", 1)
    tree.flush()
    assert tree.latest_metrics() == [("total", 1.0), ("encoder.loss", pytest.approx(0.4))]
    tree.flush()
    assert tree.latest_metrics() == [("total", 1.0), ("encoder.loss", pytest.approx(0.4))]
    encoder = tree.tree_children()["encoder"]
    assert (tree.flush_count, encoder.flush_count) == (1, 1)
    assert len(tree.trend("total")) == len(encoder.trend("loss")) == 1


def test_every_depth_has_its_prefix(tree):
    encoder = tree.tree_children()["encoder"]
    core = encoder.tree_children()["core"]
    core.record_scalar("loss", 3)
    encoder.record_scalar("loss", 2)
    tree.record_scalar("loss", 1)
    tree.record("other", [])
    tree.flush("other")
    assert tree.latest_metrics() == [("encoder.loss", 2.0), ("encoder.core.loss", 3.0)]
    assert encoder.latest_metrics() == [("loss", 2.0), ("core.loss", 3.0)]
    tree.flush()
    assert tree.latest_metrics()[0] == ("loss", 1.0)
    assert (tree.flush_count, encoder.flush_count, core.flush_count) == (1, 1, 1)


def test_a_lost_value_below_leaves_the_whole_tree_unflushed(tree):
    encoder = tree.tree_children()["encoder"]
    output = encoder(torch.ones(1, 2)) * 1
    encoder.record("output", output)
    tree.record_scalar("total", 1)
    output += 1
    with pytest.raises(StateError, match="'output' was changed in place"):
        tree.flush()
    assert tree.collected("total") == [1.0]
    assert tree.latest_metrics() == []


# --- Time ------------------------------------------------------------------------------------


@pytest.mark.case("runtime", 80)
def test_the_time_left_follows_the_mean_pace(graph):
    clock = Clock()
    graph._metrics = MetricHistory(clock)
    assert graph.eta(3) == 0
    graph(torch.ones(1, 2))
    clock.now += 1.2
    graph.record_scalar("loss", 0.5)
    graph.flush()
    assert graph.eta(3) == pytest.approx(2.4)
    assert graph.eta(1) == 0
    assert graph.eta(0) == 0
    clock.now += 0.8
    graph.flush()
    assert graph.eta(3) == pytest.approx(2.4)
    graph.record_scalar("loss", 0.4)
    graph.flush()
    assert graph.eta(3) == pytest.approx(1.0)


@pytest.mark.parametrize("first", ["forward", "record", "flush"])
def test_the_clock_starts_with_the_first_thing_that_happens(graph, first):
    clock = Clock()
    graph._metrics = MetricHistory(clock)
    clock.now += 50
    if first == "forward":
        graph(torch.ones(1, 2))
    elif first == "record":
        graph.record_scalar("loss", 1)
    else:
        graph.flush()
    clock.now += 2
    graph.record_scalar("loss", 1)
    graph.flush()
    assert graph.eta(2) == pytest.approx(2)


# --- Copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_a_copy_takes_the_metrics_along(graph, copied):
    output = graph(torch.ones(1, 2)) * 1
    graph.record_scalar("loss", 1)
    graph.flush()
    graph.record("loss", output)
    expected = graph.collected("loss")
    twin = copied(graph)
    output += 1
    graph.record_scalar("loss", 9)
    assert twin.collected("loss") == expected
    assert twin.trend("loss").values == [1.0]
    assert twin.flush_count == 1


class Elsewhere(Clock):
    """A clock that shows something else once it has moved to another process."""

    def __reduce__(self):
        return Clock, ()


def test_a_copy_in_another_process_has_run_as_long_as_its_original():
    history = MetricHistory(clock := Elsewhere())
    clock.now = 1000.0
    history.start()
    clock.now += 5
    twin = pickle.loads(pickle.dumps(history))
    twin._clock.now += 2
    twin.record_scalar("loss", 1)
    twin.flush()
    assert twin.points("loss") == [(1.0, 7.0)]
