"""Loops of the user's own over common batches: the gradients of one process, on many ranks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from flodl.errors import BatchMismatchError, DistributedError
from flodl.graph import FlowBuilder, Graph, Lambda, StateAdd
from flodl.ranks.group import Group
from flodl.ranks.settings import DdpConfig
from flodl.train.plain_loop.setup import SetupConfig, TrainingSetup, prepare
from tests.flodl.distributed.ranks import Ranks

MS = (40.0, 100.0)
"""A batch on each of two ranks: 5/7 and 2/7 of the work make them equal."""


class Declared:
    """A watch that reads the duration off the number of batches."""

    def __init__(self, ms: float) -> None:
        self._ms = ms

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def end_forward(self, batches: float) -> None:
        pass

    def take(self, batches: float, *, wait: bool = False) -> float:  # noqa: ARG002
        return self._ms * batches


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def perceptron() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def graph() -> Graph:
    torch.manual_seed(3)
    return (
        FlowBuilder.from_(nn.Linear(6, 16))
        .through(nn.Tanh())
        .tag("hidden")
        .through(nn.Linear(16, 4))
        .build()
    )


def batches(count: int, samples: int = 70) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(11)
    return [
        (
            torch.randn(samples, 6, generator=generator),
            torch.randint(4, (samples,), generator=generator),
        )
        for _ in range(count)
    ]


def set_up(
    group: Group,
    model: nn.Module,
    ms: tuple[float, ...] = MS,
    config: SetupConfig | DdpConfig | None = None,
) -> TrainingSetup:
    watch = Declared(ms[group.rank % len(ms)])
    return prepare(model, None, sgd, config or DdpConfig(), group, watch)


def contrast(output: Tensor, label: Tensor, model: nn.Module) -> Tensor:
    """Every sample against every other: no sum over samples."""
    del model
    likeness = output @ output.T / 4
    return cross_entropy(likeness, torch.arange(len(output))) + 0.0 * label.sum()


def decayed(output: Tensor, label: Tensor, model: nn.Module) -> Tensor:
    """With a term that touches the parameters directly."""
    return cross_entropy(output, label) + 0.01 * sum(p.square().sum() for p in model.parameters())


LOSSES: dict[str, Callable[..., Tensor]] = {"contrast": contrast, "decayed": decayed}


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def shared_gradients(group: Group, loss: str, steps: int) -> dict[str, Any]:
    """Train, and look at the gradient that the last update was made with."""
    model = perceptron()
    setup = set_up(group, model)
    seen: list[list[Tensor]] = []
    setup.optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(model)))
    sizes = []
    for image, label in batches(steps):
        LOSSES[loss](setup(image), label, model).backward()
        setup.step()
        sizes.append(setup.shard_sizes)
    return {
        "gradients": seen,
        "ratios": setup.chunk_ratios,
        "sizes": sizes,
        "weights": [p.detach().clone() for p in model.parameters()],
    }


@pytest.mark.case("distributed", 40)
@pytest.mark.parametrize("loss", LOSSES)
def test_any_loss_of_the_whole_output_gives_the_gradients_of_one_process(
    ranks: Ranks, loss: str
) -> None:
    steps = 14
    results = ranks(2, shared_gradients, loss, steps)
    for found in results:
        assert found["ratios"] == pytest.approx((5 / 7, 2 / 7))
        assert found["sizes"] == [(35, 35)] * 10 + [(50, 20)] * 4

    model = perceptron()
    optimizer = sgd(list(model.parameters()))
    for step, (image, label) in enumerate(batches(steps)):
        LOSSES[loss](model(image), label, model).backward()
        for found in results:
            for mine, alone in zip(found["gradients"][step], gradients(model), strict=True):
                torch.testing.assert_close(mine, alone, rtol=0, atol=1e-6)
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(results[0]["weights"], results[1]["weights"], strict=True):
        assert torch.equal(one, other)


def trained_graph(group: Group) -> dict[str, Any]:
    model = graph()
    set_up(group, model)
    for image, label in batches(12):
        cross_entropy(model(image), label).backward()
        hidden = model.tagged("hidden")
        assert hidden is not None
        assert hidden.shape == (70, 16)
        model.step()
    return {"state": model.state_dict(), "steps": model.training_step, "hidden": hidden.detach()}


def test_a_graph_is_called_and_stepped_as_in_one_process(ranks: Ranks) -> None:
    results = ranks(2, trained_graph)
    alone = graph()
    alone.set_optimizer(sgd)
    for image, label in batches(12):
        cross_entropy(alone(image), label).backward()
        hidden = alone.tagged("hidden")
        alone.step()
    for found in results:
        assert found["steps"] == 12
        torch.testing.assert_close(found["hidden"], hidden, rtol=0, atol=1e-5)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(found["state"][name], value, rtol=0, atol=1e-5)


def tag_gradient(group: Group) -> list[Tensor]:
    model = graph()
    setup = set_up(group, model)
    seen: list[list[Tensor]] = []
    setup.optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(model)))
    image, label = batches(1)[0]
    output = model(image)
    hidden = model.tagged("hidden")
    assert hidden is not None
    (cross_entropy(output, label) + hidden.square().mean().sqrt()).backward()
    model.step()
    return seen[0]


def test_a_loss_of_a_tag_is_a_loss_of_the_whole_batch(ranks: Ranks) -> None:
    alone = graph()
    image, label = batches(1)[0]
    output = alone(image)
    hidden = alone.tagged("hidden")
    assert hidden is not None
    (cross_entropy(output, label) + hidden.square().mean().sqrt()).backward()
    for found in ranks(2, tag_gradient):
        for mine, whole in zip(found, gradients(alone), strict=True):
            torch.testing.assert_close(mine, whole, rtol=0, atol=1e-6)


def positive_rows(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0]


def odd_tag(group: Group) -> list[tuple[int, ...]]:
    torch.manual_seed(3)
    model = (
        FlowBuilder.from_(nn.Linear(6, 4))
        .tag("all")
        .fork(Lambda(positive_rows))
        .tag("positive")
        .build()
    )
    set_up(group, model)
    shapes = []
    for image, label in batches(3):
        cross_entropy(model(image), label).backward()
        model.step()
        for name in ("all", "positive"):
            value = model.tagged(name)
            assert value is not None
            shapes.append(tuple(value.shape))
    return shapes


def test_a_tag_that_differs_in_form_stays_what_the_rank_made(ranks: Ranks) -> None:
    for shapes in ranks(2, odd_tag):
        assert shapes[::2] == [(70, 4)] * 3
        assert all(0 < rows < 35 for rows, _ in shapes[1::2])


class Speaking(nn.Module):
    """Returns about everything that a module can return."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(6, 4)

    def forward(self, image: Tensor, *, scale: Tensor, label: Tensor) -> dict[str, Any]:
        logits = self.layer(image) * scale
        return {
            "logits": logits,
            "loss": cross_entropy(logits, label),
            "each": [logits.argmax(1), (logits > 0, logits.double()[:, 0])],
            "half": logits.bfloat16(),
            "nothing": None,
            "name": "speaking",
            "weight": self.layer.weight * 1.0,
        }


