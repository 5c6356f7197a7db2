"""Running graphs: a graph is a torch module, and tells what happened inside."""

from __future__ import annotations

import copy
import gc
import linecache
import pickle
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from packaging.version import Version
from torch import nn

from flodl.graph import FlowBuilder
from tests.rows import each_row

from .layers import AddRef, Bias, column, double, memory, start, triple

KEEPS_TAGS = Version(torch.__version__) >= Version("2.13")
"""Whether `torch.compile` writes the tags of a call; 2.11 does not, and 2.12 was not tried."""


def network():
    return (
        FlowBuilder.from_(nn.Linear(4, 8))
        .tag("enc")
        .through(nn.GELU())
        .also(nn.Linear(8, 8), name="res")
        .split([nn.Linear(8, 2), nn.Linear(8, 2)])
        .tag_group("head")
        .merge("mean")
        .label("net")
        .build()
    )


@pytest.mark.case("runtime", 21)
def test_hooks_replacement_copies_and_recurrent_layers_work():
    graph = FlowBuilder.from_(nn.Linear(4, 4)).through(nn.ReLU()).tag("out").build()
    x = torch.randn(3, 4)
    calls = []
    graph.linear_1.register_forward_hook(lambda *_: calls.append(1))
    before = graph(x)
    assert calls == [1]

    copied = copy.deepcopy(graph)
    assert copied.tagged("out") is None
    assert torch.equal(copied(x), before)

    graph._modules["linear_1"] = nn.Linear(4, 4)
    assert not torch.equal(graph(x), before)

    lstm = FlowBuilder.from_(nn.LSTM(4, 8, batch_first=True)).build()
    assert lstm(torch.randn(2, 5, 4)).shape == (2, 5, 8)


def test_a_list_contributes_its_first_element():
    graph = FlowBuilder.from_(lambda x: [x, "more"]).through(double).build()
    assert graph(torch.tensor([2.0])).tolist() == [4]


def test_a_tensor_subclass_passes_through():
    weight = nn.Parameter(torch.ones(2))
    graph = FlowBuilder.from_(lambda _: weight).build()
    assert graph(torch.zeros(2)) is weight


@each_row("value", [{"x": 1}, None, (), ("text",), 3.0])
def test_anything_but_a_tensor_is_refused_with_node_and_type(value):
    graph = FlowBuilder().through(lambda _: value).build()
    with pytest.raises(TypeError, match=f"node lambda_2 returned {type(value).__name__}"):
        graph(torch.zeros(1))


def test_a_wrong_number_of_inputs_is_refused_with_both_numbers():
    graph = network()
    with pytest.raises(ValueError, match=r"takes 1 input\(s\) \(input\), got 2"):
        graph(torch.zeros(4), torch.zeros(4))
    with pytest.raises(ValueError, match=r"takes 1 input\(s\) \(input\), got 0"):
        graph()


def test_a_failing_module_keeps_its_exception_and_gains_a_note():
    class RefusalError(Exception):
        pass

    def refuse(_):
        raise RefusalError("no")

    graph = FlowBuilder().split([double, refuse]).tag_group("b").merge("add").build()
    with pytest.raises(RefusalError, match="no") as caught:
        graph(torch.zeros(2, 3))
    assert caught.value.__notes__ == ["in node lambda_3 #b_1, input shapes: [2, 3]"]
    assert graph.tagged("b_0") is None


def test_a_failing_structural_node_is_noted_with_all_its_inputs():
    graph = FlowBuilder().also(lambda x: x[:, :2]).tag("sum").label("net").build()
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        graph(torch.zeros(4, 3))
    assert caught.value.__notes__ == [
        "in node add_3 #sum of graph net, input shapes: [4, 3], [4, 2]"
    ]


