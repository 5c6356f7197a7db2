"""The modes that a program gives to the modules of its model, kept through a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Trainer
from flodl.nn.modes import evaluating
from flodl.train import Callback, RunDirectory, TrainerBuilder


class Frozen(nn.Module):
    """A head behind a part that its program keeps in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 1)
        self.back.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.back(x))


def points() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, 4, generator=generator) + 3
    return x, x.sum(1, keepdim=True)


def squared(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], 0.01)


def training(model: Any) -> TrainerBuilder:
    builder = Trainer.builder(model, sgd, squared).dataset(points()).batch_size(4)
    return builder.num_epochs(2).device("cpu").progress(False)


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


KEPT = {"": True, "back": False, "back.0": False, "back.1": False, "head": True}


@pytest.mark.parametrize("engine", ["eager", "auto"])
@pytest.mark.parametrize("made", ["model", "function"])
def test_a_training_keeps_frozen_parts_in_eval_mode(engine: str, made: str) -> None:
    model = Frozen()
    seen: list[dict[str, bool]] = []

    def evaluation(model: nn.Module) -> dict[str, float]:
        seen.append(modes(model))
        model.train()
        return {"one": 1.0}

    builder = training(model if made == "model" else lambda _: model).engine(engine)
    trained = builder.ema(0.9).eval_fn(evaluation).run()
    assert modes(trained.model) == KEPT
    assert not any(mode for one in seen for mode in one.values())
    norm: Any = model.back[0]
    assert norm.running_mean.tolist() == [0, 0, 0, 0]
    assert norm.num_batches_tracked == 0


def test_a_model_that_is_in_eval_mode_as_a_whole_is_switched_to_training_mode() -> None:
    model = Frozen().eval()
    assert all(modes(training(model).run().model).values())
    model.eval()
    assert all(modes(Trainer.setup(model, None, sgd, device="cpu").model).values())


def test_setup_keeps_the_modes_of_parts() -> None:
    setup = Trainer.setup(Frozen(), None, sgd, device="cpu")
    assert modes(setup.model) == KEPT


def test_a_graph_and_a_compiled_model_keep_the_modes_of_their_parts() -> None:
    graph = FlowBuilder.from_(nn.BatchNorm1d(4)).through(nn.Linear(4, 1)).build()
    norm = next(module for module in graph.modules() if isinstance(module, nn.BatchNorm1d))
    norm.eval()
    assert modes(training(graph).eval_fn(lambda _: {}).run().model) == modes(graph)
    assert not norm.training
    assert graph.training

    compiled = torch.compile(Frozen(), backend="eager")
    training(compiled).eval_fn(lambda _: {}).run()
    assert modes(compiled._orig_mod) == KEPT  # type: ignore[attr-defined]


def test_a_resumed_training_has_the_modes_of_the_checkpoint(tmp_path: Path) -> None:
    def frozen_later(epoch: int, worker: Any) -> None:
        if epoch == 0:
            worker.model.head.eval()

    first = training(Frozen()).run_dir(RunDirectory.create(tmp_path / "first"))
    first.num_epochs(1).epoch_fn(frozen_later).eval_fn(lambda _: {}).run()
    (last,) = (tmp_path / "first").rglob("last.fdl")
    thawed = Frozen().train()
    training(thawed).resume(last).run()
    assert modes(thawed) == KEPT | {"head": False}


class Turns(Callback):
    """Freezes and releases the head in turns, and ends after some steps."""

    def __init__(self, cut: int | None = None) -> None:
        self.cut = cut

    def on_epoch_start(self, run: Any) -> None:
        head = run.model.head
        head.requires_grad_(not head.weight.requires_grad).train(not head.training)

    def on_step_end(self, run: Any) -> None:
        if run.global_step == self.cut:
            raise KeyboardInterrupt


def test_modes_that_a_hook_changes_again_in_an_epoch_that_continues_are_those_before(
    tmp_path: Path,
) -> None:
    class Both(Frozen):
        def __init__(self) -> None:
            super().__init__()
            self.back.requires_grad_()

    def taking_turns(cut: int | None = None) -> TrainerBuilder:
        return training(lambda _: Both()).num_epochs(4).callbacks(Turns(cut))

    whole, run = taking_turns().run(), RunDirectory.create(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        taking_turns(13).checkpoint_steps(12).run_dir(run).run()
    resumed = taking_turns().resume(run.path).run()
    ours, theirs = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert modes(resumed.model) == modes(whole.model)


def test_an_error_in_the_evaluation_leaves_the_modes_as_they_were() -> None:
    model = Frozen()

    def broken(_: nn.Module) -> dict[str, float]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        training(model).eval_fn(broken).run()
    assert modes(model) == KEPT


def test_a_module_that_does_more_when_its_mode_changes_is_told_of_the_way_back() -> None:
    class Merging(nn.Module):
        """Adds its small weights to the large ones while it evaluates, as LoRA layers do."""

        def __init__(self) -> None:
            super().__init__()
            self.merged = False

        def train(self, mode: bool = True) -> Self:
            super().train(mode)
            self.merged = not mode
            return self

    class Keeping(nn.Module):
        """Keeps a part in eval mode by its own ``train``."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.train()

        def train(self, mode: bool = True) -> Self:
            super().train(mode)
            self.norm.eval()
            return self

    model = nn.Sequential(Merging(), Keeping(), Merging())
    model[2].eval()
    before = modes(model)
    with evaluating(model):
        assert [model[0].merged, model[2].merged] == [True, True]
        assert not any(modes(model).values())
    assert [model[0].merged, model[2].merged] == [False, True]
    assert modes(model) == before


def test_a_norm_in_eval_mode_is_no_reason_to_warn_of_a_single_sample(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(model: nn.Module) -> str:
        options = {"join_remainder": False}
        training(model).batch_size(19).num_epochs(1).loader_options(**options).run()
        return capsys.readouterr().err

    assert "normalises over the batch" not in told(Frozen())
