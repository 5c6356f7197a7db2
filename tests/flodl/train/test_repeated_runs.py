"""The same command with the same seed repeats itself to the bit; `runs diff` names the engine."""

from __future__ import annotations

import json
import os
import random
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from fdl.runs import diff
from fdl.runs.run import read
from flodl import Trainer
from flodl.train import RunDirectory
from flodl.train.step import AutoPolicy
from tests import fork_server
from tests.flodl.train.programs import training
from tests.test_guides import BLOCK

PORTING = Path(__file__).parents[3] / "docs/porting"

TRAIN_PAGE = """
import runpy, torch
torch.set_num_threads(2)
model = runpy.run_path("ours.py")["model"]
"""

TRAIN_PROGRAM = """
import random
from pathlib import Path
import numpy, torch
from flodl import TensorDataSet, Trainer
from tests.flodl.train.twelve_programs import NAME, batches

torch.set_num_threads(2)
for seed in (torch.manual_seed, random.seed, numpy.random.seed):
    seed(5)
program = NAME(Path("."))
data = [torch.cat(column) for column in zip(*batches(program.images, 20))]
trained = (
    Trainer.builder(lambda _: program.model, lambda _: program.optimizer, program.train_fn)
    .dataset(TensorDataSet(*data, names=("x", "y")))
    .batch_size(16)
    .num_epochs(3)
    .device("cpu")
    .run()
)
model = trained.model
"""

HASH = """
from hashlib import sha256
digest = sha256()
for name, value in model.state_dict().items():
    digest.update(name.encode() + value.numpy().tobytes())
print("hash", digest.hexdigest())
"""

PAGES = ("pytorch", "lightning", "accelerate", "transformers")
PROGRAMS = ("moco", "ema_teacher", "gan", "accumulating_metric", "dropout", "stateful_graph")
EVERYDAY = ("pytorch", "gan")


def hash_of(name: str, folder: Path) -> str:
    """Train a program in a process of its own, and return the hash of its last weights."""
    folder.mkdir()
    text = TRAIN_PROGRAM.replace("NAME", name)
    if name in PAGES:
        text = TRAIN_PAGE
        for language, file, content in BLOCK.findall((PORTING / f"{name}.md").read_text()):
            if language == "python" and file:
                (folder / file).write_text(content)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = fork_server.python(
        "-c", text + HASH, cwd=folder, env=env, torch=True, abrupt=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"^hash (\w+)$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return found[1]


@pytest.mark.parametrize(
    "name",
    [
        name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.slow)
        for name in (*PAGES, *PROGRAMS)
    ],
)
def test_a_program_trained_twice_has_the_same_weights(name, tmp_path):
    assert hash_of(name, tmp_path / "one") == hash_of(name, tmp_path / "two")


@pytest.fixture
def scaffold(torch_fdl, tmp_path):
    """Train in a new project; returns the hash of the model, and the run."""
    assert torch_fdl("init", "demo", "--native").exit == 0

    def train(*words: str) -> tuple[str, Path]:
        done = torch_fdl("-q", "train", *words, "--output", "runs", cwd="demo", timeout=300)
        assert done.exit == 0, done.err
        run = max((tmp_path / "demo/runs").iterdir())
        return sha256((run / "model.fdl").read_bytes()).hexdigest(), run

    return train


def test_the_scaffold_trained_twice_has_the_same_model(scaffold):
    assert scaffold("quick")[0] == scaffold("quick")[0]


def test_a_manifest_asks_for_the_engine(scaffold, tmp_path):
    manifest = tmp_path / "demo/train/fdl.yml"
    manifest.write_text(manifest.read_text().replace("seed: 42", "seed: 42\n  engine: auto"))
    _, run = scaffold("quick")
    assert json.loads((run / "environment.json").read_text())["engine"]["engine"] == "auto"
    assert json.loads((run / "config.json").read_text())["engine"]["field"] == "training.engine"


