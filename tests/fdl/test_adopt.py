"""``fdl adopt``: a manifest for a script that exists."""

import pytest

PROGRAM = '''
"""Train something."""
import argparse
parser = argparse.ArgumentParser(description="Train: a small model")
parser.add_argument("--lr", type=float, default=0.1, help="Learning rate.")
parser.add_argument("--num-epochs", type=int, default=10)
parser.add_argument("--model", choices=["small", "large"], default="small")
parser.add_argument("--token", default="hunter2")
args = parser.parse_args()
open("ran", "a").write(f"{args.num_epochs}")
print(f"epoch {1}: val_loss: {0.5:.3f} acc {0.9}")
print("train loss=%.3f" % 0.1)
'''


def test_a_script_gets_a_manifest_that_works_and_is_not_run(project, fdl):
    root = project({"train.py": PROGRAM})
    shown = fdl("adopt", "train.py", "-n")
    assert (shown.exit, shown.err) == (0, "")
    assert [path.name for path in root.iterdir()] == ["train.py"]
    done = fdl("adopt", "train.py")
    assert done.exit == 0, done.err
    assert done.out.startswith("Created fdl.yml for train.py (4 options read from it)\n\nNext:\n")
    text = (root / "fdl.yml").read_text()
    assert text == shown.out
    for line in (
        'description: "Train: a small model"',
        "entry: python train.py",
        "#   lr: 0.1  # Learning rate",
        "#   model: small  # one of small, large",
        "    options: {num_epochs: 1}",
        '#   val_loss: {value: "val_loss[:=] *([0-9.e+-]+)"}',
        '#   acc: {value: "acc +([0-9.e+-]+)"}',
        '#   loss: {value: "loss[:=] *([0-9.e+-]+)"}',
    ):
        assert line in text.splitlines(), line
    assert "hunter2" not in text
    assert not (root / "ran").exists()
    assert fdl("check").out.endswith("1 file, 2 commands: no mistakes\n")
    assert fdl("-q", "train", "quick").exit == 0
    assert (root / "ran").read_text() == "1"

    again = fdl("adopt", "train.py")
    assert again.exit == 1
    assert "error: fdl.yml exists already; nothing was written\nhint: name the" in again.err
    assert (root / "fdl.yml").read_text() == text


@pytest.mark.parametrize("script", ["nothing.py", "notes.txt", "."])
def test_what_is_no_script_is_refused(project, fdl, script):
    project({"notes.txt": "", "sub/why.py": "print(1)\n"})
    done = fdl("adopt", script)
    assert done.exit == 1
    assert "is not a Python script\nhint: fdl adopt train.py" in done.err


def test_a_script_below_runs_where_it_was_started_before(project, fdl):
    root = project({"src/train.py": "print(open('data/x.txt').read())", "data/x.txt": "hi"})
    done = fdl("adopt", "src/train.py")
    assert done.out.startswith("Created fdl.yml for src/train.py ")
    assert "  cd " not in done.out
    assert "entry: python src/train.py" in (root / "fdl.yml").read_text().splitlines()
    assert fdl("-q", "train").out == "hi\n"
    again = fdl("adopt", "src/train.py")
    assert again.exit == 1
    assert "hint: name the program in it: `entry: python src/train.py`" in again.err


def test_a_script_elsewhere_without_options_gets_its_manifest_beside_it(project, fdl):
    root = project({"sub/why.py": "print('hi')\n", "here/notes.txt": ""})
    done = fdl("adopt", "../sub/why.py", cwd="here")
    assert done.exit == 0, done.err
    assert "Next:\n  cd ../sub\n  fdl why-script --help" in done.out
    assert "fdl found no options in why.py" in (root / "sub/fdl.yml").read_text()
    assert fdl("-q", "why-script", "plain", cwd="sub").out == "hi\n"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("__main__.py", "main"),
        ("my script #1.py", "my-script-1"),
        ("quick.py", "quick-script"),
    ],
)
def test_every_name_of_a_script_becomes_a_command_that_can_be_typed(project, fdl, name, command):
    root = project({name: PROGRAM.replace('["small", "large"]', '["small", "\\n"]')})
    done = fdl("adopt", name)
    assert done.exit == 0, done.err
    assert f"  fdl {command} quick " in done.out
    assert fdl("-q", command, "quick").exit == 0
    assert (root / "ran").read_text() == "1"
