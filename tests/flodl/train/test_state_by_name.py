"""The state of an optimizer follows the names of parameters, not their positions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import RunDirectory, Trainer
from flodl.checkpoint import load_optimizer_state, save_optimizer_state
from flodl.errors import CheckpointError
from flodl.nn.schedule import StepDecay
from flodl.train import Callback, TrainerBuilder

from .programs import line


class Layers(nn.Module):
    """Three layers, made in any order."""

    def __init__(self, *order: str, tied: bool = False) -> None:
        super().__init__()
        sizes = {"a": (1, 4), "b": (4, 4), "c": (4, 4), "d": (4, 1)}
        for name in order:
            self.add_module(name, nn.Linear(*sizes[name]))
        if tied:
            self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.d(self.c(self.b(self.a(x)).tanh()).tanh())
        return out


def step(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = (model(batch["x"]) - batch["y"]).square().mean()
    return loss


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 0.01)


def training(
    model: Callable[[], nn.Module], optimizer: Any = adam, epochs: int = 4
) -> TrainerBuilder:
    return (
        Trainer.builder(lambda _: model(), optimizer, step)
        .dataset(line(20))
        .batch_size(4)
        .num_epochs(epochs)
        .device("cpu")
        .engine("eager")
        .progress(False)
    )


def values(model: nn.Module) -> dict[str, list[float]]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: one.flatten().tolist() for name, one in sorted(named)}


def saved_after_two(builder: TrainerBuilder, folder: Path) -> Path:
    run = RunDirectory.create(folder)
    builder.num_epochs(2).run_dir(run).run()
    return run.last_checkpoint


def stopped_after(steps: int, builder: TrainerBuilder, folder: Path) -> Path:
    class Stop(Callback):
        def on_step_end(self, run: Any) -> None:
            if run.global_step == steps:
                raise KeyboardInterrupt

    run = RunDirectory.create(folder)
    with pytest.raises(KeyboardInterrupt):
        builder.run_dir(run).checkpoint_steps(1).callbacks(Stop()).run()
    return run.last_checkpoint


@pytest.mark.parametrize("tied", [False, True], ids=["own weights", "shared weights"])
def test_another_order_of_layers_resumes_exactly(tied: bool, tmp_path: Path) -> None:
    def first() -> nn.Module:
        return Layers("a", "b", "c", "d", tied=tied)

    def other() -> nn.Module:
        return Layers("c", "b", "d", "a", tied=tied)

    whole = training(first).run().model
    source = saved_after_two(training(first), tmp_path)
    resumed = training(other).resume(source).run().model
    assert values(resumed) == values(whole)


def grouped(order: str) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Groups in some order, each with its own rate."""
    rates = {"a": 0.01, "b": 0.02, "c": 0.03, "d": 0.04}

    def make(model: nn.Module) -> torch.optim.Optimizer:
        groups = [
            {"params": list(model.get_submodule(name).parameters()), "lr": rates[name]}
            for name in order
        ]
        return torch.optim.AdamW(groups)

    return make


def of_model(make: Callable[[nn.Module], torch.optim.Optimizer]) -> Callable[[], TrainerBuilder]:
    def build() -> TrainerBuilder:
        torch.manual_seed(0)
        model = Layers("a", "b", "c", "d")
        return (
            Trainer.builder(model, make(model), step)
            .dataset(line(20))
            .batch_size(4)
            .num_epochs(4)
            .device("cpu")
            .engine("eager")
            .progress(False)
        )

    return build


def test_another_order_of_groups_resumes_exactly(tmp_path: Path) -> None:
    whole = of_model(grouped("abcd"))().run().model
    source = saved_after_two(of_model(grouped("abcd"))(), tmp_path)
    resumed = of_model(grouped("dbca"))().resume(source).run().model
    assert values(resumed) == values(whole)


def test_the_order_inside_a_group_does_not_matter(tmp_path: Path) -> None:
    def reversed_adam(model: nn.Module) -> torch.optim.Optimizer:
        return adam([*model.parameters()][::-1])

    whole = of_model(lambda model: adam(model.parameters()))().run().model
    source = saved_after_two(of_model(lambda model: adam(model.parameters()))(), tmp_path)
    resumed = of_model(reversed_adam)().resume(source).run().model
    assert values(resumed) == values(whole)


def test_parameters_that_only_one_side_trains_are_named(tmp_path: Path) -> None:
    source = saved_after_two(of_model(grouped("abc"))(), tmp_path)
    with pytest.raises(CheckpointError, match=r"only this program has d\.bias, d\.weight; create"):
        of_model(grouped("abcd"))().resume(source).run()
    with pytest.raises(CheckpointError, match=r"only this program has d\.bias, d\.weight"):
        of_model(grouped("dab"))().resume(source).run()


def test_parameters_that_are_grouped_otherwise_are_named(tmp_path: Path) -> None:
    def together(model: nn.Module) -> torch.optim.Optimizer:
        return adam([*model.a.parameters(), *model.b.parameters()])

    source = saved_after_two(of_model(grouped("ab"))(), tmp_path)
    told = r"a group of the file has a\.bias, a\.weight, and one of this program a\.bias, a"
    with pytest.raises(CheckpointError, match=told):
        of_model(together)().resume(source).run()


# --- Groups that a program adds while it trains -------------------------------------------------


def unfreezing(model: nn.Module) -> torch.optim.Optimizer:
    model.requires_grad_(False).d.requires_grad_()
    return adam(model.d.parameters())


