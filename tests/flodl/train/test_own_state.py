"""State of modules and of objects that a program registers is saved and restored exactly."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import RunDirectory, Trainer
from flodl.checkpoint import load_checkpoint_file
from flodl.checkpoint.extra_state import extra_modules
from flodl.errors import CheckpointError
from flodl.monitor import Monitor
from flodl.train import Callback, TrainerBuilder

from .programs import line, network, sgd, squared_error


class PowerError(Exception):
    """The machine is gone."""


class CutAfter(Callback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, run: Any) -> None:
        if run.global_step == self._step:
            raise PowerError


class Noisy(nn.Module):
    """A layer whose numbers depend on state beside its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.calls: dict[str, Any] = {"count": 0, "seen": torch.zeros(1)}

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls["count"] += 1
            self.calls["seen"] = self.calls["seen"] / 2 + x.detach().mean()
        shift: Tensor = self.layer(x) + self.calls["count"] / 100 + self.calls["seen"]
        return shift

    def get_extra_state(self) -> Any:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.calls = state


class Queue:
    """The newest losses, which decide the next ones."""

    def __init__(self) -> None:
        self.values: deque[float] = deque([1.0], maxlen=3)

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    def load_state_dict(self, state: Any) -> None:
        self.values = deque(state["values"], maxlen=3)


