"""What is different on a GPU: values stay there until the epoch ends."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.utils.data
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch
from flodl.errors import DivergedError
from flodl.train import record_scalar

from .programs import squared_error, training

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_step_waits_for_the_device() -> None:
    steps: list[int] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        assert batch["x"].is_cuda
        steps.append(0)
        loss = squared_error(model, batch)
        record_scalar("loss_again", loss)
        torch.cuda.set_sync_debug_mode("error")
        return loss

    try:
        # Reading the losses at the end of the epoch is the first thing that waits.
        with pytest.raises(RuntimeError, match="synchroniz"):
            training(train_fn, epochs=1).device("cuda").run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(steps) == 3


def test_losses_and_scalars_of_a_gpu_training_are_averaged() -> None:
    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        loss = squared_error(model, batch)
        record_scalar("loss_again", loss)
        return loss

    for metrics in training(train_fn).device("cuda").run().poll_metrics():
        assert metrics.scalars["loss_again"] == pytest.approx(metrics.avg_loss, rel=1e-5)


def test_a_bad_loss_on_the_gpu_is_named_by_its_first_step() -> None:
    calls: list[int] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        calls.append(0)
        loss = squared_error(model, batch)
        return loss * float("nan") if len(calls) == 5 else loss

    with pytest.raises(DivergedError, match="epoch 1, step 1") as failure:
        training(train_fn).device("cuda").run()
    assert (failure.value.epoch, failure.value.step) == (1, 1)


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("engine", ["eager", "cuda_graph"])
def test_a_batch_of_a_loader_of_torch_arrives_on_the_device_as_it_is(
    engine: str, pinned: bool
) -> None:
    def step(model: nn.Module, batch: Pair) -> Tensor:
        assert isinstance(batch, Pair)
        assert batch.x.is_cuda
        return nn.functional.mse_loss(model(batch.x), batch.y)

    samples = [Pair(torch.full([4], i / 10), torch.full([1], i / 10)) for i in range(24)]
    loader = torch.utils.data.DataLoader(samples, batch_size=4, pin_memory=pinned)  # type: ignore[arg-type,var-annotated]
    builder = Trainer.builder(nn.Linear(4, 1), lambda p: torch.optim.Adam(p, 0.1), step)
    builder.dataset(loader).num_epochs(2).device("cuda").engine(engine).progress(False).run()
