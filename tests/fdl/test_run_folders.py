"""Every start of an entry leaves a run folder, also that of a program without flodl."""

import json
import subprocess
from pathlib import Path

import pytest

from fdl.runs.run import read
from tests.fdl.terminal import Terminal

PROGRAM = """
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--code", type=int, default=0)
parser.add_argument("--api-key", default="")
args = parser.parse_args()
print("key", args.api_key, "\\x1b[31mred\\x1b[0m", os.environ.get("FDL_RUN_DIR", "none"))
for step in (10, 20):
    print(f"step {step}: loss: {args.lr * step} acc 0.5", flush=True)
print("10%\\r100%", file=sys.stderr)
sys.exit(args.code)
"""
MANIFEST = """
entry: python train.py
metrics:
  loss: {value: 'loss: ([0-9.e+-]+)', step: 'step ([0-9]+)'}
commands:
  big: {options: {lr: 0.5}, env: {SHOWN: "yes"}}
  more: {options: {lr: 2}, metrics: {loss: null, acc: {value: 'acc ([0-9.]+)'}}}
  bare: {options: {lr: 2}, output: {record: false}}
  shell: {run: 'echo "${FDL_RUN_DIR:-none}"'}
"""


@pytest.fixture
def adopted(project):
    """A project with a script that was adopted."""
    return project({"fdl.yml": MANIFEST, "train.py": PROGRAM, ".git/HEAD": "c0ffee\n"})


def content(run: Path, name: str):
    return json.loads((run / name).read_text())


def test_a_plain_start_of_an_adopted_script_leaves_a_run(adopted, fdl):
    done = fdl("big", "--api-key", "s3cr3t-value-9", "--code", "3")
    assert done.exit == 3
    assert "s3cr3t-value-9" in done.out  # the terminal is the program's own
    (run,) = adopted.glob("runs/big/*")
    assert f"{run}\n" in done.out
    record = content(run, "run.json")
    assert (record["state"], record["exit_code"], record["error"]) == ("failed", 3, "exit code 3")
    assert record["command"] == ["big"]
    assert record["argv"][:4] == ["python", "train.py", "--lr", "0.5"]
    assert record["variables"]["SHOWN"] == {"value": "yes", "origin": "fdl.yml:5:42"}
    assert record["seconds"] > 0
    config = content(run, "config.json")
    assert config["lr"] == {"value": 0.5, "origin": "fdl.yml:5:23"}
    assert config["code"] == {"value": 3, "origin": "command line"}
    assert content(run, "environment.json")["git_commit"] == "c0ffee"
    log = (run / "training.log").read_text()
    assert "loss: 5.0" in log
    assert "\x1b" not in log
    assert "100%\n" in log
    assert "10%\r" not in log
    for file in run.iterdir():
        assert "s3cr3t-value-9" not in file.read_text(), file
    assert sorted(file.name for file in run.iterdir()) == [
        "config.json", "environment.json", "metrics.jsonl", "run.json", "training.log",
    ]  # fmt: skip
    (row,) = json.loads(fdl("runs", "list", "--json").out)["runs"]
    assert (row["state"], row["metrics"]) == ("failed", {"loss": 10.0})


def test_the_difference_of_the_code_is_recorded(project, fdl):
    root = project({"fdl.yml": "entry: python train.py", "train.py": "print(1)\n"})
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "c"]):
        subprocess.run([*git, *words], check=True)
    (root / "train.py").write_text("print(2)\n")
    (root / "fdl.yml").write_text("entry: python train.py\ncommands: {p: {options: {a: 1}}}\n")
    assert fdl("p").exit == 0
    (run,) = root.glob("runs/p/*")
    text = (run / "code.diff").read_text()
    assert "# program: train.py\n" in text
    assert "-print(1)\n+print(2)\n" in text


def test_what_leaves_no_run(adopted, fdl):
    rows = [("bare",), ("shell",), ("big", "--help"), ("-n", "big"), ("big", "--", "--help")]
    for words in rows:
        done = fdl(*words)
        assert done.exit == 0, (words, done.err)
        assert not (adopted / "runs").exists(), words
    assert "none" in fdl("bare").out


