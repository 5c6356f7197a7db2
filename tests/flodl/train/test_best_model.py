"""From the best checkpoint of a run to a prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from flodl import RunDirectory, Trainer, load_best
from flodl.errors import CheckpointError, ShapeMismatch
from tests.flodl.distributed.trainings import Numbers


def network(width: int = 3) -> nn.Module:
    body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.5))
    return nn.Sequential(body, nn.Linear(width, 1))


def trained(folder: Path, *, best: bool) -> tuple[RunDirectory, nn.Module]:
    run = RunDirectory.create(folder)
    trainer = Trainer.builder(
        lambda device: network().to(device),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
    )
    trainer = trainer.dataset(Numbers(32)).batch_size(8).num_epochs(2).seed(1).run_dir(run)
    if best:
        trainer = trainer.keep_best()
    handle = trainer.run()
    handle.join()
    return run, handle.model


def test_the_best_model_of_a_run_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained(tmp_path, best=True)
    use = f'load_best("{run.path}", model)'
    told = f"  use the best model: {use}, see docs/guide/trained-model.md\n"
    assert told in capsys.readouterr().out
    assert json.dumps(use)[1:-1] in (run.path / "report.html").read_text()
    model = load_best(run.path, network())
    assert not any(module.training for module in model.modules())
    inputs = torch.randn(5, 3)
    assert torch.equal(model(inputs), load_best(run, network())(inputs))

    plain = network().eval()
    plain.load_state_dict(load_file(run.best_checkpoint))
    assert torch.equal(plain(inputs), model(inputs))


def test_what_does_not_fit_or_is_not_there_is_told(tmp_path: Path) -> None:
    run, last = trained(tmp_path, best=False)
    with pytest.raises(
        CheckpointError, match=r"not told to keep_best.*load_best\(\"(.*)\", "
    ) as no:
        load_best(run, network())
    named = str(no.value).split('"')[1]
    assert torch.equal(load_best(named, network())[1].weight, last[1].weight)
    with pytest.raises(CheckpointError, match="there is no run in"):
        load_best(tmp_path / "nothing", network())
    model = nn.Sequential(network(), nn.Linear(1, 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"the file lacks 0/0.0.bias, .* and more; build"):
        load_best(named, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ShapeMismatch):
        load_best(named, network(width=5))