def test_notes_of_nested_graphs_go_from_the_inside_out():
    inner = FlowBuilder.from_(nn.Linear(4, 4)).label("inner").build()
    outer = FlowBuilder().through(inner).build()
    with pytest.raises(RuntimeError) as caught:
        outer(torch.zeros(2, 3))
    assert caught.value.__notes__ == [
        "in node linear_1 of graph inner, input shapes: [2, 3]",
        "in node graph_2, input shapes: [2, 3]",
    ]


def test_a_traceback_shows_the_generated_line():
    graph = network()
    with pytest.raises(RuntimeError) as caught:
        graph(torch.zeros(2, 3))
    text = "".join(traceback.format_exception(caught.value))
    assert "v1 := modules['enc'](v0)" in text


def test_the_source_has_one_line_per_node():
    graph = network()
    lines = graph.source().splitlines()
    assert len(lines) == 3 + len(graph.topology.nodes)
    checked = "(v4 := v2 + v3).numel() == v2.numel() == v3.numel()"
    assert lines[5] == f"    {checked} or refuse_shapes('add_4', v2, v3); del v2, v3"


def test_the_source_of_a_dead_graph_is_forgotten():
    graph = network()
    name = graph._core.run.__code__.co_filename
    assert name in linecache.cache
    del graph
    gc.collect()
    assert name not in linecache.cache


def test_values_are_dropped_after_their_last_reader():
    made = []
    alive = []

    def watch(x):
        alive.append(sum(ref() is not None for ref in made))
        result = x + 1
        made.append(weakref.ref(result))
        return result

    builder = FlowBuilder.from_(watch)
    for _ in range(4):
        builder.through(watch)
    builder.also(watch).through(watch)
    with torch.no_grad():
        builder.build()(torch.zeros(2))
    # Each call sees its own input alive and nothing older; the sum is not among the watched.
    assert alive == [0, 1, 1, 1, 1, 1, 0]


def test_tags_hold_the_last_forward_with_its_autograd_graph():
    graph = network()
    assert graph.tag_names() == ["enc", "head_0", "head_1"]
    assert graph.tagged("enc") is None
    x = torch.randn(3, 4)
    graph(x)
    assert torch.equal(graph.tagged("enc"), graph.enc(x))
    graph.tagged("enc").sum().backward()
    assert graph.enc.weight.grad is not None
    with pytest.raises(KeyError, match="did you mean enc"):
        graph.tagged("encc")


def test_tags_are_cleared_when_a_forward_starts():
    seen = []
    graph = (
        FlowBuilder.from_(double).tag("a").through(lambda x: seen.append(graph.tagged("a")) or x)
    )
    graph = graph.build()
    graph(torch.ones(1))
    graph(torch.ones(1))
    assert seen == [None, None]
    assert graph.tagged("a").item() == 2


def test_one_graph_may_occur_twice_in_a_parent():
    inner = FlowBuilder.from_(nn.Linear(2, 2)).build()
    outer = FlowBuilder.from_(inner).through(inner).build()
    x = torch.randn(3, 2)
    assert torch.equal(outer(x), inner(inner(x)))
    assert len(list(outer.parameters())) == 2


def test_copies_and_pickles_work_after_a_forward_with_gradients():
    graph = network()
    x = torch.randn(3, 4)
    graph.record_scalar("loss", graph(x).sum())
    for copied in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert copied.tagged("enc") is None
        assert torch.equal(copied(x), graph(x))
        assert copied.label == "net"
        assert copied.structural_hash() == graph.structural_hash()
        assert copied.enc.weight is not graph.enc.weight
        assert copied.collected("loss") == graph.collected("loss")
        copied(x).sum().backward()
        assert graph.enc.weight.grad is None


