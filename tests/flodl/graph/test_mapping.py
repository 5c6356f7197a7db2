"""Maps run a body on slices of the stream."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.errors import BuildError
from flodl.graph import FlowBuilder
from tests.rows import each_row

from .layers import Recorder, double, start, triple


def shapes(body):
    return [list(value.shape) for value in body.seen]


@pytest.mark.case("runtime", 17)
def test_each_maps_samples_and_slices_map_pieces_of_the_last_dimension():
    body = Recorder(double)
    each = start().map(body).each().build()
    x = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(each(x), x * 2)
    assert shapes(body) == [[1, 2]] * 3

    x = torch.arange(8.0).reshape(2, 4)
    doubled = start().map(double).slices(2).build()
    assert torch.equal(doubled(x), x * 2)

    layer = nn.Linear(2, 3)
    widened = start().map(layer).slices(2).build()
    expected = torch.cat([layer(x[:, :2]), layer(x[:, 2:])], dim=1)
    assert widened(x).shape == (2, 6)
    torch.testing.assert_close(widened(x), expected)

    uneven = start().map(double).slices(3).build()
    with pytest.raises(ValueError, match=r"\b4\b.*\b3\b|\b3\b.*\b4\b"):
        uneven(x)

    x = torch.randn(2, 5, 4)
    assert widened(x).shape == (2, 5, 6)
    expected = torch.cat([layer(x[..., :2]), layer(x[..., 2:])], dim=-1)
    torch.testing.assert_close(widened(x), expected)


@pytest.mark.case("runtime", 18)
def test_over_maps_a_tagged_value_which_becomes_the_stream():
    graph = start().tag("f").through(double).map(double).over("f").build()
    assert graph(torch.tensor([[1.0], [2.0]])).tolist() == [[2], [4]]


def test_over_reads_a_tag_of_another_length_than_the_stream():
    body = Recorder(triple)
    graph = start().tag("f").through(lambda x: x[:1]).map(body).over("f").through(double).build()
    assert graph(torch.tensor([[1.0], [2.0]])).tolist() == [[6], [12]]
    assert shapes(body) == [[1, 1], [1, 1]]


def test_over_reaches_an_auxiliary_input():
    graph = start().input("c").map(double).over("c").build()
    assert graph(torch.ones(1), torch.tensor([[5.0]])).tolist() == [[10]]


@each_row(
    ("finish", "seen", "result"),
    [
        (lambda m: m.each(), [3, 4], [3, 4]),
        (lambda m: m.over("f"), [3, 4], [3, 4]),
        (lambda m: m.slices(2), [6, 2], [3, 4]),
    ],
    ids=["each", "over", "slices"],
)
def test_batched_maps_call_the_body_once(finish, seen, result):
    body = Recorder(double)
    graph = finish(start().tag("f").map(body).batched()).build()
    x = torch.randn(3, 4)
    assert list(graph(x).shape) == result
    assert torch.equal(graph(x), x * 2)
    assert shapes(body) == [seen, seen]


def test_results_of_a_body_of_another_width_are_joined():
    graph = start().map(nn.Linear(2, 5)).each().build()
    assert graph(torch.randn(3, 2)).shape == (3, 5)


def test_each_slices_the_first_dimension_of_whatever_follows():
    body = Recorder()
    start().map(body).each().build()(torch.randn(2, 3, 4))
    assert shapes(body) == [[1, 3, 4]] * 2


def test_an_empty_stream_is_returned_as_it_is():
    body = Recorder(double)
    x = torch.empty(0, 2)
    assert start().map(body).each().build()(x).shape == (0, 2)
    assert start().tag("f").map(body).over("f").build()(x).shape == (0, 2)
    assert body.seen == []


@each_row("shape", [(4,), ()])
def test_slices_need_a_dimension_to_cut_and_one_to_keep(shape):
    graph = start().map(double).slices(2).build()
    with pytest.raises(ValueError, match=r"map_2|2 dimensions") as caught:
        graph(torch.ones(shape))
    assert str(list(shape)) in str(caught.value) + "".join(caught.value.__notes__)


@each_row(
    "finish",
    [
        lambda m: m.each(),
        lambda m: m.batched().each(),
        lambda m: m.over("f"),
        lambda m: m.slices(1),
    ],
)
def test_gradients_flow_through_a_map(finish):
    layer = nn.Linear(2, 2)
    graph = finish(start().tag("f").map(layer)).build()
    graph(torch.randn(3, 2)).sum().backward()
    assert layer.bias.grad.tolist() == [3, 3]


def test_normalisation_over_the_batch_needs_a_batched_map():
    x = torch.randn(6, 4)
    alone = start().map(nn.BatchNorm1d(4)).each().build()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        alone(x)
    together = start().map(nn.BatchNorm1d(4)).batched().each().build()
    assert together(x).mean().item() == pytest.approx(0, abs=1e-6)


def test_a_body_may_return_a_tuple_led_by_a_tensor():
    graph = start().map(nn.LSTM(4, 3, batch_first=True)).each().build()
    assert graph(torch.randn(2, 5, 4)).shape == (2, 5, 3)


def test_a_body_that_returns_no_tensor_is_refused_with_node_and_type():
    graph = start().map(lambda _: None).each().build()
    with pytest.raises(TypeError, match=r"map_2.*NoneType"):
        graph(torch.ones(2, 2))


def test_the_keys_of_the_body_stand_under_the_map():
    graph = start().map(nn.Linear(2, 2)).each().build()
    assert set(graph.state_dict()) == {"map_2.weight", "map_2.bias"}
    assert "m.weight" in start().map(nn.Linear(2, 2), name="m").slices(1).build().state_dict()
    assert "t/weight" in dict(
        start().map(nn.Linear(2, 2)).each().tag("t").build().qualified_parameters()
    )


@each_row(
    ("describe", "message"),
    [
        (
            lambda: start().map(double).over("later").tag("later"),
            r"test_mapping\.py:\d+: .*over\('later'\)",
        ),
        (lambda: start().tag("left").map(double).over("lefd"), "lefd"),
        (lambda: start().map(double).slices(0), r"test_mapping\.py:\d+: .*slices .* not 0"),
        (lambda: start().map(double).slices(-2), "slices .* not -2"),
        (lambda: start().split([double, triple]).map(double).each(), "2 streams"),
    ],
)
def test_impossible_maps_are_refused_while_building(describe, message):
    with pytest.raises(BuildError, match=message):
        describe().build()


@pytest.mark.case("runtime", 84)
def test_a_map_without_an_end_is_refused():
    builder = FlowBuilder()
    builder.map(double).batched()
    with pytest.raises(BuildError, match="map") as caught:
        builder.build()
    assert "each" in str(caught.value)
    assert "test_mapping.py" in str(caught.value)
