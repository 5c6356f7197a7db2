"""flodl and fdl where a feature of Linux is missing. docs/reference/platforms.md has the list."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
import torch

from fdl.base import run_record
from fdl.runs import follow
from flodl.device import select_device
from flodl.train.run import run_records
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("other_system.py")
PAGE = (ROOT / "docs/reference/platforms.md").read_text(encoding="utf-8")


def command(system, *words):
    """The command of a program as it would run on another system, or here."""
    before = [sys.executable, str(PROGRAM), system] if system != "linux" else [sys.executable]
    return [*before, *words]


def environment():
    base = {key: value for key, value in os.environ.items() if not key.startswith("FDL_")}
    return {**base, "PYTHONPATH": str(ROOT), "CI": "1"}


def run(system, *words, cwd):
    done = subprocess.run(
        command(system, *words), cwd=cwd, env=environment(), capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def project_of_commands(project):
    return project(
        {
            "fdl.yml": """
                commands:
                  hello: {run: echo hello}
                  tree: {run: "echo $$; sleep 600 & sleep 600"}
                  train: {path: train}
            """,
            "train/fdl.yml": "entry: python main.py\nmemory: keep\ntraining: {epochs: 3}\n",
            "train/main.py": """
                import os, sys
                print(sys.argv[1:], os.environ.get("GLIBC_TUNABLES"))
            """,
        }
    )


def test_commands_and_programs_run_and_the_heap_stays_the_systems(project_of_commands):
    said = run("macos", "-m", "fdl", "hello", cwd=project_of_commands)
    assert (said.returncode, said.stdout) == (0, "hello\n")
    trained = run("macos", "-m", "fdl", "train", cwd=project_of_commands)
    assert trained.stdout == "['--epochs', '3'] None\n"


def test_a_stop_reaches_all_processes_of_a_command_without_proc(project_of_commands):
    words = command("macos", "-m", "fdl", "tree")
    with subprocess.Popen(
        words, cwd=project_of_commands, env=environment(), stdout=subprocess.PIPE, text=True
    ) as child:
        shell = psutil.Process(int(child.stdout.readline()))
        wait_for(lambda: len(shell.children()) == 2)
        processes = [shell, *shell.children()]
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 128 + signal.SIGTERM
        _, alive = psutil.wait_procs(processes, timeout=30)
        assert alive == []


def test_an_act_on_a_training_says_that_there_are_no_unix_sockets(monkeypatch, tmp_path):
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(OSError, match="this system has no Unix sockets"):
        follow._connected(tmp_path / "some.sock", None)


@pytest.mark.parametrize("ended", [False, True])
def test_without_proc_a_run_of_a_living_process_counts_as_living(monkeypatch, ended):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        if ended:
            process.communicate(b"\n")
        with monkeypatch.context() as patched:
            patched.setattr(run_record, "_text", lambda _path: "")
            record = {**run_record.process_facts(), "pid": process.pid}
            assert "boot_id" not in record
            assert run_records._is_alive(record) is not ended


def test_mps_is_taken_only_if_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert select_device() == torch.device("cpu")
    assert select_device("mps") == torch.device("mps")


def test_without_mps_the_error_names_a_device_that_works(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device='mps': .* has no MPS.*; use 'cpu'"):
        select_device("mps")


TRAINING = textwrap.dedent("""
    import sys, torch
    from torch import nn
    from flodl import RunDirectory, TensorDataSet, Trainer

    torch.manual_seed(0)
    data = TensorDataSet(torch.linspace(0, 1, 64).reshape(64, 1), names=["x"])

    def step(model, batch):
        return model(batch["x"]).square().mean()

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    epochs, *resume = sys.argv[1:]
    run = RunDirectory.create("runs", resume=resume[0] if resume else None)
    trainer = Trainer.builder(lambda device: nn.Linear(1, 1).to(device), sgd, step)
    trainer.dataset(data).batch_size(4).num_epochs(int(epochs)).engine(ENGINE)
    trainer.run_dir(run).run().join()
    print(run.path)
""")


def trained(system, engine, folder, *words):
    """Train on a system, and return the run directory."""
    program = f"ENGINE = {engine!r}\n{TRAINING}"
    words = ("-c", program, *words, *(["--torch"] if system != "linux" else []))
    done = run(system, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


# Each of these loads torch in one or more processes of its own.
@pytest.mark.slow
@pytest.mark.parametrize("system", ["macos", "windows"])
def test_a_training_is_the_same_to_the_bit_and_resumes(system, tmp_path):
    here, there, half = tmp_path / "here", tmp_path / "there", tmp_path / "half"
    for folder in (here, there, half):
        folder.mkdir()
    expected = trained("linux", "eager", here, "4")
    whole = trained(system, "eager", there, "4")
    first = trained(system, "eager", half, "2")
    rest = trained(system, "eager", half, "4", str(first / "last.fdl"))
    for one in (whole, rest):
        assert (one / "model.fdl").read_bytes() == (expected / "model.fdl").read_bytes()
    record = json.loads((whole / "run.json").read_text())
    assert record["state"] == "complete"
    assert "boot_id" not in record
    assert (record.get("socket") is None) == (system == "windows")
    machine = json.loads((whole / "environment.json").read_text())
    assert machine["memory"] > 2**30
    # What fdl does on Windows needs Windows.
    listed = run("macos", "-m", "fdl", "runs", "list", "--json", cwd=there)
    assert [one["state"] for one in json.loads(listed.stdout)["runs"]] == ["complete"]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["macos", "windows"])
def test_the_default_engine_trains_without_a_heap_to_keep(system, tmp_path):
    run = trained(system, "auto", tmp_path, "40")
    assert json.loads((run / "run.json").read_text())["state"] == "complete"


@pytest.mark.slow
@pytest.mark.parametrize("system", ["macos", "windows"])
def test_every_module_of_flodl_can_be_imported(system, tmp_path):
    program = textwrap.dedent("""
        import importlib, pkgutil, flodl
        names = [one.name for one in pkgutil.walk_packages(flodl.__path__, "flodl.")]
        for name in names:
            if not name.endswith("__main__") and ".commands" not in name:
                importlib.import_module(name)
        print(len(names))
    """)
    done = run(system, "-c", program, "--torch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200


def test_the_page_names_every_way_that_is_tested_here():
    for name in ("Kept heap", "Process trees", "Acts on a training", "MPS"):
        assert f"| {name} |" in PAGE, name