def test_state_dict_and_functional_call_are_plain_torch():
    graph, other = network(), network()
    other.load_state_dict(graph.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(other(x), graph(x))
    zeros = {name: torch.zeros_like(value) for name, value in graph.named_parameters()}
    assert torch.func.functional_call(graph, zeros, (x,)).abs().sum() == 0
    assert graph(x).abs().sum() > 0


def test_per_sample_gradients_go_through_torch_func():
    graph = FlowBuilder.from_(nn.Linear(4, 8)).through(nn.Tanh()).also(nn.Linear(8, 8)).build()
    parameters = {name: p.detach() for name, p in graph.named_parameters()}

    def loss(parameters, sample):
        return torch.func.functional_call(graph, parameters, (sample,)).sum()

    x = torch.randn(5, 4)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    graph(x).sum().backward()
    for name, parameter in graph.named_parameters():
        torch.testing.assert_close(each[name].sum(0), parameter.grad)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_graph_compiles_without_breaks_and_once():
    graph = network()
    compiled_graphs = []

    def backend(module, _inputs):
        compiled_graphs.append(module)
        return module.forward

    compiled = torch.compile(graph, fullgraph=True, backend=backend)
    for _ in range(3):
        x = torch.randn(3, 4)
        y = compiled(x)
        if KEEPS_TAGS:
            torch.testing.assert_close(graph.tagged("enc"), graph.enc(x))
        torch.testing.assert_close(y, graph(x))
    y = compiled(x)
    y.sum().backward()
    assert graph.enc.weight.grad is not None
    assert len(compiled_graphs) == 1


def test_qualified_names_list_what_a_checkpoint_holds():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(1))
            self.register_buffer("scratch", torch.zeros(1), persistent=False)
            self.inner = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.inner(x)

    graph = FlowBuilder.from_(nn.Linear(4, 4)).tag("enc").through(Odd()).build()
    graph.enc.bias.requires_grad_(False)
    assert [name for name, _ in graph.qualified_parameters()] == [
        "enc/weight",
        "enc/bias",
        "odd_2/inner.weight",
        "odd_2/inner.bias",
    ]
    assert [name for name, _ in graph.qualified_buffers()] == [
        "odd_2/kept",
        "odd_2/inner.running_mean",
        "odd_2/inner.running_var",
        "odd_2/inner.num_batches_tracked",
    ]
    assert len(graph.trainable_parameters()) == 3


# --- What a graph tells, and what it hides ------------------------------------------------------


def test_the_note_of_a_failure_lists_the_references_as_well():
    graph = start().tag("c").through(lambda x: x[:, :2]).through(AddRef("c")).using("c").build()
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        graph(torch.zeros(4, 3))
    assert caught.value.__notes__ == ["in node addref_3, input shapes: [4, 2], [4, 3]"]


def test_a_node_with_several_tags_is_noted_with_all_of_them():
    def refuse(_):
        raise ValueError("no")

    graph = FlowBuilder.from_(refuse).tag("a").tag("b").build()
    with pytest.raises(ValueError, match="no") as caught:
        graph(torch.zeros(1))
    assert caught.value.__notes__ == ["in node lambda_1 #a #b, input shapes: [1]"]


def test_observation_can_be_switched_off_and_on():
    graph = start().tag("a").through(double).tag("b").build()
    graph(torch.ones(1))
    graph.observe(False)
    assert graph.tagged("a") is None
    assert graph(torch.ones(1)).item() == 2
    assert graph.tagged("b") is None
    graph.observe(True)
    graph(torch.ones(1))
    assert [graph.tagged(name).item() for name in ("a", "b")] == [1, 2]


def test_values_die_in_the_forward_while_nothing_observes_them():
    alive = []

    def watch(x):
        alive.append(sum(ref() is not None for ref in made))
        result = x + 1
        made.append(weakref.ref(result))
        return result

    made = []
    builder = FlowBuilder.from_(watch).tag("a").through(watch).tag("b").through(watch)
    graph = builder.build()
    with torch.no_grad():
        graph(torch.zeros(2))
        assert alive == [0, 1, 2]
        graph.observe(False)
        made.clear()
        alive.clear()
        graph(torch.zeros(2))
        assert alive == [0, 1, 1]


