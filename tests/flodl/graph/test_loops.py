"""Loops: how often they run, when they halt, what they leave behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.errors import BuildError, FlodlError
from flodl.graph import FlowBuilder
from flodl.graph.modules import LoopBody, TraceEmit, forward_via_step
from flodl.graph.nodes import LoopNode
from flodl.graph.routing import LearnedHalt, ThresholdHalt
from flodl.torch_features import DIFFERENTIATES_LOOPS
from tests.rows import each_row

from .layers import AddRef, Bias, Recorder, column, double, linear, memory, start, triple


class Never(nn.Module):
    """A condition that is never met and counts how often it was asked."""

    tests = 0

    def forward(self, x):
        self.tests += 1
        return -torch.ones(len(x))


class EmittingDoubler(LoopBody):
    def step(self, x, _, emit):
        emit.publish("double", x * 2)
        emit.publish("quad", x * 4)
        return x * 2


class Emitting(LoopBody):
    """Publishes what a function of the iteration's number names, and adds one."""

    def __init__(self, names):
        super().__init__()
        self.names = names
        self.iteration = 0

    def reset(self):
        self.iteration = 0

    def step(self, x, _, emit):
        for name in self.names(self.iteration):
            emit.publish(name, x)
        self.iteration += 1
        return x + 1


class Remembering(nn.Module):
    """Doubles, and hands out what it was given through ``trace()``."""

    last = None

    def forward(self, x):
        self.last = x
        return x * 2

    def trace(self):
        return self.last


class RememberingBody(Remembering, LoopBody):
    """Publishes under a name and hands values out through ``trace()`` as well."""

    forward = LoopBody.forward

    def step(self, x, _, emit):
        emit.publish("rec", x)
        return Remembering.forward(self, x)


LOOPS = ["while_cond", "until_cond", "batch_while_cond", "batch_until_cond"]


def emitting(*names):
    return Emitting(lambda _: names)


def vector(*values):
    return torch.tensor([float(value) for value in values])


def numbers(traces):
    return [value.tolist() for value in traces]


# --- How often a body runs ----------------------------------------------------------------------


@pytest.mark.case("runtime", 5)
@each_row(
    ("finish", "expected"),
    [
        (lambda loop: loop.for_n(3), [8, 16]),
        (lambda loop: loop.while_cond(ThresholdHalt(10), 20), [8, 16]),
        (lambda loop: loop.while_cond(ThresholdHalt(0.5), 20), [1, 2]),
        (lambda loop: loop.until_cond(ThresholdHalt(0.5), 20), [2, 4]),
        (lambda loop: loop.while_cond(ThresholdHalt(2), 20), [2, 4]),  # strictly above: 2 is not
    ],
    ids=["for 3", "while 10", "while 0.5", "until 0.5", "while 2"],
)
def test_a_loop_runs_until_its_number_or_its_condition_is_reached(finish, expected):
    graph = finish(start().loop_body(double)).build()
    assert graph(vector(1, 2)[None]).tolist() == [expected]


@pytest.mark.case("runtime", 6)
@each_row(
    ("kind", "limit", "tests", "iterations"),
    [("while_cond", 5, 5, 5), ("until_cond", 5, 4, 5), ("until_cond", 1, 0, 1)],
)
def test_a_limit_ends_a_loop_whose_condition_never_halts(kind, limit, tests, iterations):
    body, never = Recorder(double), Never()
    graph = getattr(start().loop_body(body), kind)(never, limit).build()
    assert graph(vector(1)).tolist() == [2**iterations]
    assert (never.tests, len(body.seen)) == (tests, iterations)


def test_a_condition_may_be_a_function_and_the_limit_a_keyword():
    graph = start().loop_body(double).while_cond(lambda x: x.sum(1) - 10, max_iter=20).build()
    assert graph(vector(1, 2)[None]).tolist() == [[4, 8]]


def test_only_values_above_zero_halt():
    for value, iterations in ((-1, 4), (0, 4), (float("nan"), 4), (1e-9, 1), (float("inf"), 1)):
        body = Recorder()
        condition = lambda _, value=value: torch.tensor([value])  # noqa: E731
        start().loop_body(body).until_cond(condition, 4).build()(vector(1))
        assert len(body.seen) == iterations, value


def test_a_batch_wide_loop_halts_when_every_row_says_so():
    body = Recorder(double)
    graph = start().loop_body(body).batch_while_cond(lambda x: x - 10, 20).build()
    # One sample is above 10 at once; the loop waits for the other.
    assert graph(torch.tensor([[11.0], [1.0]])).tolist() == [[176], [16]]
    assert len(body.seen) == 4