def unfreeze(layer: nn.Module, optimizer: torch.optim.Optimizer, rate: float) -> None:
    optimizer.add_param_group({"params": list(layer.requires_grad_().parameters()), "lr": rate})


def add_at_epoch(epoch: int, worker: Any) -> None:
    if epoch in (1, 2):
        unfreeze(worker.model.get_submodule("xcb"[epoch]), worker.optimizer, 0.05 * epoch)


class AtStep(Callback):
    """Adds a group in the middle of the second epoch."""

    def on_step_end(self, run: Any) -> None:
        if run.global_step == 7:
            unfreeze(run.model.c, run.optimizer, 0.05)


class AtStart(Callback):
    """Adds a group as an epoch begins, and changes a weight and a rate."""

    def on_epoch_start(self, run: Any) -> None:
        if run.epoch in (1, 2):
            unfreeze(run.model.get_submodule("xcb"[run.epoch]), run.optimizer, 0.05 * run.epoch)
            run.optimizer.param_groups[0]["lr"] *= 0.5
            with torch.no_grad():
                run.model.a.weight.mul_(2)


WATCHING: dict[str, list[Callback]] = {"callback": [AtStep()], "start": [AtStart()]}


@pytest.mark.parametrize(
    ("where", "stop", "scheduled"),
    [
        ("start", 7, False),
        ("start", 8, True),
        ("start", 10, True),
        ("start", 13, True),
        ("start", 17, False),
        ("epoch_fn", 8, False),
        ("epoch_fn", 8, True),
        ("epoch_fn", 10, True),
        ("epoch_fn", 13, True),
        ("callback", 8, True),
        ("callback", 15, False),
    ],
)
def test_added_groups_are_part_of_the_state(
    where: str, stop: int, scheduled: bool, tmp_path: Path
) -> None:
    watching = WATCHING.get(where, [])

    def build() -> TrainerBuilder:
        builder = of_model(unfreezing)().callbacks(*watching)
        if scheduled:
            builder = builder.scheduler(lambda _: StepDecay(0.01, 3, 0.7))
        return builder.epoch_fn(add_at_epoch) if where == "epoch_fn" else builder

    whole = build().run().model
    resumed = build().resume(stopped_after(stop, build(), tmp_path)).run().model
    assert values(resumed) == values(whole)


def test_a_guard_goes_back_behind_an_added_group() -> None:
    seen: list[int] = []

    def failing_once(model: nn.Module, batch: Any) -> Tensor:
        seen.append(1)
        loss = step(model, batch)
        return loss * float("nan") if len(seen) == 9 else loss

    builder = of_model(unfreezing)().callbacks(AtStep())
    builder._settings["train_fn"] = failing_once
    builder.guards(every=100).run()
    assert len(seen) > 20


@pytest.mark.parametrize("epochs", [(0,), (1,), (1, 2)])
def test_a_schedule_that_an_epoch_sets_counts_after_a_resume_in_it(
    epochs: tuple[int, ...], tmp_path: Path
) -> None:
    def change(epoch: int, worker: Any) -> None:
        if epoch in epochs:
            worker.set_scheduler(StepDecay(0.05, 1, 0.3))
            worker.set_lr_scale(0.7)

    def build() -> TrainerBuilder:
        return of_model(grouped("abcd"))().num_epochs(epochs[-1] + 1).epoch_fn(change)

    whole = build().run().model
    source = stopped_after(5 * epochs[-1] + 3, build(), tmp_path)
    assert values(build().resume(source).run().model) == values(whole)


# --- Registered optimizers, and files of one optimizer -------------------------------------------


def test_a_registered_optimizer_follows_the_names(tmp_path: Path) -> None:
    def build(order: str) -> TrainerBuilder:
        builder = of_model(unfreezing)()

        def second(model: nn.Module) -> torch.optim.Optimizer:
            return adam([p for name in order for p in model.get_submodule(name).parameters()])

        made: list[torch.optim.Optimizer] = []

        def register(model: nn.Module) -> torch.optim.Optimizer:
            made.append(second(model))
            return made[-1]

        class Steps(Callback):
            def on_step_end(self, run: Any) -> None:
                for parameter in (*run.model.b.parameters(), *run.model.c.parameters()):
                    parameter.grad = parameter.detach() * 0.1 + run.global_step
                made[-1].step()

        return builder.state("second", register).callbacks(Steps())

    whole = build("bc").run().model
    source = saved_after_two(build("bc"), tmp_path)
    assert values(build("cb").resume(source).run().model) == values(whole)
    with pytest.raises(CheckpointError, match=r"state\('second'\) does not fit the AdamW"):
        build("b").resume(source).run()


def test_a_file_of_an_optimizer_with_names_of_torch_follows_them(tmp_path: Path) -> None:
    def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        model(torch.ones(2, 1)).sum().backward()
        optimizer.step()
        return optimizer

    first, other = Layers("a", "b", "c", "d"), Layers("c", "d", "a", "b")
    optimizer = trained(first, adam(first.named_parameters()))
    save_optimizer_state(optimizer, tmp_path / "one.fdl")
    loaded = adam(other.named_parameters())
    load_optimizer_state(loaded, tmp_path / "one.fdl")
    for name, parameter in first.named_parameters():
        moment = loaded.state[other.get_parameter(name)]["exp_avg"]
        assert torch.equal(moment, optimizer.state[parameter]["exp_avg"]), name
    assert loaded.param_groups[0]["param_names"] == [name for name, _ in other.named_parameters()]
