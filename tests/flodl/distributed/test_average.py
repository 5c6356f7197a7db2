"""Parameters, buffers and optimizer states are averaged by the samples that each rank has seen."""

import copy
import math

import pytest
import torch
from torch import nn

from flodl.errors import DivergedError, StateError
from flodl.ranks.averaging.average import ParameterAverager
from flodl.ranks.averaging.outer_optimizer import Nesterov
from flodl.ranks.group import LocalGroup
from flodl.ranks.settings import Backend
from tests.flodl.distributed.ranks import RankError

BACKENDS = pytest.mark.parametrize("backend", list(Backend))


class Values(nn.Module):
    """One parameter."""

    def __init__(self, *values, dtype=torch.float32):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(values, dtype=dtype))


def _network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))


def _trained(model, optimizer, rank, steps, seed=100):
    generator = torch.Generator().manual_seed(seed + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 3, 8, 8, generator=generator)).square().mean().backward()
        optimizer.step()


def _parameters(model):
    return [p.detach().clone() for p in model.parameters()]


# --- the formula ---------------------------------------------------------------------------------


def _average_of(group, backend, values, samples, dtype):
    model = Values(values[group.rank], dtype=dtype)
    averaged = ParameterAverager(model, group, backend).average(samples[group.rank])
    return model.p.item(), averaged


@BACKENDS
@pytest.mark.case("distributed", 15)
def test_the_average_is_weighted_by_samples(ranks, backend):
    results = ranks(2, _average_of, backend, [1.0, 4.0], [1600, 640], torch.float32)
    average = 4160 / 2240
    for rank, (value, averaged) in enumerate(results):
        assert value == pytest.approx(average, abs=1e-7)
        assert averaged.samples == 2240
        assert averaged.finite
        assert averaged.divergence == pytest.approx(abs([1.0, 4.0][rank] - average) / average)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_averaged_in_one_at_least_as_wide(ranks, backend, dtype):
    (value, _), _ = ranks(2, _average_of, backend, [1.0, 4.0], [1600, 640], dtype)
    assert value == torch.tensor(4160 / 2240, dtype=dtype).item()


@BACKENDS
def test_half_types_do_not_overflow_by_their_weight(ranks, backend):
    (value, _), _ = ranks(2, _average_of, backend, [100.0, 300.0], [60000, 60000], torch.float16)
    assert value == 200.0


def _network_average(group, backend):
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    _trained(model, optimizer, group.rank, 3)
    ParameterAverager(model, group, backend).average([48, 24, 8][group.rank])
    return list(model.state_dict().values())