@each_row("kind", ["for_n", *LOOPS])
@each_row("limit", [0, -1])
def test_a_loop_that_never_runs_is_refused(kind, limit):
    arguments = (limit,) if kind == "for_n" else (ThresholdHalt(1), limit)
    builder = getattr(start().loop_body(double), kind)(*arguments)
    what = "n" if kind == "for_n" else "max_iter"
    with pytest.raises(BuildError, match=rf"test_loops\.py:\d+: loop: {what} .*, not {limit}"):
        builder.build()


# --- Rows ---------------------------------------------------------------------------------------


@each_row(
    ("kind", "expected"),
    [
        ("while_cond", [16, 11, 12, -32]),
        ("until_cond", [16, 22, 12, -32]),
        ("batch_while_cond", [32, 352, 96, -32]),
        ("batch_until_cond", [32, 352, 96, -32]),
    ],
)
def test_a_row_that_is_done_keeps_its_state(kind, expected):
    body = Recorder(double)
    graph = getattr(start().loop_body(body), kind)(lambda x: x - 10, 5).build()
    assert graph(column(1, 11, 3, -1)).flatten().tolist() == expected
    assert len(body.seen) == 5


def test_a_loop_stops_once_all_rows_are_done():
    body = Recorder(double)
    graph = start().loop_body(body).while_cond(ThresholdHalt(10), 20).build()
    assert graph(column(11, 6)).flatten().tolist() == [11, 12]
    assert len(body.seen) == 1
    assert numbers(graph.traces("loop_2/halt")) == [[1, -4], [1, 2]]


def test_all_values_of_a_row_must_say_so_and_a_row_once_done_stays_done():
    graph = start().loop_body(double).while_cond(lambda x: x - 10, 20).build()
    assert graph(vector(1, 11, 6, 6).reshape(2, 2)).tolist() == [[16, 176], [12, 12]]
    once = lambda x: torch.tensor([[1.0], [0]]) * (x[1] == 9) - 0.5  # noqa: E731
    sinking = start().loop_body(lambda x: x - 1).until_cond(once, 5).build()
    assert sinking(column(0, 10)).flatten().tolist() == [-1, 5]


@each_row("kind", LOOPS)
def test_a_batch_without_rows_halts(kind):
    body = Recorder(double)
    graph = getattr(start().loop_body(body), kind)(lambda x: x - 10, 5).build()
    assert graph(torch.zeros(0, 3)).shape == (0, 3)
    assert len(body.seen) == ("until" in kind)


def test_a_row_that_is_done_has_the_gradient_that_it_has_alone():
    # Its state is where the body has no derivative: only a body that never sees it is right.
    graph = start().loop_body(torch.sqrt).while_cond(lambda x: 0.5 - x, 3).build()
    x = column(0, 16).requires_grad_()
    graph(x).sum().backward()
    torch.testing.assert_close(x.grad, column(1, 16 ** (-7 / 8) / 8))
    late = start().loop_body(lambda x: (x - 1).sqrt()).until_cond(lambda x: 1.5 - x, 3).build()
    x = column(2, 26).requires_grad_()
    late(x).sum().backward()
    # The first row ends at 1, where the body has none; 26, 5, 2 and 1 are the second's states.
    torch.testing.assert_close(x.grad, column(1 / 2, 1 / 10 / 4 / 2))


def test_rows_that_are_done_publish_what_they_published_last():
    graph = start().loop_body(EmittingDoubler()).until_cond(ThresholdHalt(10), 5).build()
    graph(column(6, 2))
    published = [values.flatten().tolist() for values in graph.traces("double")]
    assert published == [[12, 4], [12, 8], [12, 16]]


def test_a_reference_of_a_loop_stays_whole():
    builder = start().input("by").loop_body(AddRef("by")).while_cond(ThresholdHalt(10), 9)
    graph = builder.using("by").build()
    assert graph(column(9, 0), column(1, 5)).flatten().tolist() == [11, 15]
    assert graph(column(9, 0), vector(6)).flatten().tolist() == [15, 12]