def test_calls_from_several_threads_do_not_meet():
    graph = FlowBuilder.from_(nn.Linear(2, 2)).tag("t").also(double).split([double, triple])
    graph = graph.merge("add").build()
    batches = list(torch.randn(200, 3, 2))
    with torch.no_grad(), ThreadPoolExecutor(8) as pool:
        results = list(pool.map(graph, batches))
        expected = [15 * graph.t(x) for x in batches]
    torch.testing.assert_close(torch.stack(results), torch.stack(expected))


def test_names_of_torch_and_of_flodl_differ_in_their_first_separator():
    graph = FlowBuilder.from_(nn.Sequential(nn.Linear(2, 2))).tag("enc").build()
    assert [name for name, _ in graph.named_parameters()] == ["enc.0.weight", "enc.0.bias"]
    assert [name for name, _ in graph.qualified_parameters()] == ["enc/0.weight", "enc/0.bias"]


def test_modes_and_dtypes_reach_every_module():
    graph = start().gate(nn.Linear(2, 2), [nn.Dropout(), nn.Linear(2, 2)])
    graph = graph.loop_body(nn.Dropout()).for_n(1).map(nn.Dropout()).each().build()
    graph.eval()
    assert not any(module.training for module in graph.modules())
    graph.train()
    assert all(module.training for module in graph.modules())
    graph.double()
    assert {p.dtype for p in graph.parameters()} == {torch.float64}
    seen = []
    graph.apply(lambda module: seen.append(type(module).__name__))
    assert seen.count("Dropout") == 3


def test_a_nested_module_can_be_replaced_and_hooked():
    graph = start().gate(nn.Linear(1, 2), [Bias(), Bias()]).build()
    calls = []
    graph.get_submodule("gate_2.experts.1").register_forward_hook(lambda *_: calls.append(1))
    graph(column(1))
    assert calls == [1]
    graph.gate_2.experts[0] = nn.Sequential(graph.gate_2.experts[0], nn.Tanh())
    assert graph(column(100)).shape == (1, 1)
    assert "gate_2.experts.0.0.b" in graph.state_dict()


def test_the_levels_hold_what_could_run_side_by_side():
    graph = start().split([double, triple]).merge("add").build()
    assert [[node.id for node in level] for level in graph.topology.levels] == [
        ["identity_1"],
        ["lambda_2", "lambda_3"],
        ["merge_4"],
    ]


# --- Compiling ----------------------------------------------------------------------------------


def test_compiling_the_core_leaves_state_and_captures_outside():
    graph = memory(FlowBuilder.from_(Bias())).build()
    graph.compile(backend="eager", fullgraph=True)
    values = []
    for _ in range(3):
        y = graph(column(1))
        y.sum().backward()
        values.append(y.item())
        assert torch.equal(graph.tagged("m"), y)
    assert values == [1, 2, 3]
    assert graph.bias_1.b.grad.item() == 3
    twin = copy.deepcopy(graph)
    assert twin(column(1)).item() == 1


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    "describe",
    [
        lambda: start().gate(nn.Linear(2, 2), [nn.Linear(2, 2), nn.Tanh()]),
        lambda: start().loop_body(nn.Linear(2, 2)).for_n(3),
        lambda: start().map(nn.Linear(2, 2)).each(),
        lambda: start().map(nn.Linear(1, 1)).slices(2),
        lambda: start().tag("c").fork(nn.Linear(2, 2)).tag("s").also(AddRef("s")).using("s"),
    ],
    ids=["gate", "loop", "each", "slices", "references"],
)
def test_a_graph_without_decisions_compiles_in_one_piece(describe):
    graph = describe().build()
    assert graph.capturable
    compiled = torch.compile(graph, fullgraph=True, backend="eager")
    x = torch.randn(3, 2)
    torch.testing.assert_close(compiled(x), graph(x))


def test_a_graph_with_state_is_not_captured_in_one_piece_and_says_why():
    graph = memory(start(), "hidden").build()
    assert not graph.capturable
    assert "'hidden'" in graph.capturable.reasons[0]
