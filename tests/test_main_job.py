"""The main job end to end: scaffold, train, and everything that can go wrong at the terminal."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pip
import pytest
from safetensors.torch import load_file

from flodl import checkpoint_metadata
from tests import fork_server
from tests.fdl.terminal import Terminal

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory):
    """What ``fdl init`` writes, for every test to copy."""
    folder = tmp_path_factory.mktemp("scaffold")
    fork_server.python("-m", "fdl", "init", "demo", cwd=folder, abrupt=True).check_returncode()
    return folder / "demo"


@pytest.fixture
def demo(torch_fdl, scaffold, tmp_path):
    """A fresh scaffold; returns a function that types ``fdl …`` in it."""
    shutil.copytree(scaffold, tmp_path / "demo")

    def run(*words, **options):
        return torch_fdl(*words, cwd="demo", **options)

    run.path = tmp_path / "demo"
    return run


@pytest.fixture
def program(demo):
    """Starts the program with what ``fdl WORDS`` would give it, without another import of torch."""

    def run(*words):
        plan = json.loads(demo("--dry-run", "--json", *words).out)
        _, script, *arguments = plan["argv"]
        return fork_server.python(script, *arguments, cwd=plan["cwd"], torch=True, abrupt=True)

    return run


def only_run(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


def test_training_leaves_a_whole_trail_and_97_percent(demo):
    done = demo("train")
    assert done.exit == 0, done.err
    run = only_run(demo.path / "runs/train")
    *_, accuracy, report = done.out.splitlines()
    assert report == f"report   {run / 'report.html'}"
    assert accuracy.startswith("accuracy 9")

    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    assert len(rows) == 10
    assert float(rows[-1]["accuracy"]) >= 0.97
    config = json.loads((run / "config.json").read_text())
    assert config["epochs"] == {
        "value": 10,
        "origin": "train/fdl.yml:8:11",
        "field": "training.epochs",
        "overrides": [{"value": 10, "origin": "default"}],
    }
    assert json.loads((run / "run.json").read_text())["state"] == "complete"
    assert json.loads((run / "environment.json").read_text())["torch"]
    assert "epoch 10/10" in (run / "training.log").read_text()
    assert "train/fdl.yml:8:11" in (run / "report.html").read_text()

    model = load_file(run / "model.fdl")
    assert {"head.2.weight", "head.2.bias"} <= set(model)


def test_what_is_typed_beats_the_preset_and_is_recorded(demo):
    assert demo("train", "quick", "--epochs", "1").exit == 0
    config = json.loads((only_run(demo.path / "runs/quick") / "config.json").read_text())
    assert {name: (one["value"], one["origin"]) for name, one in config.items()} == {
        "epochs": (1, "command line"),
        "batch_size": (32, "train/fdl.yml:9:15"),
        "lr": (0.003, "train/fdl.yml:10:7"),
        "seed": (42, "train/fdl.yml:11:9"),
        "output": ("runs/quick", "train/fdl.yml:25:12"),
        "resume": (None, "default"),
        "live": (None, "default"),
        "engine": ("eager", "default"),
    }
    *beaten, _ = config["epochs"]["overrides"]
    assert [one["origin"] for one in beaten] == ["train/fdl.yml:23:15", "train/fdl.yml:8:11"]
    model = only_run(demo.path / "runs/quick") / "model.fdl"
    assert json.loads(checkpoint_metadata(model)["config"]) == config

    # The run is over; the folder of all runs, the run and its weights alone still know why.
    copied = demo.path / "elsewhere.fdl"
    copied.write_bytes(model.read_bytes())
    for where in ("runs/quick", model.parent, copied):
        told = demo("why", f"{where}:training.epochs")
        assert told.exit == 0, told.err
        title, *rows = told.out.splitlines()
        assert title.endswith("= 1")
        assert [row.split()[:2] for row in rows] == [
            ["wins", "1"],
            ["overridden", "3"],
            ["overridden", "10"],
            ["overridden", "10"],
        ]
        assert rows[1].split()[2] == "train/fdl.yml:23:15"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-size", "0"], "error: batch_size=0: it must be an integer of at least 1"),
        (["--epochs", "0"], "error: num_epochs=0: it must be an integer of at least 1"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(program, demo, words, message):
    done = program("train", "quick", *words)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()
    assert not (demo.path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "fast"], "invalid value `fast` for `--lr` -- not a number"),
        (["--epoch", "3"], "unknown option `--epoch`\nhint: did you mean `--epochs`?"),
    ],
)
def test_a_slip_is_refused_before_the_program_starts(demo, words, message):
    done = demo("train", "quick", *words)
    assert done.exit == 1
    assert f"error: `fdl train quick`: {message}\n" in done.err
    assert not (demo.path / "runs").exists()


def test_a_bad_batch_size_in_the_manifest_is_refused_with_its_place(demo):
    manifest = demo.path / "train/fdl.yml"
    manifest.write_text(manifest.read_text().replace("batch_size: 32", "batch_size: 0"))
    done = demo("train")
    assert done.exit == 1
    assert "train/fdl.yml:9:15: `training.batch_size` must be at least 1, not 0" in done.err
    assert not (demo.path / "runs").exists()


def test_an_output_folder_that_cannot_be_made_stops_before_training(program, demo):
    (demo.path / "blocked").write_text("a file\n")
    done = program("train", "quick", "--output", str(demo.path / "blocked/here"))
    assert done.returncode == 1
    assert "cannot write the run directory" in done.stderr
    assert "a file is in the way: remove it or choose another output directory" in done.stderr
    assert done.stdout == ""


def test_a_diverging_loss_stops_with_epoch_step_and_remedy(demo):
    done = demo("train", "quick", "--lr", "1e30")
    assert done.exit == 1
    assert "error: the loss is " in done.err
    assert "at epoch 0, step " in done.err
    assert "Lower the learning rate" in done.err
    assert "Traceback" not in done.err
    run = only_run(demo.path / "runs/quick")
    assert json.loads((run / "run.json").read_text())["state"] == "diverged"
    assert not (run / "model.fdl").exists()


def test_a_loss_that_is_no_scalar_is_refused_with_its_shape(program, demo):
    script = demo.path / "train/main.py"
    text = script.read_text()
    script.write_text(text.replace('batch["label"])\n', 'batch["label"], reduction="none")\n', 1))
    done = program("train", "quick")
    assert done.returncode == 1
    assert "train_fn returned a loss of shape [32]; a loss is one number" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_keeps_a_checkpoint_and_exits_130_through_fdl(demo):
    child = subprocess.Popen(
        [sys.executable, "-m", "fdl", "train", "--epochs", "100000"],
        cwd=demo.path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("  epoch ")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 130
    run = only_run(demo.path / "runs/train")
    assert f"the last good checkpoint is {run / 'last.fdl'}" in said
    again = "fdl train --epochs 100000 --resume last"
    assert said.splitlines()[-1] == f"continue with: {again}"
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    assert "head.2.weight" in load_file(run / "last.fdl")


@pytest.mark.skipif(
    not (ROOT / ".venv/.installed-train").exists(), reason="runs where scripts/test.sh installed"
)
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_quickstart_trains_and_runs_again(tmp_path, times):
    for _ in range(times):
        done = subprocess.run(
            ["bash", str(ROOT / "scripts/quickstart.sh"), "mine/first"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert " on held-out digits\n" in done.stdout
        assert f"The project is in {tmp_path / 'mine/first'}." in done.stdout
    assert len(list((tmp_path / "mine/first/runs/train").iterdir())) == times


BASH = 'import os, sys; os.execvp("bash", ["bash", *sys.argv[1:]])'


@pytest.mark.slow  # trains ten epochs
def test_the_quickstart_asks_nothing_on_a_terminal(tmp_path):
    checkout = tmp_path / "checkout"
    (checkout / ".venv").mkdir(parents=True)
    for name in ("bin", "lib", "pyvenv.cfg"):
        (checkout / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    for name in ("scripts", "constraints.txt", "pyproject.toml"):
        (checkout / name).symlink_to(ROOT / name)
    state = subprocess.run(
        "cat pyproject.toml constraints.txt | cksum", shell=True, cwd=ROOT, capture_output=True
    ).stdout
    (checkout / ".venv/.installed-train").write_bytes(state)
    script = str(checkout / "scripts/quickstart.sh")
    with Terminal(script, "mine", cwd=tmp_path, program=BASH) as terminal:
        assert terminal.finish() == 0, terminal.text
    text = terminal.text.replace("\r\n", "\n")
    assert text.startswith("Created mine/ (no containers) with 8 files\n")
    for noise in ("?", "[Y/n]", "Next:", "pinned", "setup", "fdl.yml"):
        assert noise not in text
    assert " on held-out digits" in text
    *_, activate, cd, train = (line for line in text.splitlines() if line.startswith("  "))
    assert activate == f"  . {checkout}/.venv/bin/activate"
    assert cd == f"  cd {tmp_path / 'mine'}"
    assert train == "  fdl train"


def test_the_quickstart_leaves_foreign_folders_alone(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/thesis.txt").write_text("done\n")
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/quickstart.sh")], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "error: demo exists and is not an fdl project" in done.stderr
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["thesis.txt"]


def test_the_scripts_say_when_python_is_too_old(tmp_path):
    old = tmp_path / "bin/python3"
    old.parent.mkdir()
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
    old.chmod(0o755)
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    for name in ("quickstart.sh", "venv.sh"):
        (checkout / "scripts" / name).write_text((ROOT / "scripts" / name).read_text())
    done = subprocess.run(
        ["bash", str(checkout / "scripts/quickstart.sh")],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": str(old)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "flodl needs Python 3.11 or newer; found Python 3.9.2" in done.stderr
    assert not (checkout / ".venv").exists()


def test_the_scripts_say_what_to_do_without_a_network(tmp_path):
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    for name in ("scripts/quickstart.sh", "scripts/venv.sh", "constraints.txt", "pyproject.toml"):
        (checkout / name).write_text((ROOT / name).read_text())
    # With the pip that is here: to unpack that of Python takes seconds.
    venv.create(checkout / ".venv", symlinks=True)
    (packages,) = (checkout / ".venv/lib").glob("*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    cut_off = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
        "PIP_NO_INDEX": "1",
        "PIP_RETRIES": "0",
        "FLODL_TORCH_INDEX": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        ["bash", str(checkout / "scripts/quickstart.sh")],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable, **cut_off},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "error: the installation failed; see the messages of pip above" in done.stderr
    assert "point pip at a mirror or a folder of wheels" in done.stderr
    assert not (tmp_path / "demo").exists()
