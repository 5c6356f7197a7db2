"""What stands against a rewrite: the layers are then called as they are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from flodl.graph import SoftmaxRouter
from tests.rows import each_row

from .layers import Recorder, start
from .test_rewrites import KINDS, both, gate, linears, twins, untouched


def hook(module):
    module.register_forward_hook(lambda *_: None)


def pre_hook(module):
    module.register_forward_pre_hook(lambda *_: None)


def backward_hook(module):
    module.register_full_backward_hook(lambda *_: None)


def parameter_hook(module):
    module.weight.register_hook(lambda _: None)


def accumulate_hook(module):
    module.weight.register_post_accumulate_grad_hook(lambda _: None)


def weight_norm(module):
    parametrizations.weight_norm(module)


def old_spectral_norm(module):
    nn.utils.spectral_norm(module)


def own_forward(module):
    module.forward = lambda x, forward=module.forward: forward(x)


def own_class(module):
    module.__class__ = type("Mine", (nn.Linear,), {})


def compiled_layer(module):
    module._compiled_call_impl = module._call_impl


SPOILERS = [hook, pre_hook, backward_hook, parameter_hook, accumulate_hook, weight_norm,
            old_spectral_norm, own_forward, own_class, compiled_layer]  # fmt: skip


def layers_of(kind, graph):
    """A layer that the rewrite would call in another way."""
    return {
        "gate normed": lambda: graph.gate_2.experts[1][0],
        "loop": lambda: graph.loop_2.body.map_3,
        "map": lambda: graph.map_2[0],
        "twins": lambda: graph.linear_2,
        "sequence": lambda: graph.map_2.linear_1,
    }[kind]()


@each_row("spoil", SPOILERS)
@each_row("kind", ["gate normed", "loop", "map", "twins", "sequence"])
def test_a_layer_with_ways_of_its_own_is_called_as_it_is(kind, spoil):
    plain, graph = both(KINDS[kind])
    x = torch.randn(5, 4)
    graph(x)
    for one in (plain, graph):
        one.eval()  # the old spectral norm changes with every call in training mode
        torch.manual_seed(4)
        spoil(layers_of(kind, one))
    for one in (plain, graph):
        one.reset_state()
    assert untouched(plain, graph, x)
    assert any(one.refusal for one in graph.rewrites()) or not graph.rewrites()


def test_a_hook_for_all_modules_stops_every_rewrite():
    plain, graph = both(gate)
    x = torch.randn(5, 4)
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m))
    try:
        assert torch.equal(plain(x), graph(x))
    finally:
        handle.remove()
    assert sum(isinstance(module, nn.LayerNorm) for module in seen) == 6


def test_autocast_stops_every_rewrite():
    plain, graph = both(gate)
    with torch.autocast("cpu", torch.bfloat16):
        assert untouched(plain, graph, torch.randn(5, 4))


def test_dropout_stops_a_rewrite_while_it_drops():
    def make():
        experts = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(3)]
        return start().gate(SoftmaxRouter(4, 3), experts).build()

    plain, graph = both(make)
    x = torch.randn(5, 4)
    for one in (plain, graph):
        torch.manual_seed(3)
        one.drawn = one(x).detach()
    assert torch.equal(plain.drawn, graph.drawn)
    assert "dropout draws random numbers" in graph.rewrites()[0].refusal
    assert linears(graph.eval(), x) == 3


@each_row(
    ("experts", "reason"),
    [
        ([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)], "differ in layers or shapes"),
        ([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))], "differ"),
        ([nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(s)) for s in (0.1, 0.2)], "differ"),
        ([nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=e)) for e in (0.1, 0.2)], "differ"),
        ([nn.Tanh(), nn.Tanh()], "do not begin with a Linear"),
        ([nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)) for _ in range(2)], "Softmax does not"),
        ([nn.Linear(4, 4), lambda x: x], "Lambda is not a layer that it knows"),
        ([nn.Identity(), nn.Linear(4, 4)], "differ"),
    ],
)
def test_experts_that_are_not_alike_are_called_one_by_one(experts, reason):
    graph = start().gate(SoftmaxRouter(4, 2), experts).build()
    assert reason in graph.rewrites()[0].refusal
    x = torch.randn(5, 4)
    assert torch.equal(graph(x), graph.rewrite()(x))


def test_experts_of_another_dtype_are_called_one_by_one():
    graph = gate("linear").rewrite()
    graph.gate_2.experts[1].double()
    assert "dtypes" in graph.rewrites()[0].refusal
    with pytest.raises(RuntimeError, match="dtype") as caught:
        graph(torch.randn(5, 4))
    assert "in gate_2, expert 1 (Linear)" in caught.value.__notes__


def test_a_layer_replaced_in_place_is_called_and_one_put_back_is_computed_again():
    graph = gate("linear").rewrite()
    x = torch.randn(5, 4)
    assert linears(graph, x) == 3
    layer, recorder = graph.gate_2.experts[0], Recorder(lambda x: x.new_ones(len(x), 5))
    graph.gate_2.experts[0] = recorder
    plain = copy.deepcopy(graph).rewrite(False)
    assert torch.equal(graph(x), plain(x))
    assert len(recorder.seen) == 1
    graph.gate_2.experts[0] = layer
    assert linears(graph, x) == 3


@each_row(
    ("layers", "weights"),
    [
        (lambda: nn.Linear(80, 80), 6400),
        (lambda: nn.Sequential(nn.Linear(80, 900), nn.GELU()), 72000),
        (lambda: nn.Sequential(nn.Linear(80, 40), nn.ReLU(), nn.Linear(40, 80)), 6400),
    ],
)
def test_large_experts_are_called_one_by_one(layers, weights):
    def make():
        return start().gate(SoftmaxRouter(80, 3), [layers() for _ in range(3)]).build()

    plain, graph = both(make)
    x = torch.randn(2, 80)
    assert untouched(plain, graph, x)
    assert graph.rewrites()[0].refusal == f"experts of {weights} weights are faster one by one"
    assert linears(graph, x) == linears(plain, x)


def test_many_rows_are_computed_one_by_one_and_few_are_not():
    plain, graph = both(lambda: gate("linear"))
    few, many = torch.randn(5, 4), torch.randn(400, 4)
    assert linears(graph, few) == 3
    assert untouched(plain, graph, many)
    assert linears(graph, few) == 3
    assert graph.rewrites()[0].refusal == ""


def test_a_rewrite_that_computes_something_else_is_given_up(monkeypatch):
    plain, graph = both(gate)
    monkeypatch.setattr("flodl.graph.rewriting.experts._mix", lambda *_: torch.ones(5, 6))
    assert untouched(plain, graph, torch.randn(5, 4))
    assert "its value differs by" in graph.rewrites()[0].refusal


def test_values_that_are_not_finite_are_no_reason_to_give_up():
    graph = gate("linear").rewrite()
    graph(torch.full((5, 4), torch.inf))
    assert linears(graph, torch.randn(5, 4)) == 3


# --- Shared nodes -------------------------------------------------------------------------------


@each_row("reader", [nn.ReLU(inplace=True), lambda x: x.mul_(2), nn.Identity(), nn.Flatten(0)])
def test_equal_nodes_both_run_if_somebody_may_write_into_their_value(reader):
    layer = nn.Linear(4, 4)
    flow = start().tag("x").through(layer).through(reader).tag("a").through(nn.Tanh())
    graph = flow.map(nn.Identity()).batched().over("x").through(layer).through(nn.Tanh()).build()
    assert not [one for one in graph.rewrites() if "earlier" in one.what]


def test_a_reader_replaced_by_one_that_writes_gets_its_own_value():
    plain, graph = both(twins)
    for one in (plain, graph):
        one.tanh_7 = nn.ReLU(inplace=True)
    assert untouched(plain, graph, torch.randn(5, 4))


def test_tagged_values_are_computed_twice():
    layer = nn.Linear(4, 4)
    flow = start().split([layer, layer]).tag_group("both").merge("add")
    assert not flow.build().rewrites()
