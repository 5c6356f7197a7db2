"""CUDA graphs: a replay is the step; without a device every entry says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl.nn.cuda_graph import (
    CaptureMode,
    CudaGraph,
    cuda_graph_capture,
    cuda_graph_pool_handle,
)

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without CUDA, wherever the test runs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_device")
@pytest.mark.case("runtime", 77)
def test_without_a_device_every_entry_raises_and_runs_nothing() -> None:
    calls: list[int] = []
    for entry in (
        CudaGraph,
        cuda_graph_pool_handle,
        lambda: cuda_graph_capture(3, None, lambda: calls.append(0)),
    ):
        with pytest.raises(RuntimeError, match="needs a CUDA device"):
            entry()
    assert calls == []


def test_wrong_arguments_are_named_before_anything_runs() -> None:
    calls: list[int] = []
    with pytest.raises(ValueError, match=r"warmup=-1"):
        cuda_graph_capture(-1, None, lambda: calls.append(0))
    with pytest.raises(ValueError, match="'lax'"):
        cuda_graph_capture(1, None, lambda: calls.append(0), mode="lax")
    assert calls == []


def test_modes_are_those_of_cuda() -> None:
    assert list(CaptureMode) == ["global", "thread_local", "relaxed"]


class Step:
    """A training step over fixed tensors."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4).to(device)
        self.x = torch.zeros(8, 4, device=device)
        self.loss = torch.zeros((), device=device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        loss: Tensor = (self.model(self.x) - self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())


def batches(device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 4, generator=generator).to(device) for _ in range(5)]


def losses(step: Step, go: object, device: str) -> list[float]:
    assert callable(go)
    seen = []
    for batch in batches(device):
        step.x.copy_(batch)
        go()
        seen.append(step.loss.item())
    return seen


def test_the_step_itself_learns_on_the_cpu() -> None:
    step = Step("cpu")
    seen = losses(step, step, "cpu") + losses(step, step, "cpu")
    assert len(seen) == 10
    assert all(later < earlier for earlier, later in zip(seen[:5], seen[5:], strict=True))


@pytest.mark.parametrize("mode", CaptureMode)
@pytest.mark.gpu
@needs_gpu[1]
def test_replaying_a_step_trains_as_calling_it_does(mode: CaptureMode) -> None:
    called, replayed = Step("cuda"), Step("cuda")
    for _ in range(3):
        called()
    graph = cuda_graph_capture(3, None, replayed, mode=mode)
    expected = losses(called, called, "cuda")
    assert losses(replayed, graph.replay, "cuda") == pytest.approx(expected, rel=1e-5)


@pytest.mark.gpu
@needs_gpu[1]
def test_two_graphs_share_a_pool_and_a_reset_graph_can_record_again() -> None:
    x = torch.ones(4, device="cuda")
    pool = cuda_graph_pool_handle()
    double = cuda_graph_capture(1, pool, lambda: x.mul_(2))
    third = cuda_graph_capture(0, double.pool, lambda: x.add_(1))
    double.replay()
    third.replay()
    assert x.tolist() == [5.0] * 4  # doubled by the warm-up, by the replay, and one added
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        double.capture_begin()
    double.reset()
    with pytest.raises(RuntimeError, match="no recording"):
        double.replay()


@pytest.mark.gpu
@needs_gpu[1]
def test_a_function_that_waits_for_the_device_is_refused_and_the_device_goes_on() -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError) as failure:
        cuda_graph_capture(0, None, lambda: x.sum().item())
    assert any("wait for the device" in note for note in failure.value.__notes__)
    torch.cuda.synchronize()
    assert x.sum().item() == 4.0


@pytest.mark.gpu
@needs_gpu[1]
def test_random_numbers_go_on_after_a_failed_capture() -> None:
    x = torch.ones(64, device="cuda")
    torch.cuda.manual_seed(3)
    expected = [torch.nn.functional.dropout(x, 0.5) for _ in range(2)]
    torch.cuda.manual_seed(3)
    first = torch.nn.functional.dropout(x, 0.5)
    with pytest.raises(RuntimeError):
        cuda_graph_capture(0, None, lambda: torch.nn.functional.dropout(x, 0.5).sum().item())
    second = torch.nn.functional.dropout(x, 0.5)
    assert torch.equal(first, expected[0])
    assert torch.equal(second, expected[1])