@each_row(
    ("x", "value", "told"),
    [
        (torch.ones(3, 2), torch.ones(()), r"\[\] for 3 rows; it needs \[3, \.\.\.\]"),
        (torch.ones(3, 2), torch.ones(1), r"\[1\] for 3 rows"),
        (torch.ones(3, 2), torch.ones(2, 3), r"\[2, 3\] for 3 rows.*batch_while_cond"),
        (torch.ones(()), torch.ones(()), "without rows; use batch_while_cond"),
    ],
)
def test_a_condition_that_does_not_speak_for_each_row_is_refused(x, value, told):
    for kind in ("while_cond", "until_cond"):
        graph = getattr(start().loop_body(double), kind)(lambda _: value, 3).build()
        with pytest.raises(ValueError, match=f"loop_2.*{told}"):
            graph(x)
    wide = start().loop_body(double).batch_while_cond(lambda _: torch.ones(()), 3).build()
    assert torch.equal(wide(x), x)


def test_a_body_that_changes_the_shape_is_refused_where_rows_are_done():
    graph = start().loop_body(lambda x: x[:, :1]).while_cond(ThresholdHalt(10), 3).build()
    with pytest.raises(ValueError, match=r"loop_2: the body returned \[2, 1\] for \[2, 2\]"):
        graph(torch.tensor([[1.0, 2], [11, 12]]))


@each_row("kind", ["while_cond", "until_cond"])
def test_a_graph_with_carried_state_is_no_body_of_rows_that_part(kind):
    def describe(kind):
        return getattr(start().loop_body(memory(start()).build()), kind)(ThresholdHalt(1), 2)

    with pytest.raises(BuildError, match=rf"loop: body carries 'm'.*use batch_{kind}"):
        describe(kind).build()
    assert describe(f"batch_{kind}").build().has_state()


# --- Training -----------------------------------------------------------------------------------


@pytest.mark.case("runtime", 7)
def test_gradients_flow_through_every_iteration():
    body = Bias(2)
    graph = start().loop_body(body).for_n(3).build()
    graph(torch.zeros(1, 2)).sum().backward()
    assert body.b.grad.tolist() == [3, 3]


def test_a_body_with_a_reset_is_reset_before_every_loop():
    body = Emitting(lambda iteration: ["first"] if iteration == 0 else [])
    graph = start().loop_body(body).for_n(3).build()
    for _ in range(2):
        graph(vector(1))
        assert body.iteration == 3
        assert numbers(graph.traces("first")) == [[1]]


def test_a_body_may_return_a_tuple_led_by_the_state():
    graph = start().loop_body(nn.LSTM(4, 4, batch_first=True)).for_n(2).build()
    assert graph(torch.randn(2, 5, 4)).shape == (2, 5, 4)


def test_a_body_that_returns_no_tensor_is_refused_with_node_and_type():
    graph = start().loop_body(lambda _: {"x": 1}).for_n(2).build()
    with pytest.raises(TypeError, match=r"loop_2.*dict"):
        graph(vector(1))


@pytest.mark.case("runtime", 78)
def test_learned_halt_learns_from_its_trace_and_from_nothing_else():
    def network(bias):
        halt = LearnedHalt(2)
        nn.init.zeros_(halt.projection.weight)
        nn.init.constant_(halt.projection.bias, bias)
        graph = start().loop_body(nn.Linear(2, 2)).until_cond(halt, 5).build()
        return graph, halt.projection

    graph, projection = network(-1.0)
    assert len(list(graph.parameters())) == 4
    output = graph(torch.randn(3, 2))
    assert len(graph.traces("loop_2/halt")) == 4
    assert graph.traces("loop_2/halt")[0].tolist() == [[-1], [-1], [-1]]
    output.sum().backward()
    assert projection.weight.grad is None
    assert projection.bias.grad is None

    graph(torch.randn(3, 2))
    torch.stack(graph.traces("loop_2/halt")).sum().backward()
    assert projection.weight.grad is not None
    assert projection.bias.grad.tolist() == [12]

    graph, _ = network(1.0)
    graph(torch.randn(3, 2))
    assert len(graph.traces("loop_2/halt")) == 1


def test_the_halt_trace_of_a_while_loop_holds_every_test():
    graph = start().loop_body(double).while_cond(ThresholdHalt(10), 20).build()
    graph(vector(1, 2)[None])
    assert numbers(graph.traces("loop_2/halt")) == [[-8], [-6], [-2], [6]]
    counted = start().loop_body(double).for_n(3).build()
    counted(vector(1))
    assert counted.traces("loop_2/halt") is None