def nested(group: Group) -> dict[str, Any]:
    model = Speaking()
    setup = set_up(group, model)
    seen: list[list[Tensor]] = []
    setup.optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(model)))
    for image, label in batches(11, samples=33):
        found = setup(image, scale=torch.tensor(2.0), label=label)
        (found["loss"] + found["weight"].square().sum()).backward()
        setup.step()
    detached = torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, found)
    return {"output": detached, "gradients": seen[0]}


def test_nested_outputs_come_back_whole_and_means_over_the_batch_stay_means(ranks: Ranks) -> None:
    model = Speaking()
    optimizer = sgd(list(model.parameters()))
    first: list[Tensor] = []
    for image, label in batches(11, samples=33):
        alone = model(image, scale=torch.tensor(2.0), label=label)
        (alone["loss"] + alone["weight"].square().sum()).backward()
        first = first or gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    for found in ranks(3, nested):
        for mine, whole in zip(found["gradients"], first, strict=True):
            torch.testing.assert_close(mine, whole, rtol=0, atol=2e-6)
        output = found["output"]
        assert list(output) == list(alone)
        assert (output["nothing"], output["name"]) == (None, "speaking")
        for name in ("logits", "loss", "weight"):
            torch.testing.assert_close(output[name], alone[name].detach(), rtol=0, atol=1e-4)
        assert output["half"].dtype == torch.bfloat16
        assert output["half"].shape == (33, 4)
        best, (positive, column) = output["each"]
        assert torch.equal(best, alone["each"][0])
        assert positive.dtype == torch.bool
        assert torch.equal(positive, alone["each"][1][0])
        assert column.dtype == torch.float64


def few_samples(group: Group) -> list[Tensor]:
    model = perceptron()
    setup = set_up(group, model)
    seen: list[list[Tensor]] = []
    setup.optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(model)))
    image, label = batches(1, samples=2)[0]
    output = setup(image)
    assert output.shape == (2, 4)
    assert setup.shard_sizes == (1, 1, 0)
    cross_entropy(output, label).backward()
    setup.step()
    return seen[0]


def test_a_batch_may_have_fewer_samples_than_there_are_ranks(ranks: Ranks) -> None:
    model = perceptron()
    image, label = batches(1, samples=2)[0]
    cross_entropy(model(image), label).backward()
    for found in ranks(3, few_samples):
        for mine, whole in zip(found, gradients(model), strict=True):
            torch.testing.assert_close(mine, whole, rtol=0, atol=1e-6)


