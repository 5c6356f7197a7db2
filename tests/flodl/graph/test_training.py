"""Attached training: the optimizer, and the counters of steps and epochs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flodl.data import Batch, DataLoader, TensorDataSet
from flodl.errors import StateError
from flodl.graph import FlowBuilder
from tests.rows import each_row

from .layers import AddRef, Bias, column, double, memory, start


def network():
    return FlowBuilder.from_(nn.Linear(2, 2)).through(nn.Tanh()).tag("out").build()


def test_step_updates_the_weights_as_a_plain_loop_does():
    graph = network()
    twin = copy.deepcopy(graph)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.1)
    graph.set_optimizer(lambda params: torch.optim.Adam(params, lr=0.1))
    for _ in range(3):
        x = torch.randn(4, 2)
        graph(x).square().sum().backward()
        graph.step()
        twin(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert graph.training_step == 3
    assert graph.step_count == 3
    assert all(p.grad is None for p in graph.parameters())
    for ours, theirs in zip(graph.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_copy_trains_its_own_weights():
    graph = network()
    graph.set_optimizer(lambda params: torch.optim.SGD(params, lr=0.1))
    copied = copy.deepcopy(graph)
    before = graph.linear_1.weight.clone()
    copied(torch.ones(1, 2)).sum().backward()
    copied.step()
    assert torch.equal(graph.linear_1.weight, before)
    assert not torch.equal(copied.linear_1.weight, before)


def test_step_counts_without_an_optimizer():
    graph = network()
    graph.step()
    assert graph.training_step == 1
    assert graph.step_count == 0  # no forward ran


def test_an_optimizer_that_leaves_parameters_out_is_reported():
    graph = network()
    with pytest.warns(UserWarning, match=r"1 trainable parameter\(s\).*: linear_1\.weight;"):
        graph.set_optimizer(lambda params: torch.optim.SGD(params[1:], lr=0.1))


def test_a_factory_that_returns_no_optimizer_is_refused():
    with pytest.raises(ValueError, match="returned NoneType"):
        network().set_optimizer(lambda _: None)


@pytest.mark.case("runtime", 79)
def test_end_step_counts_only_when_a_forward_ran():
    graph = network()
    graph.end_step()
    for _ in range(3):
        graph(torch.ones(1, 2))
        graph.end_step()
    graph.end_step()
    assert (graph.step_count, graph.epoch_step, graph.epoch_count) == (3, 3, 0)
    graph.record_scalar("loss", 2.0)
    graph.end_epoch()
    assert (graph.step_count, graph.epoch_step, graph.epoch_count) == (3, 0, 1)
    assert graph.latest_metrics() == [("loss", 2.0)]


def test_end_step_cuts_the_autograd_graph_and_reaches_nested_graphs():
    class Memory(nn.Identity):
        detached = 0

        def detach_state(self):
            self.detached += 1

    memory = Memory()
    inner = FlowBuilder.from_(nn.Linear(2, 2)).tag("h").through(memory).build()
    outer = FlowBuilder.from_(nn.Sequential(inner, inner)).tag("out").build()
    outer(torch.ones(1, 2))
    value = outer.tagged("out").clone()
    assert inner.tagged("h").requires_grad
    outer.end_step()
    assert torch.equal(outer.tagged("out"), value)
    assert not outer.tagged("out").requires_grad
    assert not inner.tagged("h").requires_grad
    assert (outer.step_count, inner.step_count) == (1, 1)
    assert memory.detached == 1


def test_step_ends_the_step_of_a_recurrent_graph():
    graph = memory(FlowBuilder.from_(Bias())).build()
    graph.state_policy = "manual"
    graph.set_optimizer(lambda params: torch.optim.SGD(params, lr=1.0))
    for _ in range(3):
        graph(column(0)).sum().backward()
        graph.step()
    assert (graph.training_step, graph.step_count) == (3, 3)
    assert graph.bias_1.b.item() == -3


def test_a_parameter_thawed_after_the_optimizer_was_made_is_reported_by_step():
    graph = FlowBuilder.from_(Bias()).through(Bias()).build()
    graph.bias_2.b.requires_grad_(False)
    graph.set_optimizer(
        lambda params: torch.optim.SGD([p for p in params if p.requires_grad], lr=0.1)
    )
    graph(column(0)).sum().backward()
    graph.step()
    graph.bias_2.b.requires_grad_(True)
    graph(column(0)).sum().backward()
    with pytest.warns(UserWarning, match=r"bias_2\.b"):
        graph.step()


# --- Learning rates -----------------------------------------------------------------------------


class Linearly:
    """A tenth per step."""

    def lr(self, step):
        return 0.1 * step


def scheduled(*initial):
    """A graph of one layer per rate, each in a parameter group of its own, and the optimizer."""
    graph = FlowBuilder.from_(nn.Sequential(*(Bias() for _ in initial))).build()
    made = []

    def factory(params):
        groups = [{"params": [p], "lr": lr} for p, lr in zip(params, initial, strict=True)]
        made.append(torch.optim.SGD(groups, lr=1.0))
        return made[0]

    graph.set_optimizer(factory)
    graph.set_scheduler(Linearly())
    return graph, made[0]


@pytest.mark.case("runtime", 55)
def test_a_schedule_is_scaled_and_keeps_the_ratio_of_the_groups():
    graph, optimizer = scheduled(1e-3, 1e-4)
    graph.set_lr_scale(2.5)
    graph.step()
    graph.step()
    first, second = (group["lr"] for group in optimizer.param_groups)
    assert first == pytest.approx(0.25)
    assert first / second == pytest.approx(10)
    assert graph.training_step == 2


def test_a_schedule_applies_before_the_update():
    graph, _ = scheduled(1.0)
    bias = graph.sequential_1[0].b
    for expected in (0.0, -0.1, -0.3):
        graph(column(0)).sum().backward()
        graph.step()
        assert bias.item() == pytest.approx(expected)


def test_groups_that_start_at_zero_take_the_scheduled_rate():
    graph, optimizer = scheduled(0.0, 1e-4)
    graph.step()
    graph.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.1])


def test_set_lr_reaches_every_group_and_needs_an_optimizer():
    graph, optimizer = scheduled(1e-3, 1e-4)
    graph.set_scheduler(None)
    graph.set_lr(0.5)
    graph.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    with pytest.raises(StateError, match="set_optimizer"):
        network().set_lr(0.5)


@each_row("schedule", [None, Linearly()])
def test_a_rate_that_is_a_tensor_stays_one(schedule):
    """A captured step reads the tensor."""
    rate = torch.tensor(0.25)
    graph = network()
    graph.set_optimizer(lambda parameters: torch.optim.Adam(parameters, lr=rate))
    graph.set_scheduler(schedule)
    graph.set_lr(0.5)
    assert rate.item() == 0.5
    graph.step()
    assert rate.item() == (0.5 if schedule is None else 0.0)


def test_a_schedule_without_a_rate_is_refused():
    with pytest.raises(ValueError, match=r"lr\(step\)"):
        network().set_scheduler(0.1)


# --- Loader and loss ----------------------------------------------------------------------------


def loader(names=("image", "ctx", "label")):
    fields = [torch.arange(8.0).reshape(8, 1) * 10**index for index in range(len(names))]
    return DataLoader(TensorDataSet(*fields, names=names), batch_size=3, shuffle=False)


def with_context():
    return start().input("ctx").through(AddRef("ctx")).using("ctx").tag("out").build()


@pytest.mark.case("runtime", 82)
def test_a_batch_feeds_the_inputs_by_name():
    graph = with_context()
    graph.set_data_loader(loader(), "image")
    for batch in graph.epoch(0):
        assert torch.equal(graph.forward_batch(batch), graph(batch["image"], batch["ctx"]))
    with pytest.raises(ValueError, match=r"'img'.*image, ctx, label"):
        graph.set_data_loader(loader(), "img")
    with pytest.raises(ValueError, match=r"'ctx'.*image, label"):
        graph.set_data_loader(loader(("image", "label")), "image")


def test_the_order_of_the_fields_is_that_of_the_ports_not_of_the_loader():
    graph = start().input("b", "a").through(AddRef("a")).using("a").through(double)
    graph = graph.through(AddRef("b")).using("b").build()
    graph.set_data_loader(loader(("a", "x", "b")), "x")
    values = dict(zip("axb", column(1, 2, 3).split(1), strict=True))
    batch = Batch(list(values.values()), list(values))
    assert graph.forward_batch(batch).item() == (2 + 1) * 2 + 3


def test_the_loss_sees_output_batch_tags_and_traces():
    class Body(nn.Identity):
        def trace(self):
            return torch.ones(())

    builder = start().input("ctx").through(AddRef("ctx")).using("ctx").tag("out")
    graph = builder.loop_body(Body()).for_n(2).tag("rec").through(Bias()).build()
    graph.set_data_loader(loader(), "image")
    seen = []

    def loss(context):
        seen.append(context)
        return (context.output - context.batch["label"]).sum()

    graph.set_loss_fn(loss)
    batch = next(iter(graph.epoch(0)))
    value = graph.loss(batch)
    value.backward()
    assert graph.bias_5.b.grad.item() == 3
    assert value.item() == sum(i + 10 * i - 100 * i for i in range(3))
    (context,) = seen
    assert context.batch is batch
    assert context.tags["out"].flatten().tolist() == [0, 11, 22]
    assert [trace.item() for trace in context.traces["rec"]] == [1, 1]


def test_what_is_not_attached_is_missed_by_name():
    graph = with_context()
    with pytest.raises(StateError, match="set_data_loader"):
        graph.epoch(0)
    graph.set_data_loader(loader(), "image")
    with pytest.raises(StateError, match="set_loss_fn"):
        graph.loss(next(iter(graph.epoch(0))))
