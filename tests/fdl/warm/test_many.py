"""Several programs of one call, and a rehearsal: each of them starts from the warm process."""

import sys
import textwrap

import pytest

from tests.fdl.test_rehearse import MANIFEST, PROGRAM
from tests.fdl.warm.conftest import starts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

COLD = {"FDL_WARM": "0"}

PARSES = """
import argparse, heavy, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
args = parser.parse_args()
print("lr", args.lr, "warm", heavy.LOADED_BY != os.getpid(), "FLODL_REHEARSE" in os.environ)
"""


@pytest.fixture(scope="module")
def many(project):
    project.write("u/main.py", PARSES)
    project.write("u/fdl.yml", "entry: python main.py\ncommands:\n  low: {options: {lr: 0.1}}\n")
    project.write("fdl.yml", "commands:\n  t: {path: t}\n  u: {path: u}\n")
    return project


def lines(done):
    assert done.returncode == 0, done
    return sorted(line.split("|")[-1].strip() for line in done.stdout.splitlines())


def test_commands_beside_each_other(many):
    words = ("--jobs", "2", "u", "u/low")
    assert lines(many.fdl(*words)) == ["lr 0.1 warm True False", "lr 0.5 warm True False"]
    assert lines(many.fdl(*words, env=COLD)) == [
        "lr 0.1 warm False False",
        "lr 0.5 warm False False",
    ]


def test_the_runs_of_a_sweep(many):
    done = many.fdl("--jobs", "2", "u", "--each", "lr=0.25,0.125")
    assert "lr 0.125 warm True False" in lines(done)
    assert "lr 0.25 warm True False" in lines(done)


def test_a_rehearsal(cold):
    cold.write("t/main.py", f"{PARSES}\nif False:\n    import flodl\n")
    cold.start()
    done = cold.fdl("rehearse", "t")
    assert "lr 0.5 warm True True" in done.stdout
    assert "ended without a training" in done.stderr


@pytest.mark.slow
def test_a_rehearsal_of_a_real_training(typed, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "fdl.yml").write_text(MANIFEST)
    (tmp_path / "train/fdl.yml").write_text("entry: python main.py\n")
    (tmp_path / "train/main.py").write_text(textwrap.dedent(PROGRAM))
    typed("warm")
    seen = [typed("rehearse", "train", FDL_WARM=switch) for switch in ("0", "1")]
    for text in seen:
        assert "epoch       4 batches" in text
    assert not (tmp_path / "runs").exists()
    assert starts(typed) == 1
