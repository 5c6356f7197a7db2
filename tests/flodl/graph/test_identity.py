"""The structural hash: equal for equal architectures, in every process."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from flodl.errors import ArchitectureMismatch
from flodl.graph import FlowBuilder
from flodl.graph.routing import FixedSelector, LearnedHalt, StateAdd, ThresholdHalt
from tests.rows import each_row

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


@pytest.mark.case("runtime", 34)
def test_another_width_another_loop_and_another_label(tmp_path):
    network(hidden=16).save_checkpoint(tmp_path / "wide.fdl")
    with pytest.raises(ArchitectureMismatch):
        network(hidden=8).load_checkpoint(tmp_path / "wide.fdl")
    assert network(hidden=16, label="other").load_checkpoint(tmp_path / "wide.fdl").missing == []
    three, five = (
        FlowBuilder().loop_body(nn.Linear(2, 2)).for_n(n).build().structural_hash() for n in (3, 5)
    )
    assert three != five


def start():
    return FlowBuilder.from_(nn.Linear(4, 4)).tag("a").through(nn.Linear(4, 4)).tag("b")


def layer():
    return nn.Linear(4, 4)


VARIANTS = {
    "plain": start,
    "longer": lambda: start().through(layer()),
    "another kind": lambda: start().through(nn.ReLU()),
    "residual": lambda: start().also(layer()),
    "named": lambda: start().through(layer(), name="x"),
    "tagged": lambda: start().through(layer()).tag("x"),
    "sum": lambda: start().split([layer(), layer()]).merge("add"),
    "mean": lambda: start().split([layer(), layer()]).merge("mean"),
    "no reference": lambda: start().through(StateAdd()).tag("c"),
    "reference to a": lambda: start().through(StateAdd()).using("a").tag("c"),
    "reference to b": lambda: start().through(StateAdd()).using("b").tag("c"),
    "references a, b": lambda: start().through(StateAdd()).using("a", "b").tag("c"),
    "references b, a": lambda: start().through(StateAdd()).using("b", "a").tag("c"),
    "state of c": lambda: start().through(StateAdd()).using("c").tag("c").through(layer()).tag("d"),
    "state of d": lambda: start().through(StateAdd()).using("d").tag("c").through(layer()).tag("d"),
    "input x": lambda: start().input("x").through(StateAdd()).using("x"),
    "input y": lambda: start().input("y").through(StateAdd()).using("y"),
    "inputs x, y": lambda: start().input("x", "y").through(StateAdd()).using("x"),
    "inputs y, x": lambda: start().input("y", "x").through(StateAdd()).using("x"),
    "for 3": lambda: start().loop_body(layer()).for_n(3),
    "for 5": lambda: start().loop_body(layer()).for_n(5),
    "while, at most 3": lambda: start().loop_body(layer()).while_cond(ThresholdHalt(1), 3),
    "while, at most 5": lambda: start().loop_body(layer()).while_cond(ThresholdHalt(1), 5),
    "until, at most 3": lambda: start().loop_body(layer()).until_cond(ThresholdHalt(1), 3),
    "learned halt": lambda: start().loop_body(layer()).until_cond(LearnedHalt(4), 3),
    "gate of 2": lambda: start().gate(FixedSelector(0), [nn.ReLU(), nn.ReLU()]),
    "gate of 3": lambda: start().gate(FixedSelector(0), [nn.ReLU(), nn.ReLU(), nn.ReLU()]),
    "switch of 2": lambda: start().switch(FixedSelector(0), [nn.ReLU(), nn.ReLU()]),
    "switch of 3": lambda: start().switch(FixedSelector(0), [nn.ReLU(), nn.ReLU(), nn.ReLU()]),
    "map each": lambda: start().map(layer()).each(),
    "map over a": lambda: start().map(layer()).over("a"),
    "map over b": lambda: start().map(layer()).over("b"),
    "slices 1": lambda: start().map(nn.Identity()).slices(1),
    "slices 2": lambda: start().map(nn.Identity()).slices(2),
}


def test_every_change_of_wiring_or_of_an_operator_changes_the_hash():
    hashes = {name: variant().build().structural_hash() for name, variant in VARIANTS.items()}
    by_hash = {}
    for name, value in hashes.items():
        assert value not in by_hash, f"{name} and {by_hash[value]} have one hash"
        by_hash[value] = name
    for name, variant in VARIANTS.items():
        assert variant().build().structural_hash() == hashes[name]


KEPT = {
    "plain": "4d724431",
    "residual": "b8c9e1c2",
    "mean": "6f43e4dc",
    "reference to a": "c1b8c9f7",
    "state of c": "f04f9a48",
    "inputs x, y": "cd3654ef",
    "for 3": "36ce8415",
    "until, at most 3": "07787630",
    "gate of 2": "d1196b17",
    "switch of 2": "175f5cef",
    "map over a": "434ac108",
}
"""Hashes in checkpoints of earlier versions, which are compared when a model is loaded."""


@each_row("name", KEPT)
def test_a_graph_has_the_hash_that_is_in_checkpoints_of_earlier_versions(name):
    assert VARIANTS[name]().build().short_hash() == KEPT[name]


def test_running_a_map_in_one_call_is_no_other_architecture():
    sliced, whole = (
        FlowBuilder().map(layer()).each().build(),
        FlowBuilder().map(layer()).batched().each().build(),
    )
    assert sliced.structural_hash() == whole.structural_hash()


@each_row(
    "place",
    [
        lambda inner: FlowBuilder().through(inner),
        lambda inner: FlowBuilder().through(nn.Sequential(nn.ReLU(), inner)),
        lambda inner: FlowBuilder().loop_body(inner).for_n(2),
        lambda inner: FlowBuilder().gate(FixedSelector(0), [nn.ReLU(), inner]),
        lambda inner: FlowBuilder().switch(FixedSelector(0), [inner, nn.ReLU()]),
        lambda inner: FlowBuilder().map(inner).each(),
        lambda inner: FlowBuilder().through(FlowBuilder().through(inner).build()),
    ],
    ids=["node", "sequential", "loop", "gate", "switch", "map", "two levels"],
)
def test_a_nested_graph_enters_wherever_it_is(place):
    def hashed(how, label=None):
        inner = FlowBuilder().split([nn.ReLU(), nn.Tanh()]).merge(how)
        inner = inner.label(label) if label else inner
        return place(inner.build()).build().structural_hash()

    assert hashed("add") != hashed("mean")
    assert hashed("add") == hashed("add", label="inner")


def test_a_module_replaced_in_place_is_noticed_at_any_depth():
    def build():
        return FlowBuilder.from_(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))).build()

    graph = FlowBuilder.from_(nn.Linear(3, 3)).through(build()).build()
    seen = {graph.structural_hash()}
    graph._modules["linear_1"] = nn.Linear(3, 3, bias=False)
    seen.add(graph.structural_hash())
    graph.graph_2.sequential_1[0] = nn.Linear(3, 5, bias=False)
    seen.add(graph.structural_hash())
    graph.graph_2.sequential_1[1].weight = nn.Parameter(torch.zeros(4, 5))
    seen.add(graph.structural_hash())
    graph.graph_2.sequential_1[1].register_buffer("mask", torch.ones(2))
    seen.add(graph.structural_hash())
    assert len(seen) == 5
    graph.graph_2.sequential_1[1].register_buffer("passing", torch.ones(2), persistent=False)
    assert graph.structural_hash() in seen
    with torch.no_grad():
        graph.linear_1.weight.add_(1)
    assert graph.structural_hash() in seen


def test_a_graph_as_it_was_has_the_hash_it_had():
    graph = FlowBuilder.from_(nn.Linear(3, 3)).build()
    before = graph.structural_hash()
    original = graph._modules["linear_1"]
    graph._modules["linear_1"] = nn.Linear(3, 7)
    assert graph.structural_hash() != before
    graph._modules["linear_1"] = original
    assert graph.structural_hash() == before


def test_sharing_weights_is_no_other_architecture():
    shared = nn.Linear(3, 3)
    tied = FlowBuilder.from_(shared).through(nn.Sequential(shared, shared)).build()
    apart = FlowBuilder.from_(nn.Linear(3, 3))
    apart = apart.through(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))).build()
    assert tied.structural_hash() == apart.structural_hash()


def test_copies_have_the_hash_of_their_original():
    graph = network()
    before = graph.structural_hash()
    assert copy.deepcopy(graph).structural_hash() == before
    assert pickle.loads(pickle.dumps(graph)).structural_hash() == before
    assert copy.deepcopy(network()).structural_hash() == before


def test_a_lazy_layer_has_a_hash_before_and_another_after_its_first_input():
    graph = FlowBuilder.from_(nn.LazyLinear(3)).build()
    before = graph.structural_hash()
    graph(torch.ones(2, 5))
    assert graph.structural_hash() != before


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
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )
    assert there.stdout.strip() == here
