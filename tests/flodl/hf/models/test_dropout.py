"""Dropout on the CPU: the probability, the scale, the gradient, and models that train with it."""

import pytest
import torch
from torch import nn

from flodl.hf.encoder_model import set_unpad
from flodl.hf.head_kind import HeadKind
from flodl.hf.layers.activations import dropout
from flodl.hf.layers.attention import attend_tokens
from flodl.hf.layers.layout import Layout
from tests.flodl.hf.models.cells import batch, pair
from tests.rows import each_row


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_part_of_the_values_is_zero_and_the_sum_is_expected_to_stay(p):
    torch.manual_seed(0)
    values = torch.ones(1000, 1001)
    found = dropout(values, p, training=True)
    kept = found != 0
    # The binomial distribution is 5e-4 wide here.
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=2.5e-3)
    assert found[kept].unique().item() == pytest.approx(1 / (1 - p), rel=1e-4)
    # No column, row or place among four consecutive values is special.
    for axis in (0, 1):
        assert kept.double().mean(axis).sub(1 - p).abs().max() < 0.09
    places = kept.flatten()[: 4 * 250_000].view(-1, 4).double().mean(0)
    assert places.sub(1 - p).abs().max() < 5e-3
    pairs = kept[:, :-1].double() * kept[:, 1:].double()
    assert pairs.mean().item() == pytest.approx((1 - p) ** 2, abs=5e-3)


def test_gradients_are_zero_and_scaled_where_values_are():
    values = torch.randn(64, 65, requires_grad=True)
    found = dropout(values, 0.3, training=True)
    found.sum().backward()
    assert values.grad.unique().tolist() == pytest.approx([0, 1 / 0.7], rel=1e-4)
    assert torch.equal(values.grad != 0, found != 0)
    torch.testing.assert_close(values.grad * values.detach(), found.detach())


def test_the_same_seed_drops_the_same_values():
    values = torch.randn(64, 65)
    first, second = (_seeded(values) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, dropout(values, 0.3, training=True))


def _seeded(values):
    torch.manual_seed(3)
    return dropout(values, 0.3, training=True)


@each_row("p", [0.0, 1e-9, 1.0])
@each_row("shape", [(7,), (64, 65)])
def test_the_ends_of_the_range_are_exact(p, shape):
    values = torch.randn(shape)
    expected = torch.zeros(shape) if p == 1 else values
    assert torch.equal(dropout(values, p, training=True), expected)
    assert dropout(values, 0.5, training=False) is values


def test_attention_that_drops_weights_is_on_average_attention_that_does_not():
    torch.manual_seed(0)
    lengths, heads, width = (9, 9, 40, 3), 2, 16
    mask = torch.zeros(4, 40, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, :length] = True
    mask[1, 0] = False
    keys = mask[:, None, None, :]
    places = mask.index_fill(1, torch.tensor([0]), True).flatten().nonzero().flatten()
    layout = Layout(4, 40, places, keys)
    in_runs = layout.in_runs(torch.float32)
    assert [(run.rows, run.length, run.masked) for run in in_runs.runs] == [
        (1, 9, False),
        (1, 9, True),
        (1, 40, False),
        (1, 3, False),
    ]
    query, key, value = torch.randn(3, len(places), width).unbind()
    expected = attend_tokens(query, key, value, heads, layout, 0.0)
    exact = attend_tokens(query, key, value, heads, in_runs, 0.0)
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-6)
    tries = [attend_tokens(query, key, value, heads, in_runs, 0.1) for _ in range(600)]
    assert not torch.equal(tries[0], tries[1])
    mean = torch.stack(tries).mean(0)
    assert (mean - expected).abs().mean() < 0.02


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_a_model_in_training_mode_differs_from_call_to_call_and_learns(family, unpad):
    torch.manual_seed(0)
    _, graph = pair(family, HeadKind.SEQCLS)
    set_unpad(graph, unpad)
    for module in graph.modules():
        for name in ("dropout", "attention_dropout", "output_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.1)
    graph.train()
    inputs, labels = batch(family), torch.tensor([0, 1, 2, 1])
    assert not torch.equal(graph(**inputs), graph(**inputs))
    optimizer = torch.optim.Adam(graph.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(graph(**inputs)[: len(labels)], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