@pytest.mark.case("distributed", 15)
def test_the_backends_differ_by_rounding_only_and_the_ranks_not_at_all(ranks):
    direct, through_host = (ranks(3, _network_average, backend) for backend in Backend)
    for results in (direct, through_host):
        for others in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))
    for a, b in zip(direct[0], through_host[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def _average_with_idle_ranks(group, backend, samples):
    model = _network()
    _trained(model, torch.optim.SGD(model.parameters(), 0.1), group.rank, 2)
    averaged = ParameterAverager(model, group, backend).average(samples[group.rank])
    return list(model.state_dict().values()), averaged


@BACKENDS
@pytest.mark.case("distributed", 16)
def test_a_rank_without_samples_leaves_the_average_of_the_others_to_the_bit(ranks, backend):
    without = ranks(2, _average_with_idle_ranks, backend, [100, 37])[0][0]
    for values, averaged in ranks(3, _average_with_idle_ranks, backend, [100, 37, 0]):
        assert averaged.samples == 137
        assert averaged.finite
        assert all(torch.equal(a, b) for a, b in zip(values, without, strict=True))


@BACKENDS
def test_without_any_samples_everybody_keeps_what_they_have(ranks, backend):
    results = ranks(2, _average_of, backend, [1.0, 4.0], [0, 0], torch.float32)
    assert [value for value, _ in results] == [1.0, 4.0]
    assert results[0][1].samples == 0


# --- buffers and shared tensors ------------------------------------------------------------------


def _statistics(group, backend):
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(float(group.rank))
    model[1].num_batches_tracked.fill_([7, 5][group.rank])
    ParameterAverager(model, group, backend).average([30, 10][group.rank])
    return model[1].running_mean.tolist(), model[1].num_batches_tracked.item()


@BACKENDS
@pytest.mark.case("distributed", 19)
def test_floating_buffers_are_weighted_and_of_counters_the_largest_wins(ranks, backend):
    assert ranks(2, _statistics, backend) == [([0.25, 0.25], 7)] * 2


class _Constants(nn.Module):
    """Things that no rank changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.p = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(50), requires_grad=False)
        self.table = nn.Parameter(torch.tensor([3, 1]), requires_grad=False)
        self.register_buffer("angles", torch.randn(50))
        self.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
        self.register_buffer("allowed", torch.tensor([True, False]))


def _constants(group, backend, asynchronous):
    model = _Constants()
    before = copy.deepcopy(model.state_dict())
    averager = ParameterAverager(model, group, backend)
    for round_ in range(5):
        samples = [48, 0 if round_ == 1 else 80, 7][group.rank]
        averager.start(samples).apply() if asynchronous else averager.average(samples)
    after = model.state_dict()
    return all(torch.equal(after[name], before[name]) for name in before if name != "p")


@BACKENDS
@pytest.mark.parametrize("asynchronous", [False, True])
def test_constants_come_back_to_the_bit_and_infinite_masks_break_nothing(
    ranks, backend, asynchronous
):
    assert ranks(3, _constants, backend, asynchronous) == [True] * 3


class _Odd(nn.Module):
    """Tied, complex and transposed parameters."""

    def __init__(self, rank):
        super().__init__()
        self.a = nn.Linear(2, 3, bias=False)
        self.b = nn.Linear(2, 3, bias=False)
        self.b.weight = self.a.weight
        self.z = nn.Parameter(torch.full((2,), complex(1 + rank, 2 - rank)))
        self.t = nn.Parameter((torch.arange(6.0).view(2, 3) + rank).t())
        nn.init.constant_(self.a.weight, rank)


def _odd(group, backend):
    model = _Odd(group.rank)
    averager = ParameterAverager(model, group, backend)
    averager.average(10)
    first = (model.a.weight.mean().item(), model.z.tolist(), model.t.tolist())
    # An engine may lay a parameter out anew between two averages.
    model.t.data = model.t.data.contiguous() + group.rank
    averager.average(10)
    return (*first, model.b.weight is model.a.weight, model.t.tolist())


@BACKENDS
def test_tied_complex_and_transposed_parameters_are_averaged_where_they_are(ranks, backend):
    t = (torch.arange(6.0).view(2, 3) + 0.5).t()
    expected = (0.5, [1.5 + 1.5j] * 2, t.tolist(), True, (t + 0.5).tolist())
    assert ranks(2, _odd, backend) == [expected] * 2


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="Flatten has no parameters"):
        ParameterAverager(nn.Flatten(), LocalGroup(), Backend.NCCL)


# --- ranks that are not finite -------------------------------------------------------------------


def _broken(group, backend, broken, samples, asynchronous):
    model = Values(1.0 + group.rank, 2.0)
    if group.rank in broken:
        with torch.no_grad():
            model.p[1] = broken[group.rank]
    averager = ParameterAverager(model, group, backend)
    mine = samples[group.rank]
    averaged = averager.start(mine).apply() if asynchronous else averager.average(mine)
    return model.p.tolist(), averaged.finite, averaged.divergence, averaged.samples


@BACKENDS
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.case("distributed", 21)
def test_a_broken_rank_does_not_count_and_takes_the_average_of_the_others(
    ranks, backend, asynchronous, value
):
    results = ranks(3, _broken, backend, {1: value}, [30, 500, 10], asynchronous)
    for rank, (values, finite, divergence, samples) in enumerate(results):
        assert values == [1.5, 2.0]
        assert samples == 40
        assert finite == (rank != 1)
        assert divergence == (0.0 if rank == 1 else pytest.approx(abs(rank - 0.5) / 2.5))


@BACKENDS
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.case("distributed", 21)
def test_when_no_rank_is_finite_training_has_diverged(ranks, backend, asynchronous):
    broken = {0: math.nan, 1: -math.inf}
    with pytest.raises(RankError, match=DivergedError.__name__):
        ranks(2, _broken, backend, broken, [30, 10], asynchronous)


def test_one_rank_alone_is_checked_too():
    with pytest.raises(DivergedError, match="no rank has finite parameters"):
        ParameterAverager(Values(math.nan), LocalGroup(), Backend.NCCL).average(8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_large_values_are_finite_all_the_same(dtype):
    largest = torch.finfo(dtype).max / 4
    model = Values(largest, largest, largest, largest / 2, dtype=dtype)
    assert ParameterAverager(model, LocalGroup(), Backend.NCCL).average(8).finite


@BACKENDS
def test_one_rank_alone_keeps_its_parameters_to_the_bit(backend):
    model = _network()
    before = copy.deepcopy(model.state_dict())
    averager = ParameterAverager(model, LocalGroup(), backend)
    averaged = averager.average(7)
    assert averaged.samples == 7
    assert averaged.divergence == 0.0
    averager.start(7).apply()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


# --- overlapped rounds ---------------------------------------------------------------------------


def _overlapped(group, backend):
    model = Values([2.0, 1.7][group.rank])
    round_ = ParameterAverager(model, group, backend).start([1600, 640][group.rank])
    with torch.no_grad():
        model.p += 0.3
    averaged = round_.apply()
    return model.p.item(), averaged.divergence


@BACKENDS
@pytest.mark.case("distributed", 20)
def test_progress_made_during_an_average_is_kept(ranks, backend):
    average = (1600 * 2.0 + 640 * 1.7) / 2240
    for rank, (value, divergence) in enumerate(ranks(2, _overlapped, backend)):
        assert value == pytest.approx(average + 0.3, abs=1e-6)
        assert divergence == pytest.approx(abs([2.0, 1.7][rank] - average) / average, rel=1e-5)


def _overlapped_example(group, backend):
    # The averages are 1.857142857 = (1600 · 2.0 + 640 · 1.5) / 2240.
    model = Values([2.0, 1.5][group.rank])
    round_ = ParameterAverager(model, group, backend).start([1600, 640][group.rank])
    if group.rank == 0:
        with torch.no_grad():
            model.p.fill_(2.3)
    round_.apply()
    return model.p.item()


@BACKENDS
@pytest.mark.case("distributed", 20)
def test_the_example_of_an_overlapped_average(ranks, backend):
    moved, still = ranks(2, _overlapped_example, backend)
    assert moved == pytest.approx(2.157142857, abs=1e-6)
    assert still == pytest.approx(1.857142857, abs=1e-6)


def _constant_gradient(group, backend):
    model = Values(0.0, dtype=torch.float64)
    averager = ParameterAverager(model, group, backend)
    pending = None
    for batch in range(100):
        with torch.no_grad():
            model.p -= 0.1 * 2.0
        if pending is not None and batch % 7 == 2:
            pending.apply()
            pending = None
        if pending is None and batch % 10 == 9:
            pending = averager.start(80)
    if pending is not None:
        pending.apply()
    averager.average(80)
    return model.p.item()


@BACKENDS
@pytest.mark.case("distributed", 20)
def test_overlapped_rounds_lose_no_step(ranks, backend):
    for moved in ranks(2, _constant_gradient, backend):
        assert moved == pytest.approx(-100 * 0.1 * 2.0, abs=1e-6)


def _polled(group, backend):
    model = Values(float(group.rank))
    averager = ParameterAverager(model, group, backend)
    if group.rank == 1:
        group.store.wait(["asked"])
    round_ = averager.start(10)
    before = round_.done()
    if group.rank == 0:
        group.store.set("asked", "yes")
    averaged = round_.apply()
    return before if group.rank == 0 else None, round_.done(), averaged.samples


@BACKENDS
def test_a_round_is_done_when_the_last_rank_has_joined_it(ranks, backend):
    assert ranks(2, _polled, backend) == [(False, True, 20.0), (None, True, 20.0)]


def test_only_one_round_is_under_way():
    averager = ParameterAverager(Values(1.0), LocalGroup(), Backend.CPU)
    round_ = averager.start(1)
    with pytest.raises(StateError, match="apply it before"):
        averager.start(1)
    with pytest.raises(StateError, match="apply it before"):
        averager.average(1)
    round_.apply()
    with pytest.raises(StateError, match="applied before"):
        round_.apply()
    averager.average(1)


def _variance(group, backend):
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    model[1].running_var.fill_([4.0, 0.1][group.rank])
    model[1].num_batches_tracked.fill_(3)
    round_ = ParameterAverager(model, group, backend).start([1, 99][group.rank])
    model[1].running_var.mul_(0.5)
    model[1].num_batches_tracked.add_(group.rank)
    round_.apply()
    return model[1].running_var.item(), model[1].num_batches_tracked.item()


@BACKENDS
def test_an_overlapped_average_leaves_no_negative_variance(ranks, backend):
    for rank, (variance, batches) in enumerate(ranks(2, _variance, backend)):
        assert variance == pytest.approx(0.139)
        assert batches == 3 + rank


# --- the optimizer's state -----------------------------------------------------------------------


def _adam(group, backend, together, steps):
    model = _network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    averager = ParameterAverager(model, group, backend, optimizer=optimizer if together else None)
    _trained(model, optimizer, group.rank, steps[group.rank])
    averager.average(8 * steps[group.rank])
    state = copy.deepcopy(optimizer.state_dict()["state"])
    # It is a state that training continues from.
    _trained(model, optimizer, group.rank, 1)
    return list(state.values())


@BACKENDS
@pytest.mark.case("distributed", 23)
def test_moments_are_equal_across_ranks_only_when_they_are_averaged(ranks, backend):
    for together in (False, True):
        first, second = ranks(2, _adam, backend, together, [3, 5])
        assert len(first) == 6
        for a, b in zip(first, second, strict=True):
            assert torch.equal(a["exp_avg"], b["exp_avg"]) == together
            assert torch.equal(a["exp_avg_sq"], b["exp_avg_sq"]) == together
            steps = (5.0, 5.0) if together else (3.0, 5.0)
            assert (a["step"].item(), b["step"].item()) == steps


@BACKENDS
def test_a_rank_that_has_not_stepped_yet_gets_the_state_of_the_others(ranks, backend):
    first, second = ranks(2, _adam, backend, True, [0, 2])
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
        assert a["step"] == 2


def test_parameters_that_nobody_stepped_get_no_state():
    model = Values(1.0)
    optimizer = torch.optim.Adam(model.parameters())
    ParameterAverager(model, LocalGroup(), Backend.CPU, optimizer=optimizer).average(0)
    ParameterAverager(model, LocalGroup(), Backend.CPU, optimizer=optimizer).average(1)
    assert not optimizer.state


def test_an_optimizer_that_needs_a_closure_is_refused():
    model = Values(1.0)
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match="state of LBFGS cannot be averaged"):
        ParameterAverager(model, LocalGroup(), Backend.CPU, optimizer=optimizer)


# --- outer optimizers ----------------------------------------------------------------------------


def _rounds_with(group, backend, outer, asynchronous):
    model = _network()
    averager = ParameterAverager(model, group, backend, outer=outer)
    for number in range(4):
        _trained(model, torch.optim.SGD(model.parameters(), 0.1), group.rank, 2, seed=number)
        samples = [16, 8][group.rank]
        averager.start(samples).apply() if asynchronous else averager.average(samples)
    return _parameters(model)


@BACKENDS
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.case("distributed", 24)
def test_rate_one_without_momentum_is_the_plain_average(ranks, backend, asynchronous):
    plain = ranks(2, _rounds_with, backend, None, asynchronous)
    outer = ranks(2, _rounds_with, backend, Nesterov(1.0, 0.0), asynchronous)
    for a, b in zip(plain, outer, strict=True):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


@BACKENDS
def test_momentum_goes_beyond_the_average_alike_on_all_ranks(ranks, backend):
    plain = ranks(2, _rounds_with, backend, None, False)
    first, second = ranks(2, _rounds_with, backend, Nesterov(), False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(torch.allclose(a, b) for a, b in zip(first, plain[0], strict=True))


def test_one_rank_alone_follows_the_outer_optimizer():
    model = Values(1.0, dtype=torch.float64)
    averager = ParameterAverager(model, LocalGroup(), Backend.NCCL, outer=Nesterov(0.5, 0.0))
    with torch.no_grad():
        model.p.fill_(3.0)
    averager.average(1)
    assert model.p.item() == 2.0


# --- copies through host memory ------------------------------------------------------------------


def _load_then_snapshot(device, rounds):
    """Overwrite a parameter and send it at once, as often as told; what arrived differently."""
    group = LocalGroup(torch.device(device))
    model = Values(*[0.0] * 64).to(device)
    averager = ParameterAverager(model, group, Backend.CPU)
    generator = torch.Generator().manual_seed(3)
    source = torch.empty(64, pin_memory=device != "cpu")
    wrong = 0
    for _ in range(rounds):
        torch.rand(64, generator=generator, out=source)
        expected = source.double().sum().item()
        with torch.no_grad():
            model.p.copy_(source, non_blocking=True)
            round_ = averager.start(1)
            # Training goes on: the snapshot must not see this.
            model.p.add_(1.0)
        round_.apply()
        with torch.no_grad():
            model.p.sub_(1.0)
        sent = averager.wire._inner._buckets.all[0].values
        wrong += sent.sum().item() != expected
    return wrong


@pytest.mark.case("distributed", 25)
def test_a_snapshot_through_host_memory_is_never_an_older_one():
    assert _load_then_snapshot("cpu", 10_000) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.case("distributed", 25)
def test_a_snapshot_from_a_gpu_is_never_an_older_one():
    assert _load_then_snapshot("cuda", 10_000) == 0
