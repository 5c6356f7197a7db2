"""What fdl's start of several ranks says and does when the program fails."""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from fdl.plan import rank_launcher, torchrun
from tests import fork_server
from tests.ports import kept_port
from tests.waiting import wait_for

OPTIONS = ("--standalone", "--local-addr=127.0.0.1", "--max-restarts=1")

PROGRAM = """
import os, signal, sys, time
from pathlib import Path

rank = int(os.environ["RANK"])
with open("starts", "a") as file:
    file.write("x")
# A failure ends the other ranks, also one that a busy machine has not begun yet.
begun = "begun-" + os.environ["TORCHELASTIC_RUN_ID"] + os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(begun, "a") as file:
    file.write("x")
while os.path.getsize(begun) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)

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


def test_a_program_that_says_nothing_of_steps_has_begun_after_a_minute(tmp_path, monkeypatch):
    start = rank_launcher.Start(begun=False)
    start.hold({0: str(tmp_path / "error.json")}, {}, {})
    assert not start.has_begun()
    monkeypatch.setattr(rank_launcher, "PLAIN_S", 0.0)
    (tmp_path / rank_launcher.WATCHED).touch()
    assert not start.has_begun()
    (tmp_path / rank_launcher.WATCHED).unlink()
    assert start.has_begun()


def test_no_text_is_held_back_for_long(tmp_path, monkeypatch, capsysbinary):
    (tmp_path / "1").mkdir()
    streams = {}
    start = rank_launcher.Start(begun=False)
    start.hold({one: str(tmp_path / f"{one}/error.json") for one in (0, 1)}, {}, streams)
    Path(streams[1]).write_text("waiting for the data")
    assert capsysbinary.readouterr().err == b""
    monkeypatch.setattr(rank_launcher, "_HELD_S", 0.0)
    wait_for(lambda: capsysbinary.readouterr().err == b"waiting for the data")


def test_of_two_ranks_that_failed_since_the_last_look_the_first_is_named():
    start = rank_launcher.Start(begun=True)
    ranks = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    start.watch({rank: process.pid for rank, process in enumerate(ranks)})
    for count, process in enumerate(reversed(ranks), 1):
        process.kill()
        wait_for(lambda count=count: len(start._ends) == count)
    codes = {rank: process.wait() for rank, process in enumerate(ranks)}
    assert not start.waits_for_first(codes)
    assert start.failed == 1


@pytest.mark.slow
def test_a_program_that_fails_on_one_of_several_machines_ends_on_all(tmp_path):
    does = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
    does += "if rank == 3:\n    print('no data', file=sys.stderr)\n    sys.exit(5)\ndist.barrier()"
    (tmp_path / "program.py").write_text(PROGRAM.format(does))
    python = fork_server.torch_program(os.environ)
    env = {**os.environ, "PYTHON_EXEC": python, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with kept_port() as port:
        options = ("--nproc-per-node=2", "--nnodes=2", "--max-restarts=1", "--rdzv-backend=c10d")
        meets = (f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=two", "--", "program.py")
        words = (torchrun.LAUNCHER, *options, *meets)
        start = partial(fork_server.start, *words, cwd=tmp_path, env=env, torch=True)
        with start() as one, start() as other:
            said = [one.communicate(timeout=60)[1], other.communicate(timeout=60)[1]]
            codes = [one.wait(), other.wait()]
    assert sorted(codes) == [1, 5], said
    assert (tmp_path / "starts").read_text() == "xxxx"
    assert said[codes.index(5)].endswith("no data\n"), said
    assert said[codes.index(1)].count("no data") == 0
    assert not any("elastic" in text or "frame #" in text for text in said), said