class Program:
    """A generator and a critic with an optimizer each, a queue, and an averaged model."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.generator = nn.Sequential(Noisy(), nn.Tanh(), nn.Linear(1, 1))
        self.critic = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.second = torch.optim.Adam(self.critic.parameters(), lr=0.01)
        self.average = torch.optim.swa_utils.AveragedModel(self.critic)
        self.queue = Queue()

    def step(self, model: nn.Module, batch: Any) -> Tensor:
        fake = model(batch["x"])
        self.second.zero_grad()
        gap = self.critic(fake.detach()).mean() - self.critic(batch["y"]).mean()
        gap.square().backward()
        self.second.step()
        self.average.update_parameters(self.critic)
        loss = (fake - batch["y"]).square().mean() - 0.1 * self.critic(fake).mean()
        self.queue.values.append(float(loss.detach()))
        return loss * min(1.0, abs(sum(self.queue.values)) / 10)

    def training(self, folder: Path | RunDirectory, **own: Any) -> TrainerBuilder:
        run = folder if isinstance(folder, RunDirectory) else RunDirectory.create(folder)
        builder = (
            Trainer.builder(self.generator, sgd, self.step)
            .dataset(line(12))
            .batch_size(3)
            .num_epochs(3)
            .checkpoint_steps(2)
            .device("cpu")
            .engine("eager")
            .monitor(Monitor(3, terminal=False))
            .run_dir(run)
        )
        states = own or {
            "critic": self.critic,
            "second": self.second,
            "average": self.average,
            "queue": self.queue,
        }
        for name, value in states.items():
            builder.state(name, value)
        return builder

    def everything(self) -> str:
        parts = (self.generator, self.critic, self.second, self.average, self.queue)
        return repr([part.state_dict() for part in parts])


def checkpoint_of(program: Program, folder: Path, cut: int = 7, **own: Any) -> Path:
    with pytest.raises(PowerError):
        program.training(folder, **own).callbacks(CutAfter(cut)).run()
    (run,) = folder.iterdir()
    return run / "last.fdl"


@pytest.mark.parametrize("cut", [5, 9])
def test_a_gan_with_two_optimizers_continues_to_the_bit(cut: int, tmp_path: Path) -> None:
    torch.set_printoptions(precision=10, profile="full")
    whole = Program()
    whole.training(tmp_path / "whole").run()
    last = checkpoint_of(Program(), tmp_path / "cut", cut)
    resumed = Program()
    resumed.training(tmp_path / "resumed").resume(last).run()
    torch.set_printoptions(profile="default")
    assert resumed.everything() == whole.everything()


def test_what_is_not_registered_is_lost(tmp_path: Path) -> None:
    whole = Program()
    whole.training(tmp_path / "whole", queue=Queue()).run()
    last = checkpoint_of(Program(), tmp_path / "cut", queue=Queue())
    resumed = Program()
    resumed.training(tmp_path / "resumed", queue=Queue()).resume(last).run()
    assert resumed.everything() != whole.everything()


def test_a_function_returns_an_object_that_the_model_factory_makes(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = network()
            self.queue = Queue()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)
            return out

    def trained(folder: Path) -> TrainerBuilder:
        def step(model: Any, batch: Any) -> Tensor:
            loss = squared_error(model, batch) * min(1.0, model.queue.values[0])
            model.queue.values.append(float(loss.detach()))
            return loss

        builder = Trainer.builder(lambda device: Own().to(device), sgd, step).dataset(line(12))
        builder.batch_size(3).num_epochs(3).checkpoint_steps(2).device("cpu").engine("eager")
        return builder.run_dir(RunDirectory.create(folder)).state("q", lambda model: model.queue)

    whole = trained(tmp_path / "whole").run().model
    with pytest.raises(PowerError):
        trained(tmp_path / "cut").callbacks(CutAfter(7)).run()
    (run,) = (tmp_path / "cut").iterdir()
    resumed = trained(tmp_path / "resumed").resume(run / "last.fdl").run().model
    assert resumed.queue.values == whole.queue.values
    assert all(
        torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True)
    )


def test_another_set_of_names_is_refused(tmp_path: Path) -> None:
    last = checkpoint_of(Program(), tmp_path / "a", queue=Queue())
    more = Program().training(tmp_path / "b", queue=Queue(), extra=Queue()).resume(last)
    with pytest.raises(CheckpointError, match=r"last.fdl lacks the state 'extra', which this prog"):
        more.run()
    less = Program().training(tmp_path / "c", other=Queue()).resume(last)
    with pytest.raises(CheckpointError, match=r"lacks the state 'other'"):
        less.run()
    none = Program().training(tmp_path / "d", queue=Queue())
    none._settings["states"] = {}
    with pytest.raises(CheckpointError, match=r"has the state 'queue', and this program registers"):
        none.resume(last).run()


def test_bad_registrations_are_refused_at_the_call() -> None:
    builder = Trainer.builder(network, sgd, squared_error).state("queue", Queue())
    with pytest.raises(ValueError, match=r"state\('queue', …\) is called twice"):
        builder.state("queue", Queue())
    with pytest.raises(ValueError, match=r"state\('x', …\): a dict has no method state_dict, load"):
        builder.state("x", {})
    with pytest.raises(ValueError, match=r"state\('', …\): the name must be a text"):
        builder.state("", Queue())


class Odd(Queue):
    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}


def never(model: nn.Module, batch: Any) -> Tensor:  # noqa: ARG001
    raise AssertionError("a step was taken")


def test_what_cannot_be_saved_is_told_before_the_first_step(tmp_path: Path) -> None:
    builder = Trainer.builder(network, sgd, never).dataset(line()).batch_size(3).num_epochs(1)
    builder.device("cpu").run_dir(RunDirectory.create(tmp_path / "a")).state("odd", Odd())
    with pytest.raises(ValueError, match=r"registered/odd/values is a deque, which a checkpoint"):
        builder.run()
    with pytest.raises(
        ValueError, match=r"state\('f'\): the function returned a int, which has no"
    ):
        builder.state("f", lambda _: 3).run()

    class Bad(Noisy):
        def get_extra_state(self) -> Any:
            return {"seen": [object()]}

    builder = Trainer.builder(lambda _: nn.Sequential(Bad()), sgd, never).dataset(line())
    builder.batch_size(3).num_epochs(1).device("cpu").run_dir(RunDirectory.create(tmp_path / "b"))
    with pytest.raises(
        ValueError, match=r"get_extra_state of the module 0: what it returns/seen/0 "
    ):
        builder.run()


class Wild(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["set"] = {1}
        return super().step(closure)


def test_an_optimizer_with_odd_state_is_told_after_its_first_step(tmp_path: Path) -> None:
    steps: list[int] = []

    def counted(model: nn.Module, batch: Any) -> Tensor:
        steps.append(1)
        return squared_error(model, batch)

    builder = Trainer.builder(network, lambda p: Wild(p, lr=0.1), counted).dataset(line(12))
    builder.batch_size(3).num_epochs(2).device("cpu").engine("eager")
    with pytest.raises(ValueError, match=r"optimizer/state/0/set is a set, which a checkpoint"):
        builder.run_dir(RunDirectory.create(tmp_path)).run()
    assert len(steps) == 1


def test_best_and_final_models_keep_the_extra_state(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    program = Program()
    builder = program.training(run).keep_best("loss").ema(0.5)
    model = builder.run().model
    for file in (run.best_checkpoint, run.model_checkpoint):
        other = Program().generator
        load_checkpoint_file(file, other.named_parameters(), [], extra_modules=extra_modules(other))
        assert other[0].calls["count"] in (4, 8, 12)
    assert other[0].calls["count"] == model[0].calls["count"] == 12
    assert torch.equal(other[0].calls["seen"], model[0].calls["seen"])


def test_a_guard_takes_the_own_state_back(tmp_path: Path) -> None:
    program = Program()
    plain, bad = program.step, {6}
    calls: list[int] = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        calls.append(len(program.queue.values))
        loss = plain(model, batch)
        if len(calls) in bad:
            program.queue.values.append(1e9)
            return loss * float("inf")
        return loss

    program.step = step  # type: ignore[method-assign]
    program.training(tmp_path).guards().run()
    assert len(calls) > 12
    assert max(program.queue.values) < 1e9
    assert program.generator[0].calls["count"] == 11
