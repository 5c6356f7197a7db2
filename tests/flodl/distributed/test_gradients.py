"""Gradients of the ranks become the gradient of all their samples together."""

import pytest
import torch
from torch import nn

from flodl.ranks.averaging.gradients import StepAverager
from flodl.ranks.group import LocalGroup
from flodl.ranks.settings import Backend
from tests.flodl.distributed.ranks import RankError

BACKENDS = pytest.mark.parametrize("backend", list(Backend))
_BATCHES = [5, 2, 1]


def _model(dtype):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def _data(dtype):
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randn(64, 6, generator=generator, dtype=dtype),
        torch.randn(64, 3, generator=generator, dtype=dtype),
    )


def _accumulated(group, backend, dtype):
    model = _model(dtype)
    x, y = _data(dtype)
    first = 8 * sum(_BATCHES[: group.rank])
    count = _BATCHES[group.rank]
    for start in range(first, first + 8 * count, 8):
        loss = nn.functional.mse_loss(model(x[start : start + 8]), y[start : start + 8])
        (loss / count).backward()
    reducer = StepAverager(model, group, backend)
    samples = reducer.reduce(8 * count)[-1]
    return samples, [p.grad for p in model.parameters()]


@BACKENDS
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.case("distributed", 17)
def test_accumulated_gradients_of_uneven_ranks_are_that_of_one_large_batch(
    ranks, backend, dtype, limit
):
    model = _model(dtype)
    x, y = _data(dtype)
    nn.functional.mse_loss(model(x), y).backward()
    for samples, gradients in ranks(3, _accumulated, backend, dtype):
        assert samples == 64
        for gradient, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=limit, atol=limit)


class _Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.everywhere = nn.Parameter(torch.zeros(2))
        self.somewhere = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        self.nowhere = nn.Parameter(torch.zeros(4))
        self.frozen = nn.Parameter(torch.zeros(5), requires_grad=False)
        self.complex = nn.Parameter(torch.zeros(1, dtype=torch.complex64))


def _uneven(group, backend):
    model = _Parts()
    model.everywhere.grad = torch.full((2,), 1.0 + group.rank)
    model.complex.grad = torch.full((1,), complex(group.rank, 1))
    if group.rank == 1:
        model.somewhere.grad = torch.full((3,), 4.0, dtype=torch.bfloat16)
    sums = StepAverager(model, group, backend).reduce([30, 10][group.rank], [group.rank, 0.5])
    grads = {name: p.grad for name, p in model.named_parameters()}
    return sums, {
        name: None if grad is None else (grad.dtype, grad.tolist()) for name, grad in grads.items()
    }


@BACKENDS
def test_a_missing_gradient_is_zero_and_one_that_nobody_has_stays_none(ranks, backend):
    expected = {
        "everywhere": (torch.float32, [1.25, 1.25]),
        "somewhere": (torch.bfloat16, [1.0, 1.0, 1.0]),
        "nowhere": None,
        "frozen": None,
        "complex": (torch.complex64, [0.25 + 1j]),
    }
    assert ranks(2, _uneven, backend) == [([1.0, 1.0, 40.0], expected)] * 2


def _with_an_idle_rank(group, backend, samples):
    model = nn.Linear(1, 1, bias=False)
    if group.rank != 1:
        model.weight.grad = torch.full((1, 1), 0.1 + group.rank)
    else:
        # What an idle rank still has from an earlier batch is no gradient of this one.
        model.weight.grad = torch.full((1, 1), float("nan"))
    sums = StepAverager(model, group, backend).reduce(samples[group.rank])
    return sums, model.weight.grad.item()


@BACKENDS
def test_a_rank_without_samples_takes_part_with_zeros(ranks, backend):
    for sums, gradient in ranks(3, _with_an_idle_rank, backend, [3, 0, 1]):
        assert sums == [4.0]
        assert gradient == pytest.approx((3 * 0.1 + 2.1) / 4)


def _nobody(group, backend):
    model = nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.full((1, 1), 7.0)
    return StepAverager(model, group, backend).reduce(0, [1.0]), model.weight.grad.item()


@BACKENDS
def test_without_samples_gradients_stay_as_they_are(ranks, backend):
    assert ranks(2, _nobody, backend) == [([2.0, 0.0], 7.0)] * 2


def _not_a_number(group, backend):
    model = nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.full((1, 1), [1.0, float("inf")][group.rank])
    StepAverager(model, group, backend).reduce(4)
    return model.weight.grad.isfinite().item()


@BACKENDS
def test_a_gradient_that_is_not_finite_shows_on_every_rank(ranks, backend):
    assert ranks(2, _not_a_number, backend) == [False, False]


def _sparse(group):
    model = nn.Embedding(4, 2, sparse=True)
    model(torch.tensor([1])).sum().backward()
    StepAverager(model, group, Backend.CPU).reduce(1)


def test_sparse_gradients_are_refused(ranks):
    with pytest.raises(RankError, match="gradient of weight is sparse"):
        ranks(2, _sparse)


def _again(group, backend):
    model = nn.Linear(2, 1)
    reducer = StepAverager(model, group, backend)
    found = []
    for step in range(3):
        model.zero_grad(set_to_none=step != 1)
        model(torch.full((1, 2), float(group.rank + step))).sum().backward()
        reducer.reduce(1)
        found.append(model.weight.grad[0, 0].item())
    return found


@BACKENDS
def test_every_step_starts_anew(ranks, backend):
    assert ranks(2, _again, backend) == [[0.5, 1.5, 2.5]] * 2


def test_one_rank_alone_keeps_its_gradients():
    model = nn.Linear(1, 1)
    model.weight.grad = torch.full((1, 1), 0.1)
    assert StepAverager(model, LocalGroup(), Backend.NCCL).reduce(3, [5]) == [5.0, 3.0]
    assert model.weight.grad.item() == torch.tensor(0.1).item()
    assert model.bias.grad is None