@pytest.mark.slow
def test_the_scaffold_repeats_itself_with_auto_from_the_second_run_on(scaffold, torch_fdl):
    words = ("--engine", "auto", "--batch-size", "8", "--epochs", "12")
    first, second, third = (scaffold(*words) for _ in range(3))
    assert second[0] == third[0]
    record = [json.loads((run / "environment.json").read_text())["engine"] for _, run in
              (first, second, third)]  # fmt: skip
    assert [one["source"] for one in record] == ["measured", "cache", "cache"]
    assert record[1]["stretches"] == record[2]["stretches"]
    assert len(record[1]["stretches"]) == 1
    again = torch_fdl("train", *words[:3], "16", "--epochs", "12", cwd="demo", timeout=300)
    told = (
        "engine auto decides again: another batch (image float32 8x1x8x8, label int64 8, now image"
    )
    assert told in again.out


# --- What `fdl runs diff` says --------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Train with an engine that decides in its first steps; returns the folder of the run."""
    monkeypatch.setattr("flodl.train.step.auto.AutoPolicy", lambda: deciding(block=1))

    def train(engine: str, config: dict[str, object] | None = None) -> Path:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        made = RunDirectory.create(folder, config=config)
        training(n=90, epochs=4).engine(engine).run_dir(made).run()
        return made.path

    return train


def deciding(block: int) -> AutoPolicy:
    """Keeps the fused optimizer, after so many steps of each kind in turns."""
    return AutoPolicy(
        least_steps=1, least_seconds=0.0, cost=1e9, gain=-1e9, block=block,
        only=frozenset({"fused"}),
    )  # fmt: skip


def width(value: int) -> dict[str, object]:
    return {"width": {"value": value, "origin": "command line"}}


def test_auto_repeats_itself_from_the_second_run_on(run):
    runs = [run("auto") for _ in range(3)]
    models = [(one / "model.fdl").read_bytes() for one in runs]
    assert models[1] == models[2]
    stretches = [json.loads((one / "environment.json").read_text())["engine"]["stretches"]
                 for one in runs]  # fmt: skip
    assert len(stretches[0]) > 2  # a plain step and a fused one may agree to the bit, or differ
    assert stretches[1] == stretches[2] == [[1, "fused optimizer"]]


def test_diff_names_the_engine_first_if_one_run_has_auto(run, monkeypatch):
    # One plain step may agree with a fused one to the bit; eight in a row do not.
    monkeypatch.setattr("flodl.train.step.auto.AutoPolicy", lambda: deciding(block=8))
    plain, tried, decided = run("eager", width(1)), run("auto", width(2)), run("auto")
    told = diff.text(diff.compare(read(plain), read(tried)))
    assert "  1. engine eager against auto\n" in told
    assert "the second run computed from step 1 plain, from step " in told
    assert told.index("engine eager") < told.index(
        "width 1 (command line) against 2 (command line)"
    )
    told = diff.text(diff.compare(read(tried), read(decided)))
    assert "  1. engine auto deciding against decided before\n" in told
    assert "the second run computed from step 1 fused optimizer\n" in told


def test_diff_does_not_name_it_if_auto_changed_no_step(run, monkeypatch):
    monkeypatch.setattr("flodl.train.step.auto.AutoPolicy", AutoPolicy)
    found = diff.compare(read(run("eager")), read(run("auto")))  # too short to try anything
    assert found.difference is None
    assert not [cause for cause in found.causes if cause.name == "engine"]


def test_diff_says_nothing_of_auto_if_both_runs_computed_alike(run):
    run("auto")
    one, other = run("auto", width(1)), run("auto", width(2))
    found = diff.compare(read(one), read(other))
    assert found.difference is None
    assert not [cause for cause in found.causes if "engine" in cause.name]


class Drawing(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that the generators of Python and NumPy change, as augmentations do."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = random.random() + float(np.random.rand())
        return torch.full((4,), number * drawn), torch.tensor(number % 2)


def test_samples_drawn_with_python_and_numpy_repeat_in_every_run():
    def trained() -> torch.Tensor:
        training = Trainer.builder(
            lambda _: torch.nn.Linear(4, 2),
            lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        )
        return training.dataset(Drawing()).batch_size(8).num_epochs(2).run().join().params[0]

    first = trained()
    random.random()
    np.random.rand()
    assert torch.equal(trained(), first)