def refused(group: Group, what: str) -> str:
    setup = set_up(group, perceptron())
    image, label = batches(1)[0]
    if what == "values" and group.rank == 2:
        image = image + 1
    if what == "shape" and group.rank > 0:
        image = image[:60]
    with pytest.raises(BatchMismatchError) as caught:
        setup(image)
    del label
    return str(caught.value)


@pytest.mark.parametrize(("what", "named"), [("values", "rank 2"), ("shape", "ranks 1, 2")])
def test_different_batches_are_refused_with_the_ranks_that_got_them(
    ranks: Ranks, what: str, named: str
) -> None:
    for message in ranks(3, refused, what):
        assert message.startswith(f"{named} got another batch than rank 0 in call 0")
        assert f"(the {what} differ)" in message


def swapped(group: Group) -> str:
    """Two kinds of batches that all ranks know, and then one rank takes the other one."""
    setup = set_up(group, perceptron())
    kinds = [batches(1, samples)[0][0] for samples in (300, 40)]
    for call in range(6):
        setup(kinds[call % 2])
    with pytest.raises(BatchMismatchError) as caught:
        setup(kinds[group.rank % 2])
    return str(caught.value)


def test_a_known_batch_at_the_wrong_moment_is_refused_as_well(ranks: Ranks) -> None:
    for world in (2, 3):
        for message in ranks(world, swapped):
            assert message.startswith("rank 1 got another batch than rank 0 in call 6")


def drifting(group: Group) -> int:
    """The batches of rank 1 become others after call 30."""
    setup = set_up(group, nn.Linear(2, 1))
    for call in range(250):
        image = torch.full((4, 2), float(call + (group.rank if call > 30 else 0)))
        try:
            setup(image).sum().backward()
        except BatchMismatchError:
            return call
        setup.step()
    return -1


def test_batches_are_compared_again_every_hundred_calls(ranks: Ranks) -> None:
    assert ranks(2, drifting) == [100, 100]


class Odd(nn.Module):
    """Returns as many rows as the rank can spare, from some call on."""

    def __init__(self, rank: int, begins: int) -> None:
        super().__init__()
        self.layer, self.rank, self.begins, self.calls = nn.Linear(6, 4), rank, begins, 0

    def forward(self, image: Tensor) -> Tensor:
        self.calls += 1
        missing = self.rank if self.calls > self.begins else 0
        return self.layer(image)[missing:]  # type: ignore[no-any-return]


def odd_output(group: Group, begins: int) -> str:
    setup = set_up(group, Odd(group.rank, begins))
    image, _ = batches(1)[0]
    for _ in range(begins):
        setup(image)
    with pytest.raises(DistributedError) as caught:
        setup(image)
    return str(caught.value)


@pytest.mark.parametrize("begins", [0, 2])
def test_an_output_that_is_no_row_per_sample_is_refused(ranks: Ranks, begins: int) -> None:
    for message in ranks(2, odd_output, begins):
        assert "output 0 of the model cannot be put together" in message
        assert "rank 0: rows of [4] torch.float32; rank 1: [34, 4] torch.float32" in message


def evaluated(group: Group) -> list[Tensor]:
    model = perceptron()
    setup = set_up(group, model)
    image, label = batches(1)[0]
    found = []
    if group.rank == 1:
        with torch.no_grad():
            found.append(model(image))
        model.eval()
        found.append(model(image).detach())
        model.train()
    cross_entropy(setup(image), label).backward()
    setup.step()
    return found


def test_one_rank_may_evaluate_alone(ranks: Ranks) -> None:
    nobody, one = ranks(2, evaluated)
    assert nobody == []
    whole = perceptron()(batches(1)[0][0])
    assert [torch.equal(found, whole) for found in one] == [True, True]


def shuffled(group: Group) -> dict[str, Any]:
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(1, 400), nn.Dropout(0.5))
    setup = set_up(group, model)
    data = torch.utils.data.TensorDataset(torch.arange(60.0).unsqueeze(1))
    order, zeros = [], []
    for _ in range(6):
        for (x,) in torch.utils.data.DataLoader(data, batch_size=30, shuffle=True):
            order.append(x.flatten().tolist())
            output = setup(x)
            zeros.append([(row == 0).tolist() for row in output.detach()])
            output.sum().backward()
            setup.step()
    return {"order": order, "zeros": zeros, "cut": setup.shard_sizes}


def test_ranks_drop_out_differently_and_still_shuffle_alike(ranks: Ranks) -> None:
    one, other = ranks(2, shuffled)
    assert one["cut"] == (21, 9)  # the ranks used up different numbers of random numbers
    assert one["order"] == other["order"]
    assert one["zeros"] == other["zeros"]
    first, last = one["zeros"][0][0], one["zeros"][0][-1]
    assert sum(first) > 0
    assert first != last


