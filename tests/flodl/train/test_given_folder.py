"""The run directory of a program that ``fdl`` starts: the folder that ``fdl`` has made for it."""

import json

PROGRAM = """
import argparse
from flodl import RunDirectory
parser = argparse.ArgumentParser()
for name in ("--output", "--root", "--count", "--fails"):
    parser.add_argument(name)
args = parser.parse_args()
print("starts")
for number in range(int(args.count or 1)):
    run = RunDirectory.create(args.root or args.output, config={"number": number})
    print("run", run.path)
    if args.fails:
        with run:
            raise ValueError("it failed")
    if number == 0:
        run.finish("diverged", epochs=3)
"""
MANIFEST = """
entry: python main.py
output: {dir: runs/train}
commands:
  other: {options: {root: elsewhere}}
"""


def runs(root):
    """Folder -> record of every run below a folder."""
    return {
        str(file.parent.relative_to(root)): json.loads(file.read_text())
        for file in root.rglob("run.json")
    }


def test_a_program_has_one_folder(project, torch_fdl):
    root = project({"fdl.yml": MANIFEST, "main.py": PROGRAM})
    done = torch_fdl("other", "--root", "runs/train", "--count", "2")
    assert done.exit == 0, done.err
    (first, own), (second, later) = sorted(runs(root).items())
    assert done.out.split()[:3] == ["starts", "run", str(root / first)]
    assert (own["state"], own["epochs"], own["exit_code"]) == ("diverged", 3, 0)
    assert own["command"] == ["other"]
    assert own["argv"][:1] == ["main.py"]
    assert json.loads((root / first / "config.json").read_text()) == {"number": 0}
    assert (root / first / "output.log").read_text() == done.out
    # Only the first one is what fdl has started.
    assert "exit_code" not in later
    assert not (root / second / "output.log").exists()


def test_a_run_directory_elsewhere_gets_what_fdl_knows(project, torch_fdl):
    root = project({"fdl.yml": MANIFEST, "main.py": PROGRAM})
    done = torch_fdl("other", "--fails", "1")
    assert done.exit == 1
    ((folder, record),) = runs(root).items()
    assert folder.startswith("elsewhere/")
    assert (record["state"], record["error"]) == ("failed", "ValueError: it failed")
    assert (record["exit_code"], record["command"]) == (1, ["other"])
    assert "ValueError: it failed" in (root / folder / "output.log").read_text()
    assert list((root / "runs/train").iterdir()) == []


def test_in_a_sweep_the_folder_of_a_row_is_the_run_wherever_the_program_keeps_others(
    project, torch_fdl
):
    root = project({"fdl.yml": MANIFEST, "main.py": PROGRAM})
    done = torch_fdl("--each", "count=1,2", "other")
    assert done.exit == 0, done.err
    found = runs(root)
    rows = {one for one in found if one.startswith("runs/")}
    assert {one.rpartition("/")[2] for one in rows} == {"count=1", "count=2"}
    (later,) = found.keys() - rows
    assert later.startswith("elsewhere/")
