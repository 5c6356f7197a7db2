"""State: values that travel from one call to the next."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from flodl.errors import StateError
from flodl.graph import FlowBuilder, LearnedHalt, LoopBody
from flodl.graph.routing import StateAdd
from tests.rows import each_row

from .layers import AddRef, Bias, column, double, linear, memory, start, triple


def running_sum():
    """y = x + the last y."""
    return memory(start()).build()


def biased_sum():
    """y = x + b + the last y, with a learned b."""
    return memory(FlowBuilder.from_(Bias())).build()


@pytest.fixture
def x():
    return torch.tensor([1.0, 2])


# --- Values -------------------------------------------------------------------------------------


@pytest.mark.case("runtime", 8)
def test_a_memory_adds_up_what_it_has_seen_until_it_is_reset(x):
    graph = running_sum()
    assert [graph(x).tolist() for _ in range(3)] == [[1, 2], [2, 4], [3, 6]]
    graph.reset_state()
    assert graph(x).tolist() == [1, 2]


def test_a_reader_sees_the_previous_call_however_far_the_writer_is():
    graph = start().through(StateAdd()).using("m").through(double).through(triple).tag("m")
    graph = graph.through(lambda x: x + 1).build()
    assert [graph(torch.tensor([1.0])).item() for _ in range(3)] == [7, 43, 259]


def test_the_reader_is_a_node_of_the_first_level():
    graph = running_sum()
    assert "state_read_3" in [node.id for node in graph.topology.levels[0]]


def test_several_readers_share_one_state(x):
    builder = start().through(StateAdd()).using("m").through(StateAdd()).using("m")
    graph = builder.tag("m").build()
    assert [graph(x).tolist() for _ in range(3)] == [[1, 2], [3, 6], [7, 14]]


def test_two_states_are_kept_apart(x):
    builder = memory(memory(start(), "a").through(double), "b")
    graph = builder.build()
    assert [graph(x)[0].item() for _ in range(3)] == [2, 6, 12]


def test_a_member_of_a_tag_group_resolves_a_reference(x):
    builder = start().through(StateAdd()).using("h_1").split([double, triple]).tag_group("h")
    graph = builder.merge("add").build()
    assert [graph(x)[0].item() for _ in range(2)] == [5, 20]


def test_a_fork_can_write_what_the_stream_reads(x):
    graph = start().through(StateAdd()).using("s").fork(triple).tag("s").through(double).build()
    assert [graph(x)[0].item() for _ in range(3)] == [2, 8, 26]


def test_every_branch_of_a_split_can_read_a_state(x):
    builder = start().split([StateAdd(), StateAdd()]).using("m").merge("add").tag("m")
    graph = builder.build()
    assert [graph(x)[0].item() for _ in range(2)] == [2, 6]


def test_a_loop_can_read_a_state(x):
    graph = start().loop_body(AddRef("m")).for_n(2).using("m").tag("m").build()
    assert [graph(x)[0].item() for _ in range(3)] == [1, 3, 7]


def test_has_state_tells_whether_anything_is_carried_from_call_to_call():
    assert running_sum().has_state()
    assert FlowBuilder.from_(nn.Sequential(running_sum())).build().has_state()
    assert not start().input("c").through(StateAdd()).using("c").build().has_state()


def test_an_absent_state_is_zeros_of_the_consumers_input_without_a_gradient():
    seen = []

    class Spy(StateAdd):
        def forward_named(self, x, refs):
            seen.append(refs["m"])
            return super().forward_named(x, refs)

    graph = FlowBuilder.from_(nn.Linear(2, 3)).through(Spy()).using("m").tag("m").build().double()
    graph(torch.ones(4, 2, dtype=torch.float64))
    assert seen[0].tolist() == [[0.0] * 3] * 4
    assert seen[0].dtype == torch.float64
    assert not seen[0].requires_grad


@each_row(
    "init",
    [torch.tensor([[10.0, 20, 30]]), lambda stream: torch.full((len(stream), 3), 10.0)],
    ids=["tensor", "function"],
)
def test_an_initial_value_can_have_another_shape(init):
    class Cell(StateAdd):
        def forward_named(self, x, refs):
            return refs["h"] + x.sum(-1, keepdim=True)

    graph = start().through(Cell()).using("h", init={"h": init}).tag("h").build()
    one = torch.ones(1, 2)
    assert graph(one)[0, 0].item() == 12
    assert graph(one)[0, 0].item() == 14
    graph.reset_state()
    assert graph(one).shape == (1, 3)
    assert graph(one)[0, 0].item() == 14


@each_row("init", [torch.tensor([3, 4]), torch.tensor([True, False])], ids=["integers", "booleans"])
def test_an_initial_value_that_is_not_floating_keeps_its_type(init):
    seen = []

    class Cell(StateAdd):
        def forward_named(self, x, refs):
            seen.append(refs["h"])
            return x

    graph = start().through(Cell()).using("h", init={"h": init}).tag("h").build()
    graph(torch.ones(1, 2, dtype=torch.float64))
    assert seen[0].dtype == init.dtype
    assert torch.equal(seen[0], init)


def test_a_floating_initial_value_takes_the_type_of_the_stream():
    seen = []

    class Cell(StateAdd):
        def forward_named(self, x, refs):
            seen.append(refs["h"])
            return x

    init = {"h": torch.tensor([3.0, 4.0])}
    graph = start().through(Cell()).using("h", init=init).tag("h").build()
    graph(torch.ones(1, 2, dtype=torch.float64))
    assert seen[0].dtype == torch.float64


def test_state_survives_evaluation_mode_and_no_grad(x):
    graph = running_sum()
    graph(x)
    graph.eval()
    with torch.no_grad():
        graph(x)
    graph.train()
    assert graph(x).tolist() == [3, 6]


def test_a_reset_reaches_modules_that_define_it_and_nested_graphs(x):
    class Counter(nn.Identity):
        resets = 0

        def reset(self):
            self.resets += 1

    counter = Counter()
    inner = memory(FlowBuilder.from_(nn.Sequential(counter))).build()
    outer = memory(FlowBuilder.from_(inner)).build()
    assert [outer(x)[0].item() for _ in range(2)] == [1, 3]
    outer.reset_state()
    assert counter.resets == 1
    assert outer(x).tolist() == [1, 2]


def test_a_failed_forward_leaves_the_state_as_it_was(x):
    fail = []

    def may_fail(value):
        if fail:
            raise ArithmeticError("asked for")
        return value

    graph = memory(start()).through(may_fail).build()
    graph(x)
    fail.append(True)
    with pytest.raises(ArithmeticError):
        graph(x)
    fail.clear()
    assert graph(x).tolist() == [2, 4]


def test_state_needs_no_capture_of_tags(x):
    graph = running_sum()
    graph.observe(False)
    assert [graph(x)[0].item() for _ in range(3)] == [1, 2, 3]
    assert graph.tagged("m") is None
    graph.observe(True)
    graph(x)
    assert graph.tagged("m").tolist() == [4, 8]


def test_another_batch_size_is_explained():
    graph = running_sum()
    graph(torch.ones(4, 2))
    with pytest.raises(RuntimeError) as caught:
        graph(torch.ones(3, 2))
    notes = "\n".join(caught.value.__notes__)
    assert "[4, 2]" in notes
    assert "[3, 2]" in notes
    assert "reset_state()" in notes
    assert ".loader_options(drop_last=True)" in notes
    assert "'m'" in notes
    graph.reset_state()
    assert graph(torch.ones(3, 2)).shape == (3, 2)


def test_a_failure_that_has_nothing_to_do_with_the_state_is_not_blamed_on_it():
    class Refusing(StateAdd):
        def forward_named(self, *_):
            raise ArithmeticError("no")

    graph = start().through(Refusing()).using("m").tag("m").build()
    with pytest.raises(ArithmeticError) as caught:
        graph(torch.ones(4, 2))
    assert caught.value.__notes__ == ["in node refusing_2 #m, input shapes: [4, 2], [4, 2]"]


# --- Validation, copies, devices, recomputation -------------------------------------------------


def test_validation_runs_on_a_copy_of_the_state_and_training_goes_on_where_it_was():
    graph = biased_sum()
    graph(column(1, 1))
    with graph.preserve_state(), torch.no_grad():
        assert graph(column(1, 1))[0].item() == 2
        graph.reset_state()
        assert graph(column(5))[0].item() == 5
    y = graph(column(1, 1))
    assert y.tolist() == [[2], [2]]
    y.sum().backward()
    assert graph.bias_1.b.grad.item() == 4  # two samples, two steps: nothing was cut


def test_the_state_comes_back_after_an_exception_and_in_nested_graphs(x):
    inner = running_sum()
    outer = memory(FlowBuilder.from_(inner)).build()
    outer(x)

    def fail_in_validation():
        with outer.preserve_state():
            outer(x)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail_in_validation()
    assert inner(x).tolist() == [2, 4]
    assert outer(x).tolist() == [4, 8]


def test_a_blank_state_is_blank_again_after_validation(x):
    graph = running_sum()
    with graph.preserve_state():
        graph(x)
    assert graph(x).tolist() == [1, 2]


@each_row("move", [lambda g: g.double(), lambda g: g.to(torch.float64)])
def test_state_follows_the_parameters_to_another_dtype(move):
    graph = biased_sum()
    graph(column(1))
    move(graph)
    y = graph(column(1).double())
    assert y.dtype == torch.float64
    assert y.item() == 2


@each_row("name", ["move_to_device", "to"])
def test_state_follows_the_parameters_to_another_device(name):
    graph = biased_sum()
    graph(column(1))
    getattr(graph, name)("meta")
    assert graph.bias_1.b.device.type == "meta"
    assert graph(column(1).to("meta")).device.type == "meta"


@pytest.mark.case("runtime", 21)
@each_row("copied", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_start_blank_even_after_a_forward_with_gradients(copied):
    graph = biased_sum()
    graph(column(1))
    twin = copied(graph)
    assert twin.tagged("m") is None
    assert twin(column(1)).item() == 1
    assert graph(column(1)).item() == 2
    twin(column(1)).sum().backward()
    assert graph.bias_1.b.grad is None


def test_a_copy_keeps_the_policy_and_the_initial_value(x):
    graph = start().through(StateAdd()).using("m", init={"m": torch.tensor([5.0, 5])}).tag("m")
    graph = graph.build()
    graph.state_policy = "manual"
    twin = copy.deepcopy(graph)
    assert twin.state_policy == "manual"
    assert twin(x).tolist() == [6, 7]


def test_one_graph_with_state_may_occur_twice_in_a_parent():
    inner = running_sum()
    outer = FlowBuilder.from_(inner).through(inner).build()
    assert outer(torch.tensor([1.0])).item() == 2
    assert outer(torch.tensor([1.0])).item() == 6


@each_row("reentrant", [True, False])
def test_recomputing_a_graph_with_state_is_refused(reentrant):
    graph = memory(FlowBuilder.from_(nn.Linear(1, 1)).through(nn.Tanh())).label("net").build()
    y = checkpoint(graph, column(1).requires_grad_(), use_reentrant=reentrant)
    with pytest.raises(StateError, match=r"'net' carries state.*checkpoint"):
        y.sum().backward()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_capturing_a_graph_with_state_is_refused():
    graph = biased_sum().cuda()
    x = column(1).cuda()
    graph(x)
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(StateError, match="CUDA graph"):
        graph(x)
    assert graph(x).item() == 2


def test_a_machine_without_a_driver_is_not_asked_for_its_streams(monkeypatch):
    """As a build for CUDA, which pip installs by default, behaves there."""

    def raises():
        raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr("flodl.graph.state._CUDA", True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", raises)
    graph = biased_sum()
    assert [graph(column(1)).item() for _ in range(2)] == [1, 2]


@each_row("reentrant", [True, False])
def test_recomputing_a_graph_without_state_is_fine(reentrant):
    graph = FlowBuilder.from_(linear([[2.0]], [1.0])).through(nn.Tanh()).tag("t").build()
    x = column(0.5).requires_grad_()
    checkpoint(graph, x, use_reentrant=reentrant).sum().backward()
    recomputed = x.grad.clone()
    x.grad = None
    graph(x).sum().backward()
    assert torch.equal(x.grad, recomputed)


def test_a_graph_may_run_itself():
    def countdown(x):
        return torch.ones(1) if x.item() <= 0 else graph(x - 1)

    graph = FlowBuilder.from_(countdown).tag("inner").also(double).build()
    assert graph(torch.tensor([2.0])).item() == 27
    assert graph.tagged("inner").item() == 9


def test_what_a_graph_carries_can_be_taken_and_given_back():
    graph = running_sum()
    graph(torch.tensor([[1.0, 2.0]]))
    (carried,) = graph.carried_state()
    assert not carried.requires_grad
    after = graph(torch.tensor([[1.0, 2.0]]))
    graph.set_carried_state([carried])
    assert torch.equal(graph(torch.tensor([[1.0, 2.0]])), after)
    with pytest.raises(ValueError, match="2 values for 1 state tags"):
        graph.set_carried_state([carried, carried])


# --- Tags that are carried and not kept ---------------------------------------------------------


@each_row("after", [0, 1, 3])
@each_row("observed", [True, False])
def test_a_tag_that_is_not_kept_is_carried_all_the_same(after, observed):
    flow = start().through(StateAdd()).using("m").tag("m", keep=False)
    for _ in range(after):
        flow = flow.through(double)  # the last reader of the tag stands before the end
    graph = flow.build().observe(observed)
    outputs = [graph(torch.tensor([1.0])).item() for _ in range(3)]
    assert outputs == [step * 2**after for step in (1, 2, 3)]
    assert graph.tagged("m") is None
    assert [value.item() for value in graph.carried_state()] == [3.0]


def test_the_values_of_several_tags_that_are_not_kept_stay_apart():
    builder = start().through(StateAdd()).using("a").tag("a", keep=False).through(double)
    builder = builder.through(StateAdd()).using("b").tag("b", keep=False).through(triple)
    graph = builder.build()
    assert [graph(torch.tensor([1.0])).item() for _ in range(3)] == [6, 18, 36]
    assert [value.item() for value in graph.carried_state()] == [3.0, 12.0]


def test_detaching_cuts_halts_published_and_returned_traces():
    class Body(LoopBody):
        def __init__(self):
            super().__init__()
            self.b = nn.Parameter(torch.ones(1))

        def step(self, x, _refs, emit):
            emit.publish("seen", x + self.b)
            return x + self.b

        def trace(self):
            return self.b * 2

    graph = start().loop_body(Body()).until_cond(LearnedHalt(1), 2).tag("t").build()
    graph(torch.zeros(1, 1))
    names = ("seen", "t", "loop_2/halt")
    assert all(graph.traces(name)[-1].requires_grad for name in names)
    graph.detach_state()
    assert not any(graph.traces(name)[-1].requires_grad for name in names)


def test_gradients_lead_back_only_where_the_output_does_too():
    """A fork writes the state, and the output does not depend on it."""
    reads = start().through(Bias()).fork(StateAdd()).using("m").tag("m").build()
    assert not reads.topology.leads_back
    assert memory(FlowBuilder.from_(Bias())).build().topology.leads_back


def test_a_backward_on_preserved_state_does_not_reach_what_came_before():
    graph = biased_sum()
    first = graph(torch.ones(1))
    with graph.preserve_state():
        graph(torch.ones(1)).sum().backward()
    (bias,) = graph.parameters()
    assert bias.grad.item() == 1
    first.sum().backward()
    assert bias.grad.item() == 2


def test_a_parameter_that_is_a_value_collects_no_hooks():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Parameter(torch.ones(1))

        def forward(self, _x):
            return self.b

    graph = memory(FlowBuilder.from_(Own()).tag("own").through(double)).build()
    for _ in range(3):
        graph(torch.ones(1)).sum().backward()
    (own,) = graph.parameters()
    assert not own._backward_hooks
