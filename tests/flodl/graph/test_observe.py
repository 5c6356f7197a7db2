"""Metrics of a graph: buffered per batch, averaged per flush."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.errors import StateError
from flodl.graph import FlowBuilder


@pytest.fixture
def graph():
    return FlowBuilder.from_(nn.Linear(2, 2)).build()


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
    loss = graph(torch.ones(1, 2)).sum()
    graph.record_scalar("loss", loss)
    kept = graph._metrics._pending["loss"][0].tensor
    assert not kept.requires_grad
    assert kept.data_ptr() == loss.data_ptr()
    graph.flush()
    assert graph.latest_metrics() == [("loss", loss.item())]


def test_a_recorded_buffer_keeps_its_value_of_that_moment(graph):
    static = torch.tensor(1.0)
    weight = graph.linear_1.weight
    before = weight[0, 0].item()
    graph.record_scalar("static", static)
    graph.record_scalar("weight", weight[0, 0])
    static.fill_(9)
    with torch.no_grad():
        weight.fill_(9)
    assert graph.collected("static") == [1.0]
    assert graph.collected("weight") == [before]


def test_a_result_changed_in_place_afterwards_is_reported_not_miscounted(graph):
    loss = graph(torch.ones(1, 2)).sum()
    graph.record_scalar("loss", loss)
    loss += 1
    with pytest.raises(StateError, match=r"'loss' was changed in place .* tensor\.clone"):
        graph.flush()


def test_tensors_of_inference_mode_can_be_recorded(graph):
    with torch.inference_mode():
        graph.record_scalar("m", torch.tensor(2.0) * 2)
    assert graph.collected("m") == [4.0]


def test_a_scalar_with_several_elements_is_refused(graph):
    with pytest.raises(ValueError, match=r"'loss': .* shape \[2\]; reduce it first"):
        graph.record_scalar("loss", torch.ones(2))
    assert graph.collected("loss") == []
