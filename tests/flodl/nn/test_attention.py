"""Self-attention that chains like any other layer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flodl.graph import FlowBuilder
from flodl.nn import SelfAttention
from tests.rows import each_row


def test_it_is_the_attention_of_torch_to_the_sequence_itself():
    layer = SelfAttention(8, 2)
    x = torch.randn(3, 5, 8)
    expected, _ = layer.attention(x, x, x)
    torch.testing.assert_close(layer(x), expected)
    assert layer.attention.batch_first


def test_it_is_a_layer_of_a_graph():
    graph = FlowBuilder.from_(SelfAttention(8, 2)).through(nn.Linear(8, 4)).build()
    assert graph(torch.randn(3, 5, 8)).shape == (3, 5, 4)
    assert list(graph._modules) == ["selfattention_1", "linear_2"]
    graph(torch.randn(3, 5, 8)).sum().backward()
    assert all(p.grad is not None for p in graph.parameters())


def test_samples_do_not_see_each_other():
    layer = SelfAttention(4, 1).eval()
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(layer(x)[1:], layer(x[1:]))


def test_it_compiles_in_one_piece_and_copies():
    layer = SelfAttention(8, 2)
    x = torch.randn(3, 5, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), layer(x))
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x))
    assert repr(layer).startswith("SelfAttention(\n  embed=8, heads=2")


@each_row(
    ("arguments", "message"),
    [
        ((8, 3), "multiple of heads, got 8 and 3"),
        ((0, 1), "embed must be an integer of at least 1, got 0"),
        ((8, 2.0), r"heads must be an integer of at least 1, got 2\.0"),
        ((True, 1), "embed must be an integer of at least 1, got True"),
    ],
)
def test_impossible_sizes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SelfAttention(*arguments)
