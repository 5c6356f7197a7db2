"""The structural hash: equal for equal architectures, in every process."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

from flodl.graph import FlowBuilder

PROGRAM = """
from torch import nn
from flodl.graph import FlowBuilder
builder = FlowBuilder.from_(nn.Linear(4, 8)).tag("enc").through(nn.BatchNorm1d(8))
print(builder.split([nn.ReLU(), nn.Tanh()]).merge("mean").build().structural_hash())
"""


def network(*, hidden=8, how="mean", tag="enc", label=None, dropout=0.1, dtype=torch.float32):
    builder = FlowBuilder.from_(nn.Linear(4, hidden)).tag(tag).through(nn.BatchNorm1d(hidden))
    builder.split([nn.ReLU(), nn.Dropout(dropout)]).merge(how)
    if label:
        builder.label(label)
    return builder.build().to(dtype)


def test_the_hash_is_sha256_in_hex_and_shortens_to_eight_digits():
    graph = network()
    assert len(graph.structural_hash()) == 64
    assert int(graph.structural_hash(), 16) >= 0
    assert graph.short_hash() == graph.structural_hash()[:8]


def test_weights_label_dtype_mode_and_rates_do_not_enter():
    expected = network().structural_hash()
    assert network(label="net").structural_hash() == expected
    assert network(dtype=torch.float64).structural_hash() == expected
    assert network(dropout=0.5).structural_hash() == expected
    assert network().eval().structural_hash() == expected


def test_shapes_operations_and_names_enter():
    hashes = {
        network().structural_hash(),
        network(hidden=16).structural_hash(),
        network(how="add").structural_hash(),
        network(tag="encoder").structural_hash(),
    }
    assert len(hashes) == 4


def test_the_structure_of_a_nested_graph_enters():
    def nested(how):
        inner = FlowBuilder().split([nn.ReLU(), nn.Tanh()]).merge(how).build()
        return FlowBuilder.from_(inner).build().structural_hash()

    assert nested("add") != nested("mean")


def test_the_hash_is_equal_across_processes():
    here = (
        FlowBuilder.from_(nn.Linear(4, 8))
        .tag("enc")
        .through(nn.BatchNorm1d(8))
        .split([nn.ReLU(), nn.Tanh()])
        .merge("mean")
        .build()
        .structural_hash()
    )
    there = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == here
