"""Acceptance cases of the training parts, with the numbers they promise."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from torch import nn

from flodl import Trainer
from flodl.graph import FlowBuilder
from flodl.memory import cuda_empty_cache, cuda_peak_active_bytes, cuda_peak_reserved_bytes
from flodl.nn import losses
from flodl.nn.amp import GradScaler
from flodl.nn.clip import clip_grad_norm, clip_grad_value
from flodl.nn.cuda_graph import CudaGraph
from flodl.nn.init import (
    kaiming_uniform,
    orthogonal,
    trunc_normal,
    uniform_bias,
    xavier_uniform,
)
from flodl.nn.layers import gaussian_blur_2d
from flodl.nn.optim import AdamW
from flodl.nn.schedule import (
    CosineScheduler,
    CyclicLR,
    MultiStepLR,
    OneCycleLR,
    PlateauScheduler,
    StepDecay,
    WarmupScheduler,
)
from flodl.rng import Rng
from flodl.worker import CpuWorker


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-6)


def near_all(*values: float) -> object:
    return pytest.approx(list(values), abs=1e-6)


def rates(schedule: object, *steps: int) -> list[float]:
    return [schedule.lr(step) for step in steps]


@pytest.mark.case("runtime", 49)
def test_step_decay_and_milestones():
    assert rates(StepDecay(0.1, 10, 0.5), 9, 10, 20) == near_all(0.1, 0.05, 0.025)
    assert rates(MultiStepLR(0.1, [60, 30, 90], 0.5), 29, 30, 90) == near_all(0.1, 0.05, 0.0125)


@pytest.mark.case("runtime", 50)
def test_cosine_stays_at_its_minimum_after_the_end():
    schedule = CosineScheduler(0.1, 0.001, 100)
    assert rates(schedule, 0, 25, 50, 250) == near_all(0.1, 0.0855017857, 0.0505, 0.001)


@pytest.mark.case("runtime", 51)
def test_warmup_reaches_its_target_one_step_early_and_shifts_the_rest():
    schedule = WarmupScheduler(CosineScheduler(0.1, 0.001, 90), 0.1, 10)
    assert rates(schedule, 0, 9, 10, 55) == near_all(0.01, 0.1, 0.1, 0.0505)


@pytest.mark.case("runtime", 52)
def test_one_cycle_rises_for_three_tenths_and_falls():
    schedule = OneCycleLR(0.01, 100)
    expected = near_all(0.0004, 0.0052, 0.01, 0.0052, 0.0004, 0.0004)
    assert rates(schedule, 0, 15, 30, 65, 100, 200) == expected
    short = rates(OneCycleLR(0.01, 15), *range(16))
    assert short.index(max(short)) == 5


@pytest.mark.case("runtime", 53)
def test_cyclic_rates_even_and_uneven():
    assert rates(CyclicLR(0.001, 0.01, 10), 5, 10, 20) == near_all(0.0055, 0.01, 0.001)
    assert rates(CyclicLR.asymmetric(0, 1, 4, 6), 4, 7, 10) == near_all(1, 0.5, 0)


@pytest.mark.case("runtime", 54)
def test_a_plateau_lowers_the_rate_at_the_last_patient_observation():
    schedule = PlateauScheduler(0.1, 3, 0.5, 1e-6)
    seen = []
    for metric in (1, 1.1, 1.2, 1.3):
        schedule.observe(metric)
        seen.append(schedule.lr())
    assert seen == near_all(0.1, 0.1, 0.1, 0.05)


@pytest.mark.case("runtime", 56)
def test_focal_loss_and_divergence_from_the_uniform_distribution():
    logits = torch.tensor([[2, 0.5, -1], [-0.5, 1.5, 0.3]])
    index = torch.tensor([0, 1])
    assert losses.focal_loss(logits, index, alpha=0.25, gamma=2.0).item() == near(0.0055677)
    plain = losses.focal_loss(logits, index, alpha=1.0, gamma=0.0).item()
    assert plain == near(0.3017707)
    assert plain == near(nn.functional.cross_entropy(logits, index).item())
    log_p = torch.tensor([[2, 1, 0.1], [0.5, 1.5, 0.3]]).log_softmax(dim=1)
    uniform = torch.full((2, 3), 1 / 3)
    assert losses.kl_div_loss(log_p, uniform).item() == near(0.2160371)


@pytest.mark.case("runtime", 57)
def test_smooth_l1_poisson_and_triplet_losses():
    prediction, target = torch.tensor([1.0, 5.0]), torch.tensor([1.5, 2.0])
    assert losses.smooth_l1_loss(prediction, target, 1).item() == near(1.3125)
    with pytest.raises(ValueError, match="beta"):
        losses.smooth_l1_loss(prediction, target, -1)
    counts = torch.tensor([1.0, 2.0, 3.0])
    assert losses.poisson_nll_loss(counts, counts).item() == near(5.3976250)
    anchor, positive, negative = (
        torch.tensor([values]) for values in ([1.0, 0.0], [0.9, 0.1], [0.0, 1.0])
    )
    triplet = losses.triplet_margin_loss(anchor, positive, negative, margin=2.0)
    assert triplet.item() == pytest.approx(0.7272, abs=1e-4)


def with_gradients(*gradients: list[float]) -> list[nn.Parameter]:
    made = []
    for values in gradients:
        made.append(nn.Parameter(torch.zeros(len(values))))
        made[-1].grad = torch.tensor(values)
    return made


@pytest.mark.case("runtime", 58)
def test_clipping_returns_what_it_was_before():
    first, second = with_gradients([3.0], [4.0])
    assert float(clip_grad_norm([first, second], 1)) == near(5)
    assert [first.grad.item(), second.grad.item()] == near_all(0.6, 0.8)
    (both,) = with_gradients([10.0, -5.0])
    assert float(clip_grad_value([both], 2)) == 10
    assert both.grad.tolist() == [2, -2]


@pytest.mark.case("runtime", 59)
def test_initial_values_fill_their_ranges():
    torch.manual_seed(0)
    shape = (300, 300)
    for values, bound in [
        (kaiming_uniform(shape, 4, 0), 1.2247449),
        (kaiming_uniform(shape, 4, math.sqrt(5)), 0.5),
        (xavier_uniform(shape, 3, 4), 0.9258201),
        (uniform_bias(16, shape), 0.25),
    ]:
        assert values.dtype == torch.float32
        assert values.shape == shape
        assert 0.999 * bound < values.abs().max() <= bound + 1e-6
    rows = orthogonal((4, 6), 1.0)
    assert torch.allclose(rows @ rows.T, torch.eye(4), atol=1e-5)
    bell = trunc_normal(shape, 3, 0.5, -2, 2)
    assert bell.min() >= 2
    assert bell.max() <= 4
    assert bell.mean().item() == pytest.approx(3, abs=0.01)
    # Clamping would pile up 2.3 % of all values at either end.
    assert (bell == 2).float().mean() < 0.001


@pytest.mark.case("runtime", 60)
def test_grad_scaler_skips_infinities_backs_off_and_grows():
    (weight,) = with_gradients([1.0])
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = GradScaler()
    assert scaler.scale_factor() == 65536
    scaler.scale(weight.sum()).backward()
    weight.grad.fill_(math.inf)
    assert scaler.step(optimizer) is False
    assert weight.tolist() == [0]
    scaler.update()
    assert scaler.scale_factor() == 32768

    growing = GradScaler()
    for updates in range(2000):
        assert growing.scale_factor() == 65536, updates
        optimizer.zero_grad()
        growing.scale(weight.sum()).backward()
        assert growing.step(optimizer) is True
        growing.update()
    assert growing.scale_factor() == 2 * 65536

    optimizer.zero_grad()
    growing.scale(3 * weight.sum()).backward()
    with pytest.raises(RuntimeError, match="unscale_"):
        clip_grad_norm([weight], 1.0)
    growing.unscale_(optimizer)
    assert float(clip_grad_norm([weight], 1.0)) == near(3)


@pytest.mark.case("runtime", 61)
def test_a_weight_decay_in_the_place_of_the_betas_is_refused():
    with pytest.raises((ValueError, TypeError), match="weight_decay"):
        AdamW([nn.Parameter(torch.zeros(1))], 1e-3, 0.01)


@pytest.mark.case("runtime", 61)
def test_gaussian_blur_reaches_three_sigma():
    def response(sigma):
        image = torch.zeros(1, 1, 31, 31)
        image[0, 0, 15, 15] = 1
        return gaussian_blur_2d(image, sigma)[0, 0]

    touched = (response(1.5) > 0).nonzero()
    assert touched.min(dim=0).values.tolist() == [10, 10]
    assert touched.max(dim=0).values.tolist() == [20, 20]  # 11 in all
    assert math.sqrt(response(1.0)[15, 15].item()) == near(0.3990503)


@pytest.mark.case("runtime", 71)
def test_random_numbers_repeat_and_refuse_empty_ranges():
    assert Rng.seed(42).f64() == 0.6394267984578837
    assert Rng.seed(42).normal(0, 1) == pytest.approx(1.4107277054, abs=1e-10)
    first = Rng.seed(7)
    first.f64()
    second = first.clone()
    assert [first.f64() for _ in range(5)] == [second.f64() for _ in range(5)]
    with pytest.raises(ValueError, match="0"):
        first.usize(0)
    with pytest.raises(ValueError, match="5"):
        first.range(5, 5)


@pytest.mark.case("runtime", 73)
def test_a_failing_task_holds_up_no_other_and_is_raised_at_the_end():
    done: list[int] = []
    begin = threading.Event()
    worker = CpuWorker()

    def task(number):
        begin.wait(30)
        if number == 2:
            raise OSError("disk full")
        done.append(number)

    for number in range(1, 6):
        worker.submit(lambda number=number: task(number))
        assert not worker.is_idle
    begin.set()
    with pytest.raises(OSError, match="disk full"):
        worker.finish()
    assert done == [1, 3, 4, 5]
    assert worker.is_idle


@pytest.mark.case("runtime", 76)
@pytest.mark.parametrize(
    "device",
    [
        pytest.param(
            "cpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="the host has a GPU"),
        ),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_setup_moves_a_model_to_the_first_usable_device_and_trains_there(device):
    model = nn.Linear(3, 2)
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = []

    def optimizer(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.1))
        return made[0]

    Trainer.setup(model, None, optimizer)
    assert model.training
    assert {p.device.type for p in model.parameters()} == {device}
    held = [p for group in made[0].param_groups for p in group["params"]]
    assert [id(p) for p in held] == [id(p) for p in model.parameters()]
    for name, value in model.state_dict().items():
        assert torch.equal(value.cpu(), before[name])


@pytest.mark.case("runtime", 77)
@pytest.mark.skipif(torch.cuda.is_available(), reason="about a host without CUDA")
def test_a_host_without_cuda_says_so_and_trains():
    with pytest.raises(RuntimeError, match="CUDA"):
        CudaGraph()
    for peak in (cuda_peak_active_bytes, cuda_peak_reserved_bytes):
        with pytest.raises(RuntimeError, match="CUDA"):
            peak()
    cuda_empty_cache()

    graph = FlowBuilder.from_(nn.Linear(3, 2)).build()
    snapshot = graph.snapshot_cpu()
    for (_, copy), weight in zip(snapshot.params, graph.parameters(), strict=True):
        assert torch.equal(copy, weight)
    saved = []
    with CpuWorker() as worker:
        worker.submit(lambda: saved.append(snapshot))
    assert saved == [snapshot]
    data = [(torch.randn(3), torch.randn(2)) for _ in range(10)]
    handle = (
        Trainer.builder(
            lambda device: nn.Linear(3, 2, device=device),
            lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        )
        .dataset(data)
        .batch_size(3)
        .num_epochs(2)
        .run()
    )
    state = handle.join()
    assert [tuple(tensor.shape) for tensor in state.params] == [(2, 3), (2,)]
    assert {tensor.device.type for tensor in state.params} == {"cpu"}
