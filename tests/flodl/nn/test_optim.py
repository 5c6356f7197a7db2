"""Optimizers: torch's numbers to the last bit, and learning rates that are easy to set."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from flodl.nn.optim import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
    scale_lr,
    set_group_lr,
    set_lr,
)
from tests.rows import each_row

CLASSES = [SGD, Adam, AdamW, RMSprop, Adagrad, RAdam, NAdam]
every_class = pytest.mark.parametrize("optimizer", CLASSES, ids=lambda c: c.__name__)

SETTINGS = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "foreach": False}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (Adam, {}),
    (Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (Adam, {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "maximize": True}),
    (Adam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    (Adam, {"lr": 0.01, "fused": True}),
    (AdamW, {}),
    (AdamW, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    (AdamW, {"lr": 0.01, "foreach": True}),
    (RMSprop, {}),
    (RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.01}),
    (Adagrad, {}),
    (Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.2}),
    (RAdam, {}),
    (RAdam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    (NAdam, {}),
    (NAdam, {"lr": 0.01, "weight_decay": 0.1, "momentum_decay": 0.01}),
]


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model, optimizer, steps=20, seed=0, step=None):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randn(16, 5, generator=generator)
        optimizer.zero_grad()
        (model(batch) - batch[:, :3].cumsum(1)).square().mean().backward()
        (step or optimizer.step)()


def equal(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def theirs(optimizer):
    return getattr(torch.optim, optimizer.__name__)


# --- Torch's numbers ----------------------------------------------------------------------------


@each_row(("optimizer", "settings"), SETTINGS)
def test_twenty_steps_equal_torch_bit_for_bit(optimizer, settings):
    ours, reference = network(), network()
    train(ours, optimizer(ours.parameters(), **settings))
    train(reference, theirs(optimizer)(reference.parameters(), **settings))
    assert equal(ours, reference)
    assert not equal(ours, network())


@every_class
def test_parameter_groups_step_as_those_of_torch(optimizer):
    ours, reference = network(), network()
    built = (
        optimizer.with_groups(weight_decay=0.05)
        .group(ours[0].parameters(), 0.02)
        .group(ours[2].parameters(), 0.003, weight_decay=0.0)
        .build()
    )
    groups = [
        {"params": reference[0].parameters(), "lr": 0.02},
        {"params": reference[2].parameters(), "lr": 0.003, "weight_decay": 0.0},
    ]
    train(ours, built)
    train(reference, theirs(optimizer)(groups, weight_decay=0.05))
    assert type(built) is optimizer
    assert equal(ours, reference)


@every_class
def test_the_class_is_torchs_and_takes_the_same_arguments(optimizer):
    assert issubclass(optimizer, theirs(optimizer))
    assert inspect.signature(optimizer) == inspect.signature(theirs(optimizer))
    model = network()
    named = optimizer(model.named_parameters())
    assert named.param_groups[0]["param_names"] == [name for name, _ in model.named_parameters()]


@every_class
def test_states_are_exchanged_with_torch_in_both_directions(optimizer):
    whole = network()
    kept = optimizer(whole.parameters(), lr=0.02)
    train(whole, kept)
    begun, states = copy.deepcopy(whole), copy.deepcopy(kept.state_dict())
    train(whole, kept, seed=1)
    train(whole, kept, seed=2)

    # Ours goes on as torch's, and that one as ours again.
    for seed, kind in ((1, theirs(optimizer)), (2, optimizer)):
        continued = kind(begun.parameters(), lr=0.9)
        continued.load_state_dict(states)
        assert continued.param_groups[0]["lr"] == 0.02
        train(begun, continued, seed=seed)
        states = copy.deepcopy(continued.state_dict())
    assert equal(begun, whole)


@every_class
def test_a_pickled_or_copied_optimizer_keeps_its_state_and_its_abilities(optimizer):
    model = network()
    original = optimizer(model.parameters(), lr=0.02)
    train(model, original, steps=3)
    expected = [value.clone() for state in original.state.values() for value in state.values()]
    for twin in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert type(twin) is optimizer
        values = [value for state in twin.state.values() for value in state.values()]
        assert all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))
        twin.set_lr(0.5)
        twin.step()
        assert (twin.lr, original.lr) == (0.5, 0.02)


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (SGD, {}),
        (AdamW, {"capturable": True}),
        pytest.param(NAdam, {"capturable": True}, marks=pytest.mark.slow),
    ],
)
def test_a_compiled_step_equals_torchs_compiled_step(optimizer, settings):
    results = []
    for kind in (optimizer, theirs(optimizer)):
        torch._dynamo.reset()
        model = network()
        rate = torch.tensor(0.02)
        made = kind(model.parameters(), lr=rate, **settings)
        compiled = torch.compile(made.step, backend="eager")
        train(model, made, steps=3, step=compiled)
        set_lr(made, 0.05)
        train(model, made, steps=3, step=compiled)
        assert made.param_groups[0]["lr"] is rate
        results.append(model)
    torch._dynamo.reset()
    assert equal(*results)


def test_hooks_and_torchs_schedulers_work():
    model = network()
    optimizer = SGD(model.parameters(), lr=0.8)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(4):
        train(model, optimizer, steps=1)
        scheduler.step()
    assert len(calls) == 4
    assert optimizer.lr == pytest.approx(0.2)


# --- Learning rates -----------------------------------------------------------------------------


def two_groups(first=1e-3, second=1e-4, kind=AdamW):
    model = network()
    made = kind.with_groups().group(model[0].parameters(), first)
    return made.group(model[2].parameters(), second).build()


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_rates_are_read_set_and_scaled():
    optimizer = two_groups()
    assert optimizer.lr == 1e-3
    optimizer.set_group_lr(1, 5e-4)
    assert rates(optimizer) == [1e-3, 5e-4]
    optimizer.scale_lr(0.5)
    assert rates(optimizer) == [5e-4, 2.5e-4]
    optimizer.set_lr(0.1)
    assert rates(optimizer) == [0.1, 0.1]


def test_the_functions_serve_any_torch_optimizer():
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.2}]
    optimizer = torch.optim.Adadelta(groups, lr=0.1)
    set_group_lr(optimizer, 0, 0.4)
    scale_lr(optimizer, 2)
    assert rates(optimizer) == [0.8, 0.4]
    set_lr(optimizer, 0)
    assert rates(optimizer) == [0.0, 0.0]


def test_a_rate_that_is_a_tensor_stays_the_same_tensor():
    first, second = torch.tensor(1e-3), torch.tensor(1e-4)
    optimizer = two_groups(first, second)
    optimizer.set_lr(0.5)
    optimizer.set_group_lr(1, 0.25)
    optimizer.scale_lr(0.5)
    assert all(rate is kept for rate, kept in zip(rates(optimizer), (first, second), strict=True))
    assert (first.item(), second.item()) == (0.25, 0.125)
    assert type(optimizer.lr) is float
    assert optimizer.lr == 0.25


@each_row("index", [2, -1])
def test_a_group_that_does_not_exist_is_an_error(index):
    with pytest.raises(IndexError, match=f"no parameter group {index}: the optimizer has 2"):
        two_groups().set_group_lr(index, 0.1)


@each_row("lr", [-1e-3, float("nan"), float("inf")])
def test_an_impossible_rate_changes_nothing(lr):
    optimizer = two_groups()
    for change in (
        lambda: optimizer.set_lr(lr),
        lambda: optimizer.set_group_lr(0, lr),
        lambda: optimizer.scale_lr(lr),
    ):
        with pytest.raises(ValueError, match="finite and at least 0"):
            change()
    assert rates(optimizer) == [1e-3, 1e-4]


# --- Building -----------------------------------------------------------------------------------


def test_a_group_without_a_rate_takes_the_default():
    model = network()
    optimizer = (
        SGD.with_groups(lr=0.3, momentum=0.9)
        .group(model[0].parameters())
        .group(model[2].parameters(), 0.1, momentum=0.5)
        .build()
    )
    assert rates(optimizer) == [0.3, 0.1]
    assert [group["momentum"] for group in optimizer.param_groups] == [0.9, 0.5]


def test_what_cannot_be_built_says_why():
    model = network()
    with pytest.raises(TypeError, match="SGD takes no betas; it takes lr, momentum"):
        SGD.with_groups(betas=(0.9, 0.99))
    with pytest.raises(TypeError, match="AdamW takes no decay"):
        AdamW.with_groups().group(model.parameters(), 0.1, decay=0.1)
    with pytest.raises(ValueError, match=r"no parameter groups: call \.group"):
        AdamW.with_groups().build()
    spent = iter(model.parameters())
    groups = AdamW.with_groups().group(spent, 0.1)
    with pytest.raises(ValueError, match="parameter group 1 is empty; an iterator"):
        groups.group(spent, 0.2)
    with pytest.raises(ValueError, match="more than one parameter group"):
        groups.group(model[0].parameters(), 0.2).build()


@pytest.mark.case("runtime", 61)
@each_row("optimizer", [AdamW, Adam, RAdam, NAdam], ids=lambda c: c.__name__)
def test_a_weight_decay_in_the_place_of_betas_is_refused_with_a_hint(optimizer):
    params = list(network().parameters())
    with pytest.raises(ValueError, match=r"betas must be a pair .* 0\.01; .*weight_decay="):
        optimizer(params, 1e-3, 0.01)
    with pytest.raises(ValueError, match="betas must be a pair"):
        optimizer(params, betas=(0.9, 0.99, 0.999))
    assert optimizer(params, 1e-3, (0.8, 0.9)).param_groups[0]["betas"] == (0.8, 0.9)
    assert optimizer(params, betas=[0.8, 0.9]).lr > 0


# --- Fused steps --------------------------------------------------------------------------------


def on_cuda(shape=(3,), dtype=torch.float32):
    return nn.Parameter(torch.ones(shape, dtype=dtype, device="cuda"))


adams = pytest.mark.parametrize("optimizer", [Adam, AdamW], ids=lambda c: c.__name__)


@adams
def test_on_cuda_adam_is_fused_unless_told_otherwise(optimizer):
    with FakeTensorMode():  # a GPU's tensors without a GPU
        params = [on_cuda(), on_cuda(dtype=torch.bfloat16)]
        forms = [
            params,
            iter(params),
            [("a", params[0]), ("b", params[1])],
            [{"params": iter(params)}],
            [{"params": params[0]}, {"params": (params[1],), "lr": 0.1}],
        ]
        for form in forms:
            made = optimizer(form, 1e-3)
            assert made.defaults["fused"] is True
            assert all(group["fused"] is True for group in made.param_groups)
        built = optimizer.with_groups().group([params[0]], 0.1).group([params[1]], 0.2).build()
        assert [group["fused"] for group in built.param_groups] == [True, True]
        for told in ({"fused": False}, {"foreach": True}, {"foreach": False}):
            assert optimizer(params, **told).param_groups[0]["fused"] is told.get("fused")
        assert optimizer(params, differentiable=True).param_groups[0]["fused"] is None
        by_group = optimizer([{"params": params, "foreach": True}])
        assert by_group.param_groups[0]["fused"] is None


@adams
def test_a_parameter_elsewhere_or_without_fractions_keeps_adam_unfused(optimizer):
    with FakeTensorMode():
        mixed = [on_cuda(), nn.Parameter(torch.ones(3))]
        assert optimizer(mixed).param_groups[0]["fused"] is None
        complex_one = [on_cuda(), on_cuda(dtype=torch.complex64)]
        assert optimizer(complex_one).param_groups[0]["fused"] is None
    assert optimizer(network().parameters()).param_groups[0]["fused"] is None


@adams
def test_what_torch_refuses_is_still_refused_by_torch(optimizer):
    with pytest.raises(ValueError, match="empty parameter list"):
        optimizer([])
    with pytest.raises(TypeError, match="iterable of Tensors"):
        optimizer(nn.Parameter(torch.ones(3)))
    with pytest.raises(TypeError, match="missing a required argument: 'params'"):
        optimizer()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@adams
def test_the_fused_step_on_a_gpu_is_torchs(optimizer):
    ours, reference = network().cuda(), network().cuda()
    made = optimizer(ours.parameters(), lr=0.01, capturable=True)
    assert made.param_groups[0]["fused"] is True
    other = theirs(optimizer)(reference.parameters(), lr=0.01, capturable=True, fused=True)
    for model, chosen in ((ours, made), (reference, other)):
        for _ in range(20):
            chosen.zero_grad()
            model(torch.ones(4, 5, device="cuda")).square().mean().backward()
            chosen.step()
    assert equal(ours, reference)
    restored = optimizer(ours.parameters(), lr=0.5)
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert restored.lr == 0.01
