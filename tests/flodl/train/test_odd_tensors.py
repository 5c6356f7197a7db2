"""Trainings whose models hold tensors of unusual types and layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import RunDirectory, Trainer
from flodl.monitor import Monitor
from flodl.train import TrainerBuilder
from tests.rows import sampled

from .programs import line

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("ComplexHalf", "Sparse ", "torch.quantize_per_tensor", ".*nested tensors")
]


def dense() -> Tensor:
    tensor = torch.zeros(4, 4)
    tensor[0, 1], tensor[3, 2] = 1.5, 2
    return tensor


SAVED: dict[str, Callable[[], Tensor]] = {
    "coo": lambda: dense().to_sparse(),
    "csr": lambda: dense().to_sparse_csr(),
    "bsc": lambda: dense().to_sparse_bsc((2, 2)),
    "complex128": lambda: torch.full((2,), 1 + 2j, dtype=torch.complex128),
    "complex32": lambda: torch.full((2,), 1 + 2j, dtype=torch.complex32),
    "float8": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "float4": lambda: torch.arange(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "bits8": lambda: torch.arange(2, dtype=torch.uint8).view(torch.bits8),
    "uint16": lambda: torch.ones(2, dtype=torch.uint16),
    "scalar": lambda: torch.tensor(1.0),
    "empty": lambda: torch.empty(0, 3),
    "across": lambda: torch.arange(6.0).reshape(2, 3).t(),
}
REFUSED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "int4": (lambda: torch.empty(2, dtype=torch.int4), "is torch.int4, and torch cannot copy"),
    "meta": (lambda: torch.empty(2, device="meta"), "of the model: device 'meta'"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "is a nested tensor",
    ),
    "mkldnn": (lambda: torch.ones(2, 2).to_mkldnn(), "is laid out for MKL-DNN"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
        "is quantized",
    ),
}


class Odd(nn.Module):
    def __init__(self, make: Callable[[], Tensor], *, parameter: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        if parameter:
            self.odd = nn.Parameter(make(), requires_grad=False)
        else:
            self.register_buffer("odd", make())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


STEPS: list[int] = []


def step(model: nn.Module, batch: Any) -> Tensor:
    STEPS.append(1)
    loss: Tensor = (model(batch["x"]) - batch["y"]).square().mean()
    return loss


def training(make: Callable[[], Tensor], folder: Path, *, parameter: bool) -> TrainerBuilder:
    STEPS.clear()
    return (
        Trainer.builder(
            lambda _: Odd(make, parameter=parameter),
            lambda p: torch.optim.SGD([one for one in p if one.requires_grad], lr=0.1),
            step,
        )
        .dataset(line(12))
        .batch_size(4)
        .num_epochs(2)
        .device("cpu")
        .engine("eager")
        .monitor(Monitor(2, terminal=False))
        .run_dir(RunDirectory.create(folder))
    )


def same(one: Tensor, other: Tensor) -> bool:
    if one.layout is not torch.strided:
        return torch.equal(one.to_dense(), other.to_dense())
    return (
        one.dtype is other.dtype and one.tolist() == other.tolist()
        if one.dtype in READABLE
        else (torch.equal(one.view(torch.uint8), other.view(torch.uint8)))
    )


READABLE = {torch.float32, torch.complex128, torch.uint16}


@pytest.mark.parametrize(("kind", "parameter"), sampled(list(SAVED), (False, True)))
def test_every_kind_is_kept_by_every_observer_and_resumed(
    kind: str, parameter: bool, tmp_path: Path
) -> None:
    made = training(SAVED[kind], tmp_path / "a", parameter=parameter)
    made.ema(0.9).guards().keep_best("loss").histograms(every=2).run()
    (run,) = (tmp_path / "a").iterdir()
    assert {one.name for one in run.glob("*.fdl")} == {"last.fdl", "best.fdl", "model.fdl"}
    empty = training(lambda: SAVED[kind]() * 0, tmp_path / "b", parameter=parameter)
    if kind in ("float8", "float4", "bits8", "csr", "bsc"):  # torch multiplies none of them
        empty = training(SAVED[kind], tmp_path / "c", parameter=parameter)
    resumed = empty.ema(0.9).num_epochs(3).resume(run / "last.fdl").run()
    assert same(resumed.model.odd.detach(), SAVED[kind]())


@pytest.mark.parametrize("parameter", [False, True], ids=["buffer", "parameter"])
@pytest.mark.parametrize("kind", list(REFUSED))
def test_what_cannot_be_saved_is_refused_before_the_first_step(
    kind: str, parameter: bool, tmp_path: Path
) -> None:
    make, told = REFUSED[kind]
    with pytest.raises(ValueError, match=rf"^odd {told}"):
        training(make, tmp_path, parameter=parameter).run()
    assert not STEPS


def test_a_trained_parameter_that_has_no_average_is_refused(tmp_path: Path) -> None:
    def made(_: object) -> nn.Module:
        model = Odd(SAVED["coo"], parameter=True)
        model.odd.requires_grad_()
        return model

    builder = training(SAVED["coo"], tmp_path, parameter=True).ema(0.5)
    builder._settings["model_factory"] = made
    with pytest.raises(ValueError, match=r"ema: the parameter odd is torch.float32 \(torch.sparse"):
        builder.run()


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
def test_the_optimizer_of_complex128_weights_is_resumed_to_the_bit(
    optimizer: Any, tmp_path: Path
) -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 1, dtype=torch.complex128))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex128) @ self.weight).abs().float()

    def made(folder: str) -> TrainerBuilder:
        builder = Trainer.builder(lambda _: Complex(), lambda p: optimizer(p, lr=0.1), step)
        builder.dataset(line(12)).batch_size(4).device("cpu").engine("eager")
        return builder.run_dir(RunDirectory.create(tmp_path / folder))

    whole = made("whole").num_epochs(3).run().model
    made("a").num_epochs(1).run()
    (run,) = (tmp_path / "a").iterdir()
    resumed = made("b").num_epochs(3).resume(run / "last.fdl").run().model
    assert torch.equal(resumed.weight, whole.weight)
