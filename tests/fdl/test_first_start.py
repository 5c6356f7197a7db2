"""What fdl's start of several ranks says and does when the program fails."""

from pathlib import Path

import pytest

from fdl.planning import torchrun
from tests import fork_server

OPTIONS = ("--standalone", "--local-addr=127.0.0.1", "--max-restarts=1")

PROGRAM = """
import os, signal, sys, time
from pathlib import Path

rank = int(os.environ["RANK"])
with open("starts", "a") as file:
    file.write("x")

def fail(text="it is broken"):
    raise ValueError(text)

def begin():
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).with_name("training-has-begun").touch()

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

{}
"""

BROKEN = "\nValueError: it is broken\n"

# What the ranks do -> exit code, starts, how often the error is said, and the end of what is said.
FAILURES = {
    "fail()": (1, 2, 1, BROKEN),
    "time.sleep(0.4 * (1 - rank)); fail()": (1, 2, 1, BROKEN),
    "time.sleep(0.4 * rank); fail()": (1, 2, 1, BROKEN),
    "fail() if rank else time.sleep(60)": (1, 2, 1, BROKEN),
    "time.sleep(60) if rank else fail()": (1, 2, 1, BROKEN),
    "print('no data', file=sys.stderr); sys.exit(3)": (3, 2, 0, "no data\n"),
    "kill() if rank else time.sleep(60)": (
        137,
        2,
        0,
        "error: rank 1 ended with signal SIGKILL\n",
    ),
    "begin(); fail() if rank else time.sleep(60)": (1, 4, 2, BROKEN),
}


def launched(folder: Path, does: str, ranks: int = 2):
    (folder / "program.py").write_text(PROGRAM.format(does))
    options = (*OPTIONS, f"--nproc-per-node={ranks}")
    words = (torchrun.LAUNCHER, *options, "--", "program.py")
    return fork_server.python(*words, cwd=folder, torch=True, abrupt=True)


OFTEN = ["time.sleep(0.4 * (1 - rank)); fail()", "begin(); fail() if rank else time.sleep(60)"]


@pytest.mark.parametrize(
    "does",
    [one if one in OFTEN else pytest.param(one, marks=pytest.mark.slow) for one in FAILURES],
)
def test_a_program_that_fails_at_its_start_is_started_once_and_has_the_last_word(tmp_path, does):
    code, starts, said, end = FAILURES[does]
    done = launched(tmp_path, does)
    assert (tmp_path / "starts").read_text() == "x" * starts, done.stderr
    assert done.returncode == code, done.stderr
    assert done.stderr.count("ValueError: it is broken") == said, done.stderr
    assert ("\n" + done.stderr).endswith(end), done.stderr
    assert "torch" not in done.stderr
    assert done.stderr.count("starting all ranks again (1 of 1)") == starts // 2 - 1


def test_what_other_ranks_say_is_not_lost(tmp_path):
    """Neither where all goes well, nor once the training has begun."""
    done = launched(tmp_path, "print(f'warning of {rank}', file=sys.stderr)", 3)
    assert (done.returncode, done.stderr.count("warning of")) == (0, 3), done.stderr
    says = "print('said', file=sys.stderr), begin(), time.sleep(0.3), fail()"
    done = launched(tmp_path, f"time.sleep(60) if rank == 0 else ({says})")
    assert done.stderr.count("said\n") == 2, done.stderr
