from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from flodl.errors import WorkersFailed
from flodl.ranks.launch.join import DEVICE_VARIABLE, join
from flodl.ranks.launch.launcher import detect, mark_begun
from flodl.ranks.launch.start_ranks import LaunchError, check_picklable, launch_ranks
from tests import fork_server
from tests.rows import each_row


def introduce(word: str) -> tuple[str, int, int, str | None, int, list[list[float]]]:
    group = join(os.environ, device="cpu")
    launched = detect(os.environ)
    assert launched is not None
    gathered = group.gather([float(group.rank)])
    group.close()
    device = os.environ.get(DEVICE_VARIABLE)
    return word, group.rank, launched.restart, device, torch.get_num_threads(), gathered


def fail_on_rank_1(how: str) -> None:
    group = join(os.environ, device="cpu")
    group.barrier()
    if group.rank == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("the batch is sour")
    group.barrier()


def interrupt_rank_1() -> None:
    group = join(os.environ, device="cpu")
    group.barrier()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    group.barrier()


def fail_on_device_0(folder: Path) -> tuple[str, int, int]:
    launched = detect(os.environ)
    assert launched is not None
    device = os.environ[DEVICE_VARIABLE]
    with (folder / "starts").open("a") as file:
        file.write(f"{launched.restart}:{device}:{launched.run_id}\n")
    if device == "0":
        # Not before the other one is there: a launch that ends early starts fewer.
        limit = time.monotonic() + 30
        while f"{launched.restart}:1:" not in (folder / "starts").read_text():
            assert time.monotonic() < limit
            time.sleep(0.01)
        mark_begun()
        os._exit(3)
    if launched.world_size == 2:
        time.sleep(60)
    return device, launched.rank, launched.world_size


@pytest.mark.usefixtures("forked_spawns")
def test_ranks_meet_and_give_back_what_the_function_returns(capfd: Any) -> None:
    results = launch_ranks(introduce, ("hello",), 2, simulated=True)
    assert results == {rank: ("hello", rank, 0, None, 1, [[0.0], [1.0]]) for rank in (0, 1)}
    assert capfd.readouterr().err == ""


@pytest.mark.case("distributed", 47)
@pytest.mark.usefixtures("forked_spawns")
def test_an_exception_on_a_rank_reaches_the_parent_with_its_traceback() -> None:
    with pytest.raises(WorkersFailed) as caught:
        launch_ranks(fail_on_rank_1, ("raise",), 2, max_restarts=0)
    error = caught.value
    assert (error.rank, error.cause) == (1, "ValueError: the batch is sour")
    assert "in fail_on_rank_1" in error.traceback
    assert error.traceback.strip() in str(error)


@pytest.mark.case("distributed", 44)
@pytest.mark.usefixtures("forked_spawns")
def test_a_rank_that_is_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    kept = tmp_path / "last.fdl"
    kept.touch()
    with pytest.raises(WorkersFailed) as caught:
        launch_ranks(fail_on_rank_1, ("kill",), 2, max_restarts=0, last_checkpoint=kept)
    error = caught.value
    assert (error.rank, error.cause, error.traceback) == (1, "signal SIGKILL", "")
    assert error.last_checkpoint == str(kept)
    assert "rank 1 ended with signal SIGKILL" in str(error)
    assert str(kept) in str(error)


@pytest.mark.usefixtures("forked_spawns")
def test_a_rank_that_ctrl_c_ends_is_not_waited_for() -> None:
    with pytest.raises(WorkersFailed) as caught:
        launch_ranks(interrupt_rank_1, (), 2, max_restarts=0)
    assert (caught.value.rank, caught.value.cause) == (1, "exit code 130")


def test_the_error_tells_restarts_before_the_cause(tmp_path: Path) -> None:
    def fails(*_: object) -> dict[int, Any]:
        failure = ProcessFailure(1, 4711, 3, str(tmp_path / "error.json"))
        raise LaunchError(1, failure, reached=True, has_begun=True)

    with pytest.raises(WorkersFailed) as caught:
        launch_ranks(module_level, (), 2, max_restarts=2, once=fails)
    assert str(caught.value) == "rank 1 ended after 2 restarts with exit code 3"


