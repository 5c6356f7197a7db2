"""Metrics and counters of a graph, carried into another process."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.graph import FlowBuilder, Graph
from flodl.graph.history import MetricHistory
from tests.rows import each_row


def graph() -> Graph:
    return FlowBuilder.from_(nn.Linear(2, 2)).tag("out").build()


def test_another_graph_goes_on_with_metrics_and_counters() -> None:
    first = graph()
    for value in (1.0, 3.0):
        first(torch.ones(1, 2))
        first.record_scalar("loss", value)
        first.end_step()
    first.end_epoch()
    first.record("loss", [float("nan"), 5.0])
    first.record("late", torch.tensor([7.0, 8.0]))

    second = graph()
    second.set_observed_state(first.observed_state())
    assert second.trend("loss").values == [2.0]
    assert second.collected("late") == [7.0, 8.0]
    assert repr(second.collected("loss")) == "[nan, 5.0]"
    assert (second.step_count, second.epoch_step, second.epoch_count) == (2, 0, 1)
    assert second.flush_count == 1
    assert [name for name, _ in second.latest_metrics()] == ["loss"]
    second.flush()
    assert second.trend("late").values == [7.5]


def test_the_time_between_two_processes_does_not_count() -> None:
    now = 100.0
    first = MetricHistory(lambda: now)
    first.record_scalar("loss", 1.0)
    now = 110.0
    first.flush()
    state = first.state()
    now = 5000.0
    second = MetricHistory(lambda: now)
    second.set_state(state)
    second.record_scalar("loss", 1.0)
    now = 5010.0
    second.flush()
    assert [point.seconds for point in second.points("loss")] == [10.0, 20.0]
    assert second.eta(3) == 10.0


@each_row(
    "damage",
    [
        {},
        {"counts": {}},
        {"counts": {"step_count": 1}},
        {"metrics": {}},
        {"metrics": {"passed": "soon"}},
        {"metrics": None},
    ],
)
def test_nonsense_is_refused_and_changes_nothing(damage: dict[str, object]) -> None:
    model = graph()
    model.record_scalar("loss", 1.0)
    good = model.observed_state()
    with pytest.raises(ValueError, match=r"counters are not|not a history of metrics"):
        model.set_observed_state({**good, **damage} if damage else {})
    assert model.collected("loss") == [1.0]


@each_row("count", [-1, 1.5, True, "2"])
def test_a_counter_that_counts_nothing_is_refused(count: object) -> None:
    model = graph()
    good = model.observed_state()
    bad = {**good, "counts": {**good["counts"], "step_count": count}}
    with pytest.raises(ValueError, match="the counters are not step numbers"):
        model.set_observed_state(bad)


def test_points_without_a_buffer_are_refused() -> None:
    history = MetricHistory()
    history.record_scalar("loss", 1.0)
    state = history.state()
    with pytest.raises(ValueError, match="buffers and points have other names"):
        MetricHistory().set_state({**state, "buffers": {}})
