"""The README's examples, run as they are printed."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from flodl import Graph, Monitor, RunDirectory
from tests.flodl.distributed.recorded_runs import recorded_run
from tests.flodl.hf.predict.reference import write

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def block(language: str, containing: str) -> str:
    (found,) = (block for block in blocks(language) if containing in block)
    return found


@pytest.fixture
def manifest_project(fdl, tmp_path):
    (tmp_path / "train").mkdir()
    (manifest,) = blocks("yaml")
    (tmp_path / "train/fdl.yml").write_text(manifest)
    (tmp_path / "fdl.yml").write_text("commands:\n  train:\n")
    arguments, *_ = blocks("python")
    program = "from fdl import FdlArgs, option\nimport json\n" + arguments
    (tmp_path / "train/main.py").write_text(program + "print(json.dumps(args.resolved()))\n")
    return fdl


def test_the_manifest_of_the_tour_runs_as_it_says(manifest_project):
    fdl = manifest_project
    epochs = yaml.safe_load(fdl("train", "quick").out)["epochs"]
    assert (epochs["value"], epochs["origin"]) == (3, "train/fdl.yml:10:15")
    lr = yaml.safe_load(fdl("train", "quick", "--lr", "0.01").out)["lr"]
    assert (lr["value"], lr["origin"]) == (0.01, "command line")


def test_the_origin_the_tour_prints_is_the_real_one(manifest_project):
    (promised,) = re.findall(r"\[\"lr\"\]\[\"origin\"\]  # '(.*)'", README)
    assert yaml.safe_load(manifest_project("train").out)["lr"]["origin"] == promised


def test_every_command_of_the_tour_exists(manifest_project):
    console, *_ = blocks("console")
    lines = [shlex.split(line, comments=True) for line in console.splitlines()]
    assert len(lines) == 6
    for _, _, *words in lines:
        done = manifest_project(*words)
        assert done.exit == 0, (words, done.err)


def test_every_libtorch_command_of_the_tour_exists(fdl, tmp_path):
    console = block("console", "libtorch")
    lines = [line.partition(" > ")[0] for line in console.splitlines()]
    install, env, check, build, diagnose = [shlex.split(line, comments=True)[2:] for line in lines]
    env_home = {"FLODL_HOME": str(tmp_path / "home")}
    planned = fdl("-n", *install, env=env_home)
    assert planned.exit == 0
    assert "libtorch-" in planned.out
    # The libraries that the tests run on; the official archive is not to be had everywhere.
    folder = str(Path(torch.__file__).parent)
    assert fdl(*install, "--source", folder, env=env_home).exit == 0
    assert "configurePresets" in fdl(*env, env=env_home).out
    assert "compute capability 12.0 (sm_120)" in fdl(*check, env=env_home).out
    assert fdl("-n", *build, env=env_home).exit == 0
    assert "Compatibility" in fdl(*diagnose, env=env_home).out


def test_the_graphs_of_the_tour_build_run_and_are_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph, thinker = block("python", "MergeOp.MEAN"), block("python", "StateAdd()")
    scope: dict[str, object] = {}
    exec(graph, scope)
    model = scope["model"]
    assert isinstance(model, nn.Module)
    assert model(torch.randn(3, 4)).shape == (3, 2)
    assert model.tagged("features").shape == (3, 8)
    exec(thinker, scope)
    twin = Graph.from_spec(json.loads(json.dumps(scope["spec"])))
    assert twin.load_checkpoint("thinker.fdl").missing == []
    x = torch.randn(3, 4)
    scope["thinker"].reset_state()
    assert torch.equal(twin(x), scope["thinker"](x))
    assert Path("thinker.svg").read_text(encoding="utf-8").startswith("<svg")


def test_the_training_of_the_tour_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    training = block("python", "Trainer.builder")
    scope = {
        "make_model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        "make_optimizer": torch.optim.Adam,
        "train_step": lambda model, batch: nn.functional.cross_entropy(
            model(batch["image"]), batch["label"]
        ),
    }
    # Another program may use the port that the tour shows.
    assert ".live(port=3000)" in training
    exec(training.replace("port=3000", "port=0"), scope)
    (run,) = (tmp_path / "runs/digits").iterdir()
    left = {path.name for path in run.iterdir()}
    assert {"config.json", "environment.json", "metrics.csv", "training.log", "report.html"} <= left
    assert "model.fdl" in left
    assert [p.shape for p in scope["trained"].params] == [(10, 64), (10,)]


def test_the_runs_of_the_tour_are_found(tmp_path, monkeypatch, fdl):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fdl.yml").write_text("commands: {train: }\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "train/fdl.yml").write_text("entry: python main.py\noutput: {dir: runs/digits}\n")
    for loss in (0.4, 0.5):
        with RunDirectory.create("runs/digits") as run:
            monitor = Monitor(1, terminal=False)
            run.attach(monitor)
            monitor.log(0, 0.1, {"val_loss": loss})
            monitor.finish()
            run.finish("complete", epochs=1)
    console = block("console", "fdl runs list")
    lines = [shlex.split(line, comments=True) for line in console.splitlines()]
    assert [words[2:4] for words in lines] == [
        ["runs", verb] for verb in ("list", "compare", "tail")
    ]
    for _, _, *words in lines:
        done = fdl(*words)
        assert done.exit == 0, (words, done.err)
        assert done.out


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)]+)\)", README))
def test_every_link_leads_somewhere(target):
    assert (Path(__file__).parent.parent / target).exists()


def test_every_command_about_ranks_does_what_the_tour_says(manifest_project, tmp_path):
    console = block("console", "--ranks")
    train, plan, simulate, verify, bench = [
        shlex.split(line, comments=True)[2:] for line in console.splitlines()
    ]
    assert manifest_project(*train).out.count('"epochs"') == 2
    planned = manifest_project(*plan)
    assert (planned.exit, planned.err) == (0, "")
    assert "torch.distributed.run" in planned.out
    simulated = manifest_project(*simulate)
    assert simulated.exit == 0, simulated.err
    assert "cadence" in simulated.out
    with RunDirectory.create(tmp_path / "runs") as run:
        recorded_run(run.path, vouched=False)
        run.finish("complete", epochs=3)
    verified = manifest_project(*verify)
    assert verified.exit == 0, verified.err
    assert "proven" in verified.out
    assert manifest_project("-n", *bench).exit == 0


def test_a_model_of_the_hub_is_opened_written_and_verified(fdl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "owner/name", "bert", "ForSequenceClassification", id2label={0: "b", 1: "a"})
    scope: dict[str, object] = {}
    exec(block("python", "flodl.hf").replace("OWNER/NAME", "owner/name"), scope)
    assert [{found.label for found in text} for text in scope["best"]] == [{"a", "b"}] * 2
    frozen = {
        name for name, one in scope["model"].graph.named_parameters() if not one.requires_grad
    }
    assert frozen
    assert all(name.startswith("bert.encoder.layer.") for name in frozen)
    (tmp_path / "fdl.yml").write_text("commands:\n  train:\n    run: 'true'\n")
    project = {"name": "x", "version": "1", "dependencies": ["flodl"]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in project.items()]
    (tmp_path / "pyproject.toml").write_text("\n".join(["[project]", *lines]))
    console = block("console", "flodl-hf")
    for line in console.replace("OWNER/NAME", "owner/name").splitlines():
        done = fdl(*shlex.split(line, comments=True)[2:])
        assert done.exit == 0, (line, done.err)
    assert (tmp_path / "flodl-hf/main.py").exists()
