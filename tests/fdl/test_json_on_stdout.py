"""With `--json`, stdout is one JSON document or empty, whatever else there is to tell."""

import json
import os
import sys
from functools import cache
from pathlib import Path

import pytest

from fdl.cli.builtin_table import TABLE
from fdl.cli.entry import main
from fdl.scaffold.api_ref.scan import scan
from tests import fork_server
from tests.rows import each_row

ONE, OTHER = "2026-01-31T10-00-00", "2026-01-30T10-00-00"

# Behind `--json`, for each command that has it.
WORDS = {
    "list": [],
    "config show": ["train"],
    "why": ["lr", "train"],
    "why --run": ["train"],
    "plan": ["train"],
    "self schema list": [],
    "runs list": ["--columns", "name,lr"],
    "runs show": [ONE],
    "runs compare": [ONE, OTHER],
    "runs diff": [ONE, OTHER],
    "runs import": ["elsewhere"],
    "runs tag": [ONE, "kept"],
    "runs note": [ONE, "text"],
    "runs tell": [ONE, "save"],
    "plan --try": ["train"],
    "sweep list": [],
    "sweep show": ["swept"],
    "runs verify": [ONE],
    "diagnose": [],
    "libtorch list": [],
    "libtorch info": [],
    "libtorch check": [],
    "self api-ref": ["Trainer"],
}

# What fails here: no training runs or has a record, no libtorch and no sweep are there.
WITHOUT_A_SUBJECT = {
    *("runs import", "runs diff", "runs tell", "plan --try", "runs verify", "sweep show"),
    *("libtorch info", "libtorch check"),
}

SWEEP = '{"command": ["train"], "started": "2026", "each": {}, "goal": "", "runs": []}'

# Prints wherever a program can, in the middle of what it is asked, too.
TALKING = """
    print("printed at import")
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1, help="Learning rate")
    print("printed before the arguments are read")
    parser.parse_args()
    if False:
        import flodl
    print("printed at the end")
    """


scanned = cache(scan)


@pytest.fixture(autouse=True)
def _scanned_once(monkeypatch):
    """A scan of flodl takes seconds."""
    monkeypatch.setattr("fdl.cli.commands.self.scan", scanned)


@pytest.fixture
def talking(project, monkeypatch):
    """A project that gives reason to warn, whose programs print, and whose records differ."""
    # fdl starts the programs of flodl with the Python that runs it.
    monkeypatch.setattr(sys, "executable", fork_server.torch_program(os.environ))
    folder = project(
        {
            "fdl.yml": "commands:\n  first: {run: echo first}\n"
            "  train: {path: train, needs: first}\n",
            "fdl.json": "{}",
            "train/fdl.yml": "entry: python main.py\noptions: {lr: 0.2}\n",
            "train/main.py": TALKING,
            "elsewhere/notes.txt": "no run",
            "runs/broken/run.json": "{",
            "runs/swept/sweep.json": SWEEP,
        }
    )
    for name in (ONE, OTHER):
        run = folder / "runs" / name
        run.mkdir()
        record = {"state": "complete", "started": "2026-01-31T10:00:00+00:00"}
        (run / "run.json").write_text(json.dumps(record))
        (run / "config.json").write_text('{"lr": {"value": 0.5, "origin": "default"}}')
    monkeypatch.chdir(folder)
    return folder


def documents(capfd):
    """Type every command with `--json`; stdout, stderr and the exit code of each."""
    folder, found = Path.cwd(), {}
    for name, words in WORDS.items():
        # A program has been started in its own folder.
        os.chdir(folder)
        capfd.readouterr()
        code = main([*name.split(), "--json", *words])
        out, err = capfd.readouterr()
        if out:
            json.loads(out)
        # What was not printed as a document is told as text.
        assert out or (code and err), (name, code, err)
        found[name] = (out, err, code)
    return found


def test_every_command_with_json_is_tried():
    tried = {name.partition(" --")[0] for name in WORDS}
    assert tried == {name for name, row in TABLE.items() if "json" in row.get("options", {})}


@pytest.mark.slow
def test_a_project_whose_programs_print_and_that_gives_reason_to_warn(talking, capfd):
    found = documents(capfd)
    assert "fdl.json" in found["list"][1]
    silent = {name for name, (out, _, _) in found.items() if not out}
    assert silent <= WITHOUT_A_SUBJECT
    # What fdl knows of the programs is out of date.
    os.chdir(talking)
    main(["train", "--help"])
    with (talking / "train" / "main.py").open("a") as file:
        file.write("parser.add_argument('--new', help='Later')\n")
    os.utime(talking / "train" / "main.py", (1, 1))
    again = documents(capfd)
    assert {
        name: err for name, (out, err, _) in again.items() if not out and name not in silent
    } == {}


def test_a_broken_manifest(talking, project, capfd):
    (talking / "fdl.json").unlink()
    project({"fdl.yml": "comands: {}"})
    assert documents(capfd)["list"][2] == 1


def test_without_a_project(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert documents(capfd)["config show"][2] == 1


@pytest.mark.usefixtures("talking")
@each_row("name", WORDS)
def test_an_option_that_does_not_exist(capfd, name):
    code = main([*name.split(), "--json", "--none-such"])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    assert "--none-such" in err
