"""``fdl check``: every manifest, overlay and option of a project, without running anything."""

PROGRAM = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--model", choices=["small", "large"])
parser.add_argument("data", nargs="?")
parser.parse_args()
open("ran", "w")
"""
FILES = {
    "fdl.yml": """commands:
  train:
  test: {run: touch ran}
  needs: {run: echo, args: {a: {positional: true}}}
""",
    "train/fdl.yml": """entry: python main.py
options:
  lr: 0.1
commands:
  big:
    options: {model: large}
""",
    "train/fdl.ci.yml": "options:\n  lr: 0.2\n",
    "train/main.py": PROGRAM,
}


def test_a_sound_project_is_told_per_file_and_nothing_runs(project, fdl):
    root = project(FILES)
    before = sorted(root.rglob("*"))
    done = fdl("check")
    assert (done.exit, done.err) == (0, "")
    assert [line.split() for line in done.out.splitlines()] == [
        ["fdl.yml", "2", "commands"],
        ["train/fdl.yml", "2", "commands,", "3", "options", "known"],
        ["train/fdl.ci.yml", "2", "commands,", "3", "options", "known"],
        ["3", "files,", "4", "commands:", "no", "mistakes"],
    ]
    assert sorted(root.rglob("*")) == before
    # The words of a project come first.
    (root / "fdl.yml").write_text("commands: {check: {run: echo mine}}\n")
    assert fdl("check").out == "mine\n"


def test_every_mistake_is_named_once_with_its_place(project, fdl):
    root = project(
        {
            **FILES,
            "train/fdl.ci.yml": "options:\n  lr: fast\n",
            "train/fdl.local.yml": "commands:\n  big:\n    options: {model: hugee}\n",
            "train/fdl.gpu.yml": "trainig: 1\n",
            "more/fdl.yml": "entry: python x.py\noptoins: {}\n",
        }
    )
    (root / "fdl.yml").write_text("commands: {train: , more: , gone: {path: nowhere}}\n")
    done = fdl("check")
    assert done.exit == 1
    for place, words in (
        ("train/fdl.ci.yml:2:7", "lr"),
        ("train/fdl.local.yml:3:22", "hugee"),
        ("train/fdl.gpu.yml:1:1", "unknown key `trainig`"),
        ("more/fdl.yml:2:1", "unknown key `optoins`; did you mean `options`?"),
        ("fdl.yml:1:42", "no fdl.yml found"),
    ):
        found = [line for line in done.err.splitlines() if place in line and words in line]
        assert len(found) == 1, (place, done.err)
    assert done.out.splitlines()[-1].endswith(": 5 mistakes")
    only = fdl("--env", "ci", "check")
    assert "train/fdl.ci.yml:2:7" in only.err
    assert "gpu" not in only.err
