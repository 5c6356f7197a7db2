"""Rewrites compute nodes in another way, and nothing else about a graph changes."""

from __future__ import annotations

import copy
import pickle
import random
from collections import Counter

import pytest
import torch
from hypothesis import given
from torch import nn
from torch.overrides import TorchFunctionMode

from flodl.graph import FlowBuilder, Lambda, NamedInputModule, SoftmaxRouter, StateAdd
from flodl.graph.graph import Graph
from tests.rows import each_row

from .layers import start
from .reference.agreement import Pair
from .reference.grammar import random_recipe
from .test_random_graphs import CALLS, LEADS, RECIPES, examples, recipes

CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-11, "atol": 1e-12}}


class Calls(TorchFunctionMode):
    """Counts the calls of torch's functions by name."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen[getattr(func, "__name__", "")] += 1
        return func(*args, **(kwargs or {}))


def linears(graph, x):
    """How many products of linear layers a call takes."""
    graph(x)  # compares its values
    with Calls() as calls:
        graph(x)
    return sum(calls.seen[name] for name in ("linear", "baddbmm", "bmm", "addmm"))


# --- One graph of each kind --------------------------------------------------------------------


def expert(width, kind):
    layers = {
        "linear": lambda: nn.Linear(width, 5),
        "without bias": lambda: nn.Linear(width, 5, bias=False),
        "normed": lambda: nn.Sequential(nn.Linear(width, 6), nn.GELU(), nn.LayerNorm(6)),
        "plainly normed": lambda: nn.Sequential(
            nn.Linear(width, 6), nn.LayerNorm(6, elementwise_affine=False), nn.Tanh()
        ),
        "deep": lambda: nn.Sequential(
            nn.Linear(width, 6),
            nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(0.0)),
            nn.Linear(6, 7, bias=False),
            nn.LayerNorm(7, bias=False),
            nn.Linear(7, 3),
        ),
    }
    return layers[kind]()


def gate(kind="normed", experts=3, width=4):
    chosen = [expert(width, kind) for _ in range(experts)]
    return start().gate(SoftmaxRouter(width, experts), chosen).build()


def settling(width=4):
    """``h = tanh(W h + norm(U x + c))``, where everything with ``x`` is the same each time."""
    inner = FlowBuilder.from_(nn.Linear(width, width)).tag("wh").input("x")
    inner.map(nn.Linear(width, width)).batched().over("x").through(nn.LayerNorm(width)).tag("ux")
    return inner.through(StateAdd()).using("wh").through(nn.Tanh()).label("inner").build()


def loop(width=4, times=5):
    flow = FlowBuilder.from_(nn.Linear(width, width)).tag("x")
    return flow.loop_body(settling(width)).for_n(times).using("x").build()


class Cell(NamedInputModule):
    """A recurrent layer of the user."""

    def __init__(self, width):
        super().__init__()
        self.state = nn.Linear(width, width)

    def forward_named(self, x, refs):
        return torch.tanh(x + self.state(refs["h"]))


def sequence(width=4):
    """A recurrent graph over the first dimension, whose input projection needs no state."""
    cell = FlowBuilder.from_(nn.Linear(width, width)).through(Cell(width)).using("h").tag("h")
    return start().map(cell.label("cell").build()).each().build()


def mapped(width=4):
    body = nn.Sequential(nn.Linear(width, 6), nn.SiLU(), nn.LayerNorm(6))
    return start().map(body).each().build()


def twins(width=4):
    """Two branches that are one: the same two layers on the same value."""
    first, second, third = (nn.Linear(width, width) for _ in range(3))
    flow = start().split([first, first, third]).merge("add")
    return flow.split([second, nn.Tanh(), second]).merge("mean").through(nn.Tanh()).build()


KINDS = {
    **{f"gate {kind}": (lambda kind=kind: gate(kind)) for kind in
       ("linear", "without bias", "normed", "plainly normed", "deep")},
    "loop": loop,
    "sequence": sequence,
    "map": mapped,
    "twins": twins,
}  # fmt: skip
FEWER = {"gate linear": 3, "gate normed": 3, "gate deep": 4, "loop": 7, "map": 1, "twins": 3,
         "sequence": 6}  # fmt: skip
"""Products of linear layers in a call with five rows; the plain graphs take the numbers below."""
PLAIN = {"gate linear": 4, "gate normed": 4, "gate deep": 10, "loop": 11, "map": 5, "twins": 5,
         "sequence": 10}  # fmt: skip


def both(make, dtype=torch.float32, seed=0):
    """The plain and the rewritten graph with the same weights."""
    torch.manual_seed(seed)
    plain = make().to(dtype)
    return plain, copy.deepcopy(plain).rewrite()


def compare(plain, rewritten, *inputs):
    """Outputs, tags, and gradients of parameters and inputs are equal within rounding."""
    close = CLOSE[inputs[0].dtype]
    mine, theirs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    ours, expected = rewritten(*mine), plain(*theirs)
    torch.testing.assert_close(ours, expected, **close)
    for name in plain.tag_names():
        torch.testing.assert_close(rewritten.tagged(name), plain.tagged(name), **close)
    (ours * ours).sum().backward()
    (expected * expected).sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, **close)
    for (name, p), q in zip(rewritten.named_parameters(), plain.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, **close, msg=lambda m, n=name: f"{n}: {m}")


def untouched(plain, graph, x):
    """Whether a graph computes bit for bit what the plain one does."""
    return torch.equal(graph(x), plain(x)) and torch.equal(graph(x), plain(x))


@each_row("dtype", CLOSE)
@each_row("kind", KINDS)
def test_a_rewritten_graph_equals_the_plain_one(kind, dtype):
    for seed, lead in enumerate([(5,), (2,), (3, 2)]):
        plain, graph = both(KINDS[kind], dtype, seed)
        assert graph.is_rewritten
        assert not plain.is_rewritten
        for _ in range(2):
            compare(plain, graph, torch.randn(*lead, 4, dtype=dtype))


@each_row("kind", FEWER)
def test_a_rewritten_graph_takes_fewer_products(kind):
    plain, graph = both(KINDS[kind])
    x = torch.randn(5, 4)
    assert (linears(plain, x), linears(graph, x)) == (PLAIN[kind], FEWER[kind])
    assert linears(graph.rewrite(False), x) == PLAIN[kind]
    for one in (plain, graph):
        one.reset_state()
    assert untouched(plain, graph, x)


@each_row(
    ("kind", "said"),
    [
        ("gate normed", ["gate_2: experts as one product"]),
        ("loop", ["loop_2: nodes that do not depend on the loop's state, once"]),
        ("map", ["map_2: layers of a map for all parts at once"]),
        ("sequence", ["map_2: layers of a map for all parts at once"]),
        (
            "twins",
            ["linear_3: a node that computes the same as an earlier one, once",
             "linear_8: a node that computes the same as an earlier one, once"],
        ),
    ],
)  # fmt: skip
def test_the_rewrites_are_announced_with_their_nodes(kind, said):
    graph = KINDS[kind]()
    assert [str(rewrite) for rewrite in graph.rewrites()] == said
    assert [str(rewrite) for rewrite in graph.rewrite().rewrites()] == said
    assert "rewritten[" in graph.source()


@examples(12)
@given(RECIPES, CALLS, LEADS)
def test_rewritten_random_graphs_do_what_their_recipes_say(recipe, calls, lead):
    pair = Pair(recipe)
    pair.graph.rewrite()
    pair.follow(calls, lead)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@examples(1500)
@given(recipes(size=10, depth=3), CALLS, LEADS)
def test_thousands_of_rewritten_graphs_do_what_their_recipes_say(recipe, calls, lead):
    pair = Pair(recipe)
    pair.graph.rewrite()
    pair.follow(calls, lead)


def test_random_graphs_contain_rewrites_of_most_kinds():
    found = Counter()
    for seed in range(40):
        pair = Pair(random_recipe(random.Random(seed), size=10, depth=3))
        found.update(one.what for one in pair.graph.rewrites() if not one.refusal)
    assert len(found) >= 2, found


# --- Weights of all shapes, errors, second derivatives ------------------------------------------


@each_row("shape", [(3,), (5, 1, 3), (1, 3)])
def test_weights_of_other_shapes_are_treated_as_by_the_plain_gate(shape):
    def make():
        router = Lambda(lambda _: torch.ones(shape) * 0.5)
        return start().gate(router, [nn.Linear(4, 4) for _ in range(3)]).build()

    plain, graph = both(make)
    x = torch.randn(5, 1, 4) if len(shape) == 3 else torch.randn(5, 4)
    outcomes = []
    for one in (plain, graph):
        try:
            outcomes.append(one(x))
        except ValueError as error:
            outcomes.append(str(error))
    if isinstance(outcomes[0], str):
        assert outcomes[0] == outcomes[1]
    else:
        torch.testing.assert_close(*outcomes)


def test_an_error_in_an_expert_names_it_as_before():
    notes = []
    for graph in both(gate):
        with pytest.raises(RuntimeError) as caught:
            graph(torch.randn(5, 9))
        notes.append(caught.value.__notes__)
    assert notes[0] == notes[1]


def test_an_error_in_a_loop_names_node_and_iteration_as_before():
    notes = []
    for graph in both(loop):
        graph.loop_2.body.map_3 = nn.Linear(7, 4)
        with pytest.raises(RuntimeError) as caught:
            graph(torch.randn(5, 4))
        notes.append(caught.value.__notes__)
    assert notes[0] == notes[1]
    assert any("loop iteration 0" in note for note in notes[0])


@each_row("kind", ["gate deep", "gate normed", "loop", "map", "twins"])
def test_second_derivatives_are_those_of_the_plain_graph(kind):
    found = []
    for graph in both(KINDS[kind], torch.float64):
        x = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4).requires_grad_()
        (slope,) = torch.autograd.grad(graph(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), [x, *graph.parameters()],
                                         allow_unused=True))  # fmt: skip
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_gradients_of_single_samples_by_vmap_work_as_before():
    plain, graph = both(lambda: gate("deep"))
    x = torch.randn(5, 4)
    found = []
    for one in (plain, graph):

        def loss(parameters, sample, one=one):
            return torch.func.functional_call(one, parameters, (sample[None],)).square().sum()

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
        found.append(each(dict(one.named_parameters()), x))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5)


def test_frozen_experts_stay_without_gradient():
    plain, graph = both(gate)
    for one in (plain, graph):
        one.gate_2.experts[1].requires_grad_(False)
    compare(plain, graph, torch.randn(5, 4))


# --- Loops and maps -----------------------------------------------------------------------------


class Doubles(NamedInputModule):
    """Writes into what it was given, as careless modules do."""

    def forward_named(self, x, refs):
        return x + refs["u"].mul_(2)


def test_a_reader_that_writes_into_its_input_gets_a_copy():
    def make():
        body = start().tag("h").input("x").map(nn.Linear(4, 4)).batched().over("x").tag("u")
        body.through(lambda u: u * 0).through(StateAdd()).using("h").through(Doubles()).using("u")
        flow = start().tag("x").loop_body(body.build()).for_n(3).using("x")
        return flow.build()

    plain, graph = both(make)
    assert not graph.rewrites()[0].refusal
    compare(plain, graph, torch.randn(5, 4))


@each_row("early", [True, False])
def test_a_body_that_writes_into_its_inputs_sees_what_it_wrote(early):
    class Grows(NamedInputModule):
        def forward_named(self, x, refs):
            return x + refs["x"].add_(1)

    def make():
        body = start()
        body = body.input("x").through(Grows()).using("x") if early else body.input("x")
        body.tag("h").map(nn.Linear(4, 4)).batched().over("x").through(StateAdd()).using("h")
        body = body if early else body.through(Grows()).using("x")
        flow = start().through(lambda x: x + 1).tag("x").loop_body(body.build())
        return flow.for_n(3).using("x").build()

    plain, graph = both(make)
    x = torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(graph(x.clone()), plain(x.clone()))


def test_random_numbers_of_the_rest_are_drawn_in_the_same_order():
    def make():
        body = FlowBuilder.from_(nn.Dropout(0.5)).tag("wh").input("x")
        body.map(nn.Linear(4, 4)).batched().over("x").through(nn.Dropout(0.5)).through(StateAdd())
        flow = start().tag("x").loop_body(body.using("wh").build()).for_n(4).using("x")
        return flow.build()

    plain, graph = both(make)
    assert not graph.rewrites()[0].refusal
    x = torch.randn(6, 4)
    torch.manual_seed(1)
    expected = plain(x)
    torch.manual_seed(1)
    torch.testing.assert_close(graph(x), expected)


@each_row("end", ["while_cond", "until_cond"])
def test_a_conditional_loop_stops_at_the_same_iteration(end):
    def make():
        flow = FlowBuilder.from_(nn.Linear(4, 4)).tag("x").loop_body(settling())
        return getattr(flow, end)(lambda h: h.mean() - 0.05, 6).using("x").build()

    plain, graph = both(make)
    x = torch.randn(5, 4)
    compare(plain, graph, x)
    halts = [one.traces("loop_2/halt") for one in (plain, graph)]
    torch.testing.assert_close(halts[0], halts[1])


def test_what_a_body_leaves_behind_is_that_of_its_last_call():
    plain, graph = both(loop)
    x = torch.randn(5, 4)
    plain(x), graph(x)
    for tag in ("wh", "ux"):
        mine, expected = (one.loop_2.body.tagged(tag) for one in (graph, plain))
        torch.testing.assert_close(mine, expected)
    graph.end_step()
    assert graph.loop_2.body.step_count == 1


def test_a_body_with_state_carries_it_from_part_to_part_and_from_call_to_call():
    plain, graph = both(sequence)
    for _ in range(3):
        compare(plain, graph, torch.randn(6, 2, 4))
    plain.end_step(), graph.end_step()
    torch.testing.assert_close(graph.map_2.carried_state(), plain.map_2.carried_state())


@each_row("shape", [(0, 4), (1, 4), (3, 2, 4)])
def test_maps_of_any_length_are_as_before(shape):
    plain, graph = both(mapped)
    x = torch.randn(shape)
    torch.testing.assert_close(graph(x), plain(x))


def test_a_map_whose_layer_normalizes_over_the_parts_is_left_alone():
    plain, graph = both(lambda: start().map(nn.LayerNorm((1, 4))).each().build())
    assert "normalizes over the rows" in graph.rewrites()[0].refusal
    assert untouched(plain, graph, torch.randn(5, 4))


def test_profiled_bodies_run_as_they_are():
    graph = loop().rewrite()
    graph.loop_2.body.enable_profiling()
    assert linears(graph, torch.randn(5, 4)) == PLAIN["loop"]
    assert graph.loop_2.body.profile() is not None
    graph.loop_2.body.disable_profiling()
    assert linears(graph, torch.randn(5, 4)) == FEWER["loop"]


# --- The graph stays what it was ----------------------------------------------------------------


@each_row("kind", ["gate normed", "loop", "sequence", "map", "twins"])
def test_everything_else_about_a_rewritten_graph_is_as_before(kind, tmp_path):
    plain, graph = both(KINDS[kind])
    x = torch.randn(5, 4)
    expected = graph(x)
    graph.end_sequence()
    assert list(graph.state_dict()) == list(plain.state_dict())
    assert graph.structural_hash() == plain.structural_hash()
    assert graph.topology == plain.topology
    assert graph.svg() == plain.svg()
    assert graph.tree_summary() == plain.tree_summary()

    graph.save_checkpoint(tmp_path / "rewritten.fdl")
    plain.save_checkpoint(tmp_path / "plain.fdl")
    assert (tmp_path / "rewritten.fdl").read_bytes() == (tmp_path / "plain.fdl").read_bytes()
    other = KINDS[kind]().rewrite()
    other.load_checkpoint(tmp_path / "plain.fdl")
    assert torch.equal(other(x), expected)


@each_row("kind", ["gate normed", "loop", "map", "twins"])
def test_copies_and_pickles_keep_the_choice(kind):
    _, graph = both(KINDS[kind])
    x = torch.randn(5, 4)
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert other.is_rewritten
        assert torch.equal(other(x), graph(x))
        assert linears(other, x) == FEWER[kind]


def test_a_description_says_nothing_of_rewrites():
    plain, graph = both(lambda: FlowBuilder.from_(nn.Linear(4, 4)).gate(
        SoftmaxRouter(4, 2), [nn.Linear(4, 4) for _ in range(2)]).build())  # fmt: skip
    assert graph.to_spec() == plain.to_spec()
    assert not Graph.from_spec(graph.to_spec()).is_rewritten


def test_build_can_ask_for_rewrites_and_compile_takes_the_plain_graph():
    layers = [nn.Linear(4, 4) for _ in range(3)]
    graph = start().gate(SoftmaxRouter(4, 3), layers).build(rewrite=True)
    assert graph.is_rewritten
    x = torch.randn(5, 4)
    expected = graph.rewrite(False)(x)
    graph.rewrite().compile(backend="eager")
    assert not graph.rewrite().is_rewritten
    assert torch.equal(graph(x), expected)


@pytest.mark.parametrize("kind", ["gate normed", "loop", "twins"])
def test_torch_compile_over_a_rewritten_graph_sees_the_plain_one(kind):
    plain, graph = both(KINDS[kind])
    x = torch.randn(5, 4)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(graph, backend="eager", fullgraph=True)(x), plain(x))


def test_observing_and_profiling_keep_the_choice():
    _, graph = both(loop)
    x = torch.randn(5, 4)
    assert linears(graph.observe(False), x) == FEWER["loop"]
    assert linears(graph.observe(True), x) == FEWER["loop"]
    assert graph.rewrite(False).rewrite() is graph


def test_a_nested_graph_is_named_with_its_path():
    graph = start().through(gate("linear"), name="mixture").build()
    assert [one.node for one in graph.rewrites()] == ["mixture.gate_2"]
    graph.rewrite()
    assert linears(graph, torch.randn(5, 4)) == 3
