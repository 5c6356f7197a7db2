"""Outer optimizers are torch's SGD on the difference between two averages."""

import pytest
import torch

from flodl.errors import CheckpointError
from flodl.ranks.averaging.outer_optimizer import Nesterov


def _averages(count, dtype=torch.float32):
    generator = torch.Generator().manual_seed(9)
    return [torch.randn(20, generator=generator, dtype=dtype) for _ in range(count)]


def _followed(outer, last, averages):
    found = []
    for average in averages:
        last = outer.step(last, average)
        found.append(last)
    return found


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (0.3, 0.0), (1.0, 0.5)])
def test_it_is_nesterovs_momentum_of_torch(lr, momentum):
    first, *averages = _averages(6, torch.float64)
    ours = _followed(Nesterov(lr, momentum), first, averages)
    theta = torch.nn.Parameter(first.clone())
    sgd = torch.optim.SGD([theta], lr, momentum=momentum, nesterov=momentum > 0)
    for average, mine in zip(averages, ours, strict=True):
        theta.grad = theta.detach() - average
        sgd.step()
        torch.testing.assert_close(mine, theta.detach(), rtol=0, atol=1e-12)


@pytest.mark.case("distributed", 24)
def test_rate_one_without_momentum_takes_the_average():
    first, *averages = _averages(6)
    for mine, average in zip(_followed(Nesterov(1.0, 0.0), first, averages), averages, strict=True):
        torch.testing.assert_close(mine, average, rtol=0, atol=1e-6)


@pytest.mark.case("distributed", 24)
def test_it_goes_on_from_a_saved_state_to_the_bit():
    first, *averages = _averages(9)
    whole = _followed(Nesterov(), first, averages)
    outer = Nesterov()
    half = _followed(outer, first, averages[:4])
    state = outer.state_dict()
    _followed(outer, half[-1], averages[4:])
    resumed = Nesterov()
    resumed.load_state_dict(state)
    for a, b in zip(whole[4:], _followed(resumed, half[-1], averages[4:]), strict=True):
        assert torch.equal(a, b)


def test_before_the_first_step_there_is_no_state():
    outer = Nesterov()
    assert outer.state_dict() == {}
    _followed(outer, *[(a := _averages(3))[0], a[1:]])
    outer.load_state_dict({})
    assert outer.state_dict() == {}


def test_the_parameters_it_is_given_stay_as_they_are():
    last, average = _averages(2)
    kept = last.clone(), average.clone()
    Nesterov().step(last, average)
    assert torch.equal(last, kept[0])
    assert torch.equal(average, kept[1])


def test_a_state_of_another_model_is_refused():
    outer = Nesterov()
    outer.load_state_dict({"velocity": torch.zeros(3)})
    with pytest.raises(CheckpointError, match="has 3 values and the model 20 parameters"):
        outer.step(*_averages(2))


@pytest.mark.parametrize(
    ("lr", "momentum", "named"), [(0.0, 0.9, "lr=0.0"), (0.7, 1.0, "momentum=1.0")]
)
def test_settings_out_of_range_are_refused(lr, momentum, named):
    with pytest.raises(ValueError, match=named):
        Nesterov(lr, momentum)