def generator_and_judge(group: Group, ms: float) -> list[list[Tensor]]:
    """Two models, cut differently, one of which feeds the other."""
    torch.manual_seed(4)
    maker, judge = nn.Linear(3, 6), nn.Linear(6, 2)
    first = set_up(group, maker, (ms, 40.0))
    second = set_up(group, judge, (40.0, ms))
    seen: list[list[Tensor]] = [[], []]
    for place, setup in enumerate((first, second)):

        def look(*_: object, place: int = place, model: nn.Module = setup.model) -> None:
            seen[place] = gradients(model)

        setup.optimizer.register_step_pre_hook(look)
    for step in range(12):
        noise = torch.randn(20, 3, generator=torch.Generator().manual_seed(step))
        second(first(noise)).square().mean().backward()
        first.step()
        second.step()
    assert group.world_size == 1 or first.shard_sizes != second.shard_sizes
    return seen


def shares_of_equal_devices(group: Group, config: SetupConfig | DdpConfig) -> tuple[float, ...]:
    model = perceptron()
    setup = set_up(group, model, config=config)
    for image, label in batches(12):
        cross_entropy(setup(image), label).backward()
        setup.step()
    return setup.chunk_ratios


@pytest.mark.parametrize("config", [SetupConfig(device="cpu"), SetupConfig(max_grad_norm=1.0)])
def test_equal_devices_keep_equal_shares_unless_windows_are_asked_for(
    ranks: Ranks, config: SetupConfig
) -> None:
    assert ranks(2, shares_of_equal_devices, config) == [(0.5, 0.5)] * 2
    for shares in ranks(2, shares_of_equal_devices, DdpConfig()):
        assert shares == pytest.approx((5 / 7, 2 / 7))


def test_a_model_may_feed_another_that_is_cut_differently(ranks: Ranks) -> None:
    results = ranks(2, generator_and_judge, 100.0)
    (alone,) = ranks(1, generator_and_judge, 100.0)
    for found in results:
        for mine, whole in zip(found, alone, strict=True):
            for one, other in zip(mine, whole, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def normalised(group: Group) -> dict[str, Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.BatchNorm1d(1, momentum=1.0), nn.Linear(1, 1))
    model.register_buffer("table", torch.tensor([0.1, float("inf")]))
    setup = set_up(group, model)
    setup._loop.shares.ratios = (0.75, 0.25)
    x = torch.cat([torch.zeros(12), torch.ones(2), torch.full((2,), 3.0)]).unsqueeze(1)
    setup(x).sum().backward()
    setup.step()
    return model.state_dict()


@pytest.mark.case("distributed", 19)
def test_running_means_are_averaged_by_samples_and_tables_are_left_alone(ranks: Ranks) -> None:
    for state in ranks(2, normalised):
        # Means 0 and 2, of 12 and of 4 samples.
        assert state["0.running_mean"].item() == pytest.approx(0.5)
        assert state["0.num_batches_tracked"].item() == 1
        assert torch.equal(state["table"], torch.tensor([0.1, float("inf")]))


def remembering(group: Group) -> tuple[float, ...]:
    torch.manual_seed(2)
    model = (
        FlowBuilder.from_(nn.Linear(1, 4))
        .through(StateAdd())
        .using("memory")
        .through(nn.Tanh())
        .tag("memory")
        .build()
    )
    setup = set_up(group, model)
    for step in range(15):
        mse_loss(model(torch.full((14, 1), float(step))), torch.zeros(14, 4)).backward()
        model.step()
    return setup.chunk_ratios


def test_rows_of_a_graph_that_remembers_stay_on_their_rank(ranks: Ranks) -> None:
    assert ranks(2, remembering) == [(0.5, 0.5)] * 2


def copied(group: Group) -> list[bool]:
    model = perceptron()
    setup = set_up(group, model)
    image, label = batches(1)[0]
    cross_entropy(setup(image), label).backward()
    setup.step()
    whole = nn.Sequential(*model)(image)
    found = []
    if group.rank == 0:  # a copy of the model has no ranks, so nobody is waited for
        others = (copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
        found = [torch.equal(other(image), whole) for other in others]
    return found


def test_a_copy_of_the_model_computes_what_it_is_given(ranks: Ranks) -> None:
    assert ranks(2, copied) == [[True, True], []]


def unknown_output(group: Group) -> str:
    class Holder:
        pass

    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, _: Tensor) -> Holder:
            return Holder()

    with pytest.raises(DistributedError) as caught:
        set_up(group, Strange())(batches(1)[0][0])
    return str(caught.value)


def test_an_output_that_nobody_can_look_into_is_refused(ranks: Ranks) -> None:
    assert "the model returned a Holder" in ranks(2, unknown_output)[0]