@pytest.mark.skipif(not DIFFERENTIATES_LOOPS, reason="this torch cannot differentiate a loop")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("kind", LOOPS)
def test_a_compiled_loop_halts_anew_in_every_call(kind):
    graph = getattr(start().loop_body(double), kind)(ThresholdHalt(10), 6).build()
    compiled = torch.compile(graph, fullgraph=True, backend="eager")
    for x in (vector(1, 2), vector(20, 0), vector(-1, -1), vector(5, 5), vector(20, 30)):
        assert torch.equal(compiled(x), graph(x))


@pytest.mark.usefixtures("fresh_compiler")
# Dynamo looks at it where it leaves its trace.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    "kind",
    ["while_cond", "batch_until_cond"]
    + [pytest.param(kind, marks=pytest.mark.slow) for kind in ("until_cond", "batch_while_cond")],
)
def test_where_torch_cannot_differentiate_a_loop_its_iterations_are_compiled(kind, monkeypatch):
    """PyTorch 2.8 and 2.9; the compiler of 2.8 gives gradients of zeros without an error."""
    for module in ("nodes", "capture"):
        monkeypatch.setattr(f"flodl.graph.{module}.DIFFERENTIATES_LOOPS", False)
    monkeypatch.setattr(LoopNode, "_captured", lambda *_: pytest.fail("kept as a loop"))
    graph = getattr(start().loop_body(triple), kind)(ThresholdHalt(10), 6).build()
    [reason] = graph.capturable.reasons
    assert "PyTorch 2.10" in reason
    compiled = torch.compile(graph, backend="aot_eager")
    for values in ((1.0, 2.0), (20.0, 0.0), (-1.0, -1.0)):
        results = []
        for way in (graph, compiled):
            x = vector(*values).requires_grad_()
            way(x).sum().backward()
            results.append(x.grad)
        assert results[0].any()
        assert torch.equal(*results)


# --- Registry, references, errors ---------------------------------------------------------------


def test_body_and_condition_are_registered_under_the_loop():
    def keys(builder):
        return set(builder.build().state_dict())

    loop = {"body.weight", "body.bias"}
    halt = {"cond.projection.weight", "cond.projection.bias"}
    plain = start().loop_body(nn.Linear(2, 2)).for_n(2)
    assert keys(plain) == {f"loop_2.{key}" for key in loop}
    halting = start().loop_body(nn.Linear(2, 2)).until_cond(LearnedHalt(2), 2)
    assert keys(halting) == {f"loop_2.{key}" for key in loop | halt}
    tagged = start().loop_body(nn.Linear(2, 2)).for_n(2).tag("rec")
    assert keys(tagged) == {f"rec.{key}" for key in loop}
    named = start().loop_body(nn.Linear(2, 2), name="scan").for_n(2).tag("rec").build()
    assert set(named.state_dict()) == {f"scan.{key}" for key in loop}
    assert "scan/body.weight" in dict(named.qualified_parameters())


def test_the_body_can_be_replaced_while_the_graph_lives():
    graph = start().loop_body(nn.Identity()).for_n(2).build()
    graph.loop_2.body = linear([[3.0]], [0.0])
    assert graph(vector(1)).tolist() == [9]


def test_a_failing_body_names_the_iteration():
    with pytest.raises(RuntimeError, match="asked for") as caught:
        start().loop_body(fail_at(3)).for_n(9).tag("rec").build()(vector(1, 2))
    notes = "\n".join(caught.value.__notes__)
    assert "loop iteration 2" in notes  # counted from 0
    assert "loop_2 #rec" in notes
    assert "[2]" in notes


def fail_at(number):
    calls = []

    def body(x):
        calls.append(1)
        if len(calls) == number:
            raise RuntimeError("asked for")
        return x

    return body


@pytest.mark.case("runtime", 84)
def test_a_loop_without_an_end_and_a_spent_builder_are_refused():
    builder = start().through(double)
    builder.loop_body(triple)
    with pytest.raises(BuildError, match="loop") as caught:
        builder.build()
    assert "for_n" in str(caught.value)
    assert "test_loops.py" in str(caught.value)

    spent = start()
    spent.build()
    with pytest.raises(BuildError, match="has built its graph"):
        spent.build()
    with pytest.raises(BuildError, match="has built its graph"):
        spent.through(double)


# --- Traces -------------------------------------------------------------------------------------


@pytest.mark.case("runtime", 22)
def test_a_body_publishes_values_of_every_iteration():
    graph = start().loop_body(EmittingDoubler()).for_n(3).build()
    assert graph.traces("double") is None
    assert graph(vector(1, 2)).tolist() == [8, 16]
    assert graph.traces("double")[0].tolist() == [2, 4]
    assert graph.traces("quad")[2].tolist() == [16, 32]
    assert graph.traces("zzz") is None
    assert numbers(graph.traces("double")) == [[2, 4], [4, 8], [8, 16]]

    twice = start().loop_body(emitting("a", "a")).for_n(1).build()
    with pytest.raises(ValueError, match="'a' was published twice"):
        twice(vector(1))


