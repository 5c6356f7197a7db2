"""Media of a training: histograms of weights and gradients, and a run directory that holds them."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from flodl import Callback, GradScaler, RunDirectory, Trainer

X, Y = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(64, 1)


def builder(engine: str = "eager", optimizer=torch.optim.SGD, **options):
    def model(_):
        torch.manual_seed(1)
        made = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        made[1].bias.requires_grad_(False)
        return made

    return (
        Trainer.builder(
            model,
            lambda parameters: optimizer(
                [one for one in parameters if one.requires_grad], lr=0.01, **options
            ),
            lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        )
        .dataset((X, Y))
        .batch_size(8)
        .num_epochs(2)
        .device("cpu")
        .engine(engine)
    )


def histograms(run: RunDirectory, name: str) -> list[dict[str, object]]:
    return json.loads((run.path / f"media/histogram/{name}.json").read_text())


@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_histograms_of_weights_and_gradients(tmp_path, engine):
    run = RunDirectory.create(tmp_path)
    seen = {}

    class First(Callback):
        def on_train_start(self, training):
            seen["weights"] = training.model[0].weight.detach().clone()

    trained = builder(engine).run_dir(run).callbacks(First()).histograms(every=5)
    handle = trained.max_grad_norm(1e-6).run()
    weights, gradients = (
        histograms(run, "weights/0.weight"),
        histograms(run, "gradients/0.weight"),
    )
    assert [one["step"] for one in weights] == [1, 5, 10, 15]
    assert [one["epoch"] for one in weights] == [1, 1, 2, 2]
    assert [sum(one["counts"]) for one in gradients] == [32] * 4
    first = seen["weights"]
    assert (weights[0]["low"], weights[0]["high"]) == (first.min().item(), first.max().item())
    assert max(abs(gradients[0]["low"]), gradients[0]["high"]) > 1e-4, "before they are clipped"
    names = {
        entry["name"] for entry in json.loads((run.path / "media/index.json").read_text())["media"]
    }
    parts = ["0.weight", "0.bias", "1.weight"]
    assert names == {f"{kind}/{part}" for kind in ("weights", "gradients") for part in parts}
    assert '"weights/0.weight"' in (run.path / "report.html").read_text()
    assert handle.model[0].weight.isfinite().all()


def test_gradients_of_a_scaled_loss_are_those_of_the_loss(tmp_path):
    plain, scaled = RunDirectory.create(tmp_path / "a"), RunDirectory.create(tmp_path / "b")
    builder().run_dir(plain).histograms(every=100).run()
    builder().run_dir(scaled).grad_scaler(GradScaler(init=1024.0)).histograms(every=100).run()
    one, other = (histograms(run, "gradients/0.bias")[0] for run in (plain, scaled))
    assert one["counts"] == other["counts"]
    assert one["high"] == pytest.approx(other["high"])


def test_an_optimizer_with_a_closure_shows_its_gradients(tmp_path):
    run = RunDirectory.create(tmp_path)
    builder(optimizer=torch.optim.LBFGS).run_dir(run).histograms(every=8).run()
    assert [one["step"] for one in histograms(run, "gradients/0.bias")] == [1, 8, 16]


def test_histograms_and_images_change_no_bit_of_the_training(tmp_path):
    class Shows(Callback):
        def on_step_end(self, run):
            if run.global_step % 4 == 0:
                run.monitor.image("weights", run.model[0].weight)

    run = RunDirectory.create(tmp_path)
    plain = builder().run().join()
    watched = builder().run_dir(run).histograms(every=1).callbacks(Shows()).run().join()
    for one, other in zip(plain.params, watched.params, strict=True):
        assert torch.equal(one, other)
    steps = sorted(int(path.stem[5:]) for path in (run.path / "media/image").rglob("*.png"))
    assert steps == [4, 8, 12, 16]


def test_a_run_without_media_has_no_folder_of_them(tmp_path):
    run = RunDirectory.create(tmp_path)
    builder().run_dir(run).run()
    assert not (run.path / "media").exists()


def test_the_sinks_of_the_builder(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create(tmp_path / "runs")
    trained = builder().run_dir(run).tensorboard().wandb("digits", mode="offline").histograms()
    trained.run()
    assert list((run.path / "tensorboard").glob("events.*"))
    [file] = (run.path / "wandb").rglob("*.wandb")
    assert run.path.name in file.name
    with pytest.raises(ValueError, match=r"histograms\(every\)"):
        builder().histograms(every=0)