def test_metrics_are_read_from_files_and_patterns(adopted, fdl):
    assert fdl("more").exit == 0
    (run,) = adopted.glob("runs/more/*")
    assert read(run).metrics.rows == [(1, {"acc": 0.5}), (2, {"acc": 0.5})]
    lines = '{"epoch": 2, "val": 3, "improved": true}\n{"epoch": 3, "v'
    (run / "metrics.jsonl").write_text(lines)
    (run / "metrics.csv").write_text("epoch,loss\n1,9\n2,8\n")
    assert read(run).metrics.rows == [(1, {"loss": 9}), (2, {"loss": 8, "val": 3})]
    (run / "metrics.json").write_text('{"test": 7}')
    assert read(run).metrics.rows[1:] == [(2, {"loss": 8, "val": 3, "test": 7})]
    assert read(run).epochs == 2
    (adopted / "fdl.yml").write_text("entry: echo\nmetrics: {loss: {value: 'a ('}}\n")
    refused = fdl("big")
    assert "fdl.yml:2:25: `metrics.loss.value` is not a regular expression" in refused.err


def test_a_folder_that_cannot_be_written_costs_the_record_only(adopted, fdl):
    (adopted / "runs").write_text("in the way")
    done = fdl("big")
    assert done.exit == 0
    assert "loss: 5.0" in done.out
    assert "this run is not recorded" in done.err
    assert "output: {record: false}" in done.err


TALKS = """
import os, signal, threading, time

def size():
    print("size", *os.get_terminal_size(1), flush=True)

def sizes():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        signal.sigwait({signal.SIGWINCH})
        size()

# A handler would wait for the answer if the signal came just before the question is read.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
threading.Thread(target=sizes, daemon=True).start()
print([os.isatty(stream) for stream in range(3)], "\\x1b[31mred\\x1b[0m")
size()
print("said", input("your name? "), flush=True)
print("waits", flush=True)
time.sleep(60)
"""


def test_a_program_keeps_its_terminal(project):
    """Colour, size, a question without a line end, and keys; Ctrl-C makes the run interrupted."""
    root = project({"fdl.yml": "entry: python talks.py\ncommands: {p: {options: {a: 1}}}\n"})
    (root / "talks.py").write_text(TALKS)
    with Terminal("p", cwd=root, size=(30, 90)) as terminal:
        terminal.read_until("[True, True, True] \x1b[31mred\x1b[0m")
        terminal.read_until("size 90 30")
        terminal.read_until("your name? ")
        terminal.resize(20, 70)
        terminal.read_until("size 70 20")
        terminal.press("ann\n")
        terminal.read_until("said ann")
        terminal.read_until("waits")
        terminal.press("\x03")
        assert terminal.finish() == 130
    (run,) = root.glob("runs/p/*")
    assert content(run, "run.json")["state"] == "interrupted"
    log = (run / "training.log").read_text()
    assert "[True, True, True] red\n" in log
    assert "KeyboardInterrupt" in log


@pytest.mark.usefixtures("adopted")
def test_a_run_can_be_named(fdl):
    assert fdl("--name", "baseline", "big").exit == 0
    assert fdl("--name", "steep", "more").exit == 0
    named = fdl("runs", "list", "--columns", "lr,acc").out
    assert [line.split()[0] for line in named.splitlines()] == ["RUN", "steep", "baseline"]
    assert json.loads(fdl("runs", "show", "baseline", "--json").out)["title"] == "baseline"
    compared = fdl("runs", "compare", "baseline", "steep").out.splitlines()
    assert compared[0].split() == ["baseline", "steep"]
    assert fdl("--name", "baseline", "big").exit == 0
    assert "`baseline` means 2 runs" in fdl("runs", "show", "baseline").err
    for refused in ("last", "best:loss", "a/b"):
        assert fdl("--name", refused, "big").exit == 1
    assert "FDL_RUN_NAME=x" in fdl("--name", "x", "-n", "big").out


def test_a_training_keeps_the_name_that_fdl_gave(project, fdl):
    root = project({"fdl.yml": "entry: python train.py\ncommands: {go: {options: {}}}"})
    (root / "train.py").write_text(
        "from flodl import RunDirectory\n"
        "with RunDirectory.create('runs/go') as run:\n"
        "    run.finish('complete', epochs=0)\n"
    )
    assert fdl("--name", "mine", "go").exit == 0
    assert json.loads(fdl("runs", "show", "mine", "--json").out)["state"] == "complete"