def test_a_step_may_publish_nothing():
    body = Emitting(lambda iteration: ["odd"] if iteration % 2 else [])
    graph = start().loop_body(body).for_n(5).build()
    graph(vector(0))
    assert numbers(graph.traces("odd")) == [[1], [3]]


def test_traces_are_replaced_by_every_forward_and_keep_their_gradients():
    body = EmittingDoubler()
    graph = FlowBuilder.from_(Bias(2)).loop_body(body).for_n(2).build()
    graph(vector(1, 2))
    first = graph.traces("double")
    graph(vector(3, 4))
    assert numbers(first) == [[2, 4], [4, 8]]
    assert numbers(graph.traces("double")) == [[6, 8], [12, 16]]
    graph.traces("double")[1].sum().backward()
    assert graph.bias_1.b.grad.tolist() == [4, 4]
    graph.end_step()
    assert not graph.traces("double")[1].requires_grad


def test_what_trace_returns_is_filed_under_the_tag_of_the_loop():
    graph = start().loop_body(Remembering()).for_n(3).tag("rec").build()
    assert graph.traces("rec") is None
    graph(vector(1))
    assert numbers(graph.traces("rec")) == [[1], [2], [4]]
    assert numbers(graph.traces_by_node("loop_2")) == [[1], [2], [4]]


def test_what_trace_returns_without_a_tag_is_found_by_the_node():
    graph = start().loop_body(Remembering()).for_n(2).build()
    graph(vector(1))
    assert numbers(graph.traces_by_node("loop_2")) == [[1], [2]]


def test_a_trace_of_none_adds_nothing():
    class Selective(Remembering):
        def trace(self):
            return self.last if self.last.item() > 1 else None

    graph = start().loop_body(Selective()).for_n(3).tag("rec").build()
    graph(vector(1))
    assert numbers(graph.traces("rec")) == [[2], [4]]


def test_two_loops_keep_their_traces_apart():
    builder = start().loop_body(Remembering()).for_n(2).tag("first")
    graph = builder.loop_body(Remembering()).for_n(1).tag("second").build()
    graph(vector(1))
    assert numbers(graph.traces("first")) == [[1], [2]]
    assert numbers(graph.traces("second")) == [[4]]
    assert numbers(graph.traces_by_node("loop_3")) == [[4]]


def test_a_loop_that_leaves_no_traces_has_none_whatever_others_left():
    builder = start().loop_body(EmittingDoubler()).for_n(2)
    graph = builder.loop_body(double).for_n(2).tag("silent").build()
    graph(vector(1))
    assert not graph.traces("silent")


def test_two_bodies_that_publish_one_name_are_refused():
    builder = start().loop_body(emitting("same")).for_n(1).loop_body(emitting("same")).for_n(2)
    graph = builder.build()
    graph(vector(1))
    with pytest.raises(FlodlError, match=r"'same'.*loop_3"):
        graph.traces("same")


def test_a_published_name_and_the_tag_of_a_loop_are_refused():
    other = start().loop_body(emitting("rec")).for_n(1).loop_body(Remembering()).for_n(1)
    both = start().loop_body(RememberingBody()).for_n(1)
    for graph in (other.tag("rec").build(), both.tag("rec").build()):
        graph(vector(1))
        with pytest.raises(FlodlError, match=r"'rec'.*loop_[23]|loop_[23].*'rec'"):
            graph.traces("rec")


def test_publishing_needs_no_loop():
    body = EmittingDoubler()
    assert body(vector(1)).tolist() == [2]
    assert forward_via_step(body, vector(1)).tolist() == [2]
    with pytest.raises(ValueError, match="twice"):
        forward_via_step(emitting("a", "a"), vector(1))
    emit = TraceEmit.discard()
    emit.publish("a", vector(1))


def test_a_body_outside_a_loop_leaves_no_traces():
    graph = start().through(EmittingDoubler()).build()
    graph(vector(1))
    assert graph.traces("double") is None


def test_hooks_of_a_loop_body_fire_once_per_iteration():
    body = EmittingDoubler()
    calls = []
    body.register_forward_hook(lambda *_: calls.append(1))
    start().loop_body(body).for_n(3).build()(vector(1))
    assert len(calls) == 3