@pytest.mark.slow
@pytest.mark.usefixtures("forked_spawns")
def test_a_device_that_failed_twice_is_left_out(tmp_path: Path, capfd: Any) -> None:
    results = launch_ranks(fail_on_device_0, (tmp_path,), 2, max_restarts=2, devices=(0, 1))
    assert results == {0: ("1", 0, 1)}
    starts = [line.split(":") for line in (tmp_path / "starts").read_text().split()]
    assert sorted((restart, device) for restart, device, _ in starts) == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
        ("2", "1"),
    ]
    assert len({run_id for _, _, run_id in starts}) == 1
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 3
    assert "rank 0 ended with exit code 3: starting all ranks again (1 of 2)" in said[0]
    assert "device 0 failed twice" in said[1]


PROGRAM = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from flodl.ranks.launch.start_ranks import launch_ranks

def wait(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)

{guard}
    multiprocessing.set_executable(sys.argv[2])  # ranks do not import torch each time
    launch_ranks(wait, (sys.argv[1],), 2, max_restarts=3)
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, -signal.SIGINT),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_ranks_and_then_the_program(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(guard="if __name__ == '__main__':"))
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    python = fork_server.torch_program(os.environ)
    with subprocess.Popen(
        [python, str(program), str(ranks), python],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        limit = time.monotonic() + 60
        while len(list(ranks.iterdir())) < 2:
            assert time.monotonic() < limit
            assert parent.poll() is None, parent.communicate()[1]
            time.sleep(0.02)
        parent.send_signal(number)
        parent.communicate(timeout=60)
    assert parent.returncode == code
    for rank in ranks.iterdir():
        assert not Path("/proc", rank.name).exists()


LOST = """
import os, signal, threading
from flodl.ranks.launch import start_ranks

start_ranks.MONITOR_SECONDS = 1.0  # a busy machine may send the signal late
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
start_ranks.record_failure(ConnectionError("gone"))
print("says what happened")
"""


def test_the_launcher_does_not_silence_a_rank_that_lost_another() -> None:
    done = fork_server.python("-c", LOST, timeout=120, torch=True)
    assert (done.returncode, done.stdout) == (0, "says what happened\n")


def test_a_program_without_a_guard_is_told_about_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(guard="if True:"))
    words = (str(program), str(tmp_path), fork_server.torch_program(os.environ))
    done = fork_server.python(*words, timeout=120, torch=True)
    assert done.returncode == 1
    assert "if __name__ == '__main__'" in done.stderr


@dataclass
class Plan:
    model_factory: Any
    dataset: Any = None


def module_level() -> None:
    """Found by its name."""


def test_what_can_be_sent_passes() -> None:
    check_picklable(module_level, (Plan(module_level, torch.zeros(3)), {"a": 1}))


@pytest.fixture
def _a_program_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of pytest-xdist are started as ``python -c``, as if their code was typed in."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)


@pytest.mark.usefixtures("_a_program_in_a_file")
@each_row(
    ("args", "name"),
    [
        ((Plan(lambda: None),), "model_factory"),
        ((Plan(module_level, dataset=(n for n in range(3))),), "dataset"),
        (({"loss": lambda: None},), "loss"),
        ((3, lambda: None), "argument 1"),
    ],
)
def test_what_cannot_be_sent_is_named_with_a_way_out(args: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}.* cannot be sent .*fdl or torchrun"):
        launch_ranks(module_level, args, 2)


@pytest.mark.usefixtures("_a_program_in_a_file")
def test_a_function_inside_of_another_is_named() -> None:
    def inner() -> None: ...

    with pytest.raises(ValueError, match=r"^the function .*inner \(.*test_launch\.py:\d+\)"):
        launch_ranks(inner, (), 2)


@pytest.mark.slow
def test_a_function_typed_at_a_prompt_is_sent_with_its_code() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from flodl.ranks.launch.start_ranks import launch_ranks\n"
            "class Pair:\n"
            "    def __init__(self, a): self.a = a\n"
            "def f(pair): return pair.a + 1\n"
            "print(sorted(launch_ranks(f, (Pair(2),), 2).items()))\n"
            "launch_ranks(f, ((n for n in range(3)),), 2)\n",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "[(0, 3), (1, 3)]\n"
    assert "cannot be sent to the ranks" in done.stderr


def test_a_program_without_a_file_is_refused_before_a_rank_starts() -> None:
    program = (
        "from flodl.ranks.launch.start_ranks import launch_ranks\nlaunch_ranks(print, (), 2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-"],
        input=program,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "it is not a file: <stdin>; save it under a name" in done.stderr
