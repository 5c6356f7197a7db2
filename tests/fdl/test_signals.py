"""Signals to fdl: they reach the whole job, and nothing is left behind."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from fdl.run.tree import alive, end
from tests import fork_server
from tests.fdl.terminal import PATIENCE
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# A process that holds a lock in place of a GPU, as its last owner would. It notes the signals
# that do not end it.
HOLDER = """
import fcntl, os, signal, sys, time
name, *ignored = sys.argv[1:]
for number in ignored:
    signal.signal(getattr(signal, number), lambda *_: open(name + ".heard", "w").close())
gpu = open(name + ".gpu", "w")
fcntl.flock(gpu, fcntl.LOCK_EX)
open(name + ".pid", "w").write(str(os.getpid()))
while True:
    time.sleep(0.05)
"""

SAVER = """
import os, signal, sys, time
def save(number, frame):
    time.sleep(1.5)
    open("saved", "a").write(signal.Signals(number).name)
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
open("saver.pid", "w").write(str(os.getpid()))
while True:
    time.sleep(0.05)
"""

LONG_AT_ONCE = """
import sys
from fdl.cli.entry import main
from fdl.run import posix
posix._SAME_WITHIN_S = 60.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def job(project):
    """Start a command and wait for the named processes; everything is killed at the end."""
    started = []

    def start(script, *names, program=("-m", "fdl"), **keys):
        settings = "".join(f"\n    {key}: {value}" for key, value in keys.items())
        script = script.replace("python", sys.executable)
        folder = project(
            {
                "fdl.yml": f"commands:\n  t:{settings}\n    run: |\n      {script}\n"
                f"  u: {{run: exec {sys.executable} save.py}}\n",
                "hold.py": HOLDER,
                "save.py": SAVER,
            }
        )
        process = subprocess.Popen(
            [sys.executable, *program, "t"],
            cwd=folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        process.folder = folder
        process.names = names
        started.append(process)
        wait_for(lambda: all(pid(process, name) for name in names))
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for name in process.names:
            if holds(process, name):
                os.kill(pid(process, name), signal.SIGKILL)


def pid(process, name):
    path = process.folder / f"{name}.pid"
    return int(path.read_text() or 0) if path.exists() else 0


def holds(process, name):
    """Whether the process with this name still holds its GPU."""
    path = process.folder / f"{name}.gpu"
    if not path.exists():
        return False
    with path.open() as gpu:
        try:
            fcntl.flock(gpu, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


FAMILY = "python hold.py a & (python hold.py b; true); true"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_to_fdl_alone_reaches_the_whole_family(job, name):
    number = getattr(signal, name)
    fdl = job(FAMILY, "a", "b")
    fdl.send_signal(number)
    assert fdl.wait(PATIENCE) == 128 + number
    assert not holds(fdl, "a")
    assert not holds(fdl, "b")


def test_a_process_that_lost_its_parent_is_reached_too(job):
    fdl = job("(setsid python hold.py lost &) ; python hold.py near; true", "lost", "near")
    fdl.terminate()
    assert fdl.wait(PATIENCE) == 143
    assert not holds(fdl, "lost")


def test_a_long_checkpoint_is_not_cut(job):
    fdl = job("exec python save.py", "saver", grace=0.1)
    fdl.terminate()
    assert fdl.wait(PATIENCE) == 7
    assert (fdl.folder / "saved").read_text() == "SIGTERM"


def test_a_long_checkpoint_below_a_shell_is_not_cut(job):
    fdl = job("python save.py; echo unreachable > next", "saver", grace=0.1)
    fdl.terminate()
    fdl.wait(PATIENCE)
    assert (fdl.folder / "saved").read_text() == "SIGTERM"
    assert not (fdl.folder / "next").exists()


def test_a_leftover_that_ignores_the_signal_is_killed_after_the_grace(job):
    fdl = job("python hold.py deaf SIGTERM & exec python hold.py x", "deaf", "x", grace=0.3)
    fdl.terminate()
    assert fdl.wait(PATIENCE) == 143
    assert not holds(fdl, "deaf")


def test_what_is_killed_has_ended_when_fdl_goes_on():
    # To give back its memory takes a process a moment.
    program = "import time; held = bytearray(100_000_000); print(flush=True); time.sleep(600)"
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        end([process.pid], 0.0)
        assert alive([process.pid]) == []


def test_a_normal_exit_kills_nobody(job):
    fdl = job("python hold.py stays & while [ ! -e stays.pid ]; do sleep 0.05; done", "stays")
    assert fdl.wait(PATIENCE) == 0
    assert holds(fdl, "stays")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("SIGTERM", "SIGTERM"),
        pytest.param("SIGINT", "SIGTERM", marks=pytest.mark.slow),
        ("SIGTERM", "SIGINT"),
    ],
)
def test_the_second_signal_kills(job, first, second):
    fdl = job("exec python hold.py deaf SIGTERM SIGINT", "deaf")
    fdl.send_signal(getattr(signal, first))
    wait_for((fdl.folder / "deaf.heard").exists)
    time.sleep(0.5)  # soon after each other, the two would count as one
    assert fdl.poll() is None
    fdl.send_signal(getattr(signal, second))
    assert fdl.wait(PATIENCE) == 128 + getattr(signal, second)
    assert not holds(fdl, "deaf")


def test_the_program_is_killed_after_its_stop_timeout(job):
    fdl = job("exec python hold.py deaf SIGTERM", "deaf", stop_timeout=0.3)
    fdl.terminate()
    assert fdl.wait(PATIENCE) == 143
    assert not holds(fdl, "deaf")


def test_a_background_job_of_a_script_is_killed_after_its_stop_timeout_too(job):
    """A shell starts it with SIGINT ignored."""
    ignoring = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "from fdl.cli.entry import main; sys.exit(main(sys.argv[1:]))"
    )
    fdl = job(
        "exec python hold.py deaf SIGTERM", "deaf", program=("-c", ignoring), stop_timeout=0.1
    )
    fdl.terminate()
    assert fdl.wait(PATIENCE) == 143
    assert not holds(fdl, "deaf")


def test_a_killed_fdl_takes_its_job_along(job):
    fdl = job(FAMILY, "a", "b")
    # Its job, and the process that watches over it.
    children = Path(f"/proc/{fdl.pid}/task/{fdl.pid}/children")
    wait_for(lambda: len(children.read_text().split()) == 2)
    fdl.kill()
    assert fdl.wait(PATIENCE) == -9
    wait_for(lambda: not holds(fdl, "a") and not holds(fdl, "b"))


def carriers(mark):
    """The processes that have a text in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def killed_early(folder, *words, wait):
    """Kill fdl with SIGKILL after a wait, and require that it leaves no process behind."""
    mark = uuid.uuid4().hex
    fdl = subprocess.Popen(
        [sys.executable, "-m", "fdl", *words],
        cwd=folder,
        env={**os.environ, "MARK_OF_TEST": mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait(mark)
        fdl.kill()
        fdl.wait()
        wait_for(lambda: not carriers(mark), what=f"{carriers(mark)} are left")
    finally:
        for one in carriers(mark):
            os.kill(one, signal.SIGKILL)


def until(count):
    """Wait until this many processes of the test are there: at once, not after a while."""
    return lambda mark: wait_for(lambda: len(carriers(mark)) >= count)


SLEEPERS = """
commands:
  plain: {run: exec sleep 600}
  shell: {run: "sleep 600; true"}
  bare: {run: "env -i sleep 600; true"}
  chain: {needs: plain, run: 'true'}
  swept: {path: swept}
"""

SLEEPER = {"fdl.yml": SLEEPERS, "swept/fdl.yml": 'entry: sh -c "sleep 600; true"\n'}


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        # fdl, its watcher, and the job.
        (["plain"], 3),
        pytest.param(["shell"], 4, marks=pytest.mark.slow),
        # The last process has no environment, so it is found by its parent.
        (["bare"], 3),
        pytest.param(["chain"], 3, marks=pytest.mark.slow),
        (["--jobs", "2", "plain", "shell"], 8),
        (["swept", "--each", "lr=1,2"], 5),
    ],
)
def test_an_fdl_that_is_killed_as_soon_as_its_job_is_there_leaves_nothing(
    project, words, processes
):
    killed_early(project(SLEEPER), *words, wait=until(processes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "most"),
    [(["plain"], 0.15), (["shell"], 0.15), (["--jobs", "2", "plain", "shell"], 0.6)],
)
def test_an_fdl_that_is_killed_at_any_moment_leaves_nothing(project, words, most):
    folder = project(SLEEPER)
    for _ in range(30):
        killed_early(folder, *words, wait=lambda _: time.sleep(random.uniform(0, most)))


RANK = """
import os, time
open("rank" + os.environ["RANK"], "w").close()
time.sleep(600)
"""

RANKS = {
    "fdl.yml": "commands: {train: {path: train}}\n",
    "train/fdl.yml": f"entry: {sys.executable} main.py\n",
    "train/main.py": RANK,
}


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 1.0])
def test_both_ranks_end_with_an_fdl_that_is_killed_in_their_first_second(project, seconds):
    folder = project(RANKS)
    ranks = [folder / "train" / name for name in ("rank0", "rank1")]

    def wait(_):
        wait_for(lambda: any(one.exists() for one in ranks))
        if seconds:
            wait_for(lambda: all(one.exists() for one in ranks))
        time.sleep(seconds)

    killed_early(folder, "train", "--ranks", "2", wait=wait)


@pytest.mark.slow
def test_torchrun_ends_with_an_fdl_that_is_killed_before_the_ranks_start(project):
    folder = project(RANKS)
    for _ in range(10):
        words = ["train", "--ranks", "2"]
        killed_early(folder, *words, wait=lambda _: time.sleep(random.uniform(0, 1)))


# After a signal, nothing starts -----------------------------------------------------------------

CATCHER = """
import os, signal, sys, time
caught = []
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), lambda *_: caught.append(1))
ready = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ready")
open(ready, "w").close()
while not caught:
    time.sleep(0.01)
"""

SEVERAL = """
commands:
  a: {{run: exec {python} catch.py, inputs: catch.py}}
  b: {{run: 'true'}}
  n: {{needs: [b, a], run: touch further}}
  further: {{run: touch further}}
  train: {{path: train, needs: a}}
  swept: {{path: swept}}
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SIGTERM", ["n"]),
        ("SIGINT", ["n"]),
        pytest.param("SIGHUP", ["n"], marks=pytest.mark.slow),
        ("SIGTERM", ["--jobs", "1", "a", "further"]),
        pytest.param("SIGINT", ["--jobs", "1", "a", "further"], marks=pytest.mark.slow),
        ("SIGHUP", ["--jobs", "1", "a", "further"]),
        ("SIGTERM", ["--jobs", "2", "n"]),
        ("SIGTERM", ["train", "--each", "lr=1,2"]),
        ("SIGTERM", ["swept", "--each", "lr=1,2"]),
        pytest.param("SIGINT", ["swept", "--each", "lr=1,2"], marks=pytest.mark.slow),
        pytest.param("SIGHUP", ["swept", "--each", "lr=1,2"], marks=pytest.mark.slow),
        ("SIGTERM", ["plan", "--try", "train"]),
    ],
)
def test_after_a_signal_nothing_starts_even_if_the_program_ends_with_0(project, name, words):
    folder = project(
        {
            "fdl.yml": SEVERAL.format(python=sys.executable),
            "catch.py": CATCHER,
            "swept/fdl.yml": f"entry: {sys.executable} ../catch.py\n",
            "train/fdl.yml": f"entry: {sys.executable} train.py\n",
            "train/train.py": "import flodl\nopen('../further', 'w')",
        }
    )
    with fork_server.start("-m", "fdl", *words, cwd=folder, abrupt=True) as fdl:
        wait_for((folder / "ready").exists)
        (folder / "ready").unlink()
        fdl.send_signal(getattr(signal, name))
        _, err = fdl.communicate(timeout=PATIENCE)
    assert fdl.returncode == 128 + getattr(signal, name), err
    assert not (folder / "further").exists()
    assert not (folder / "ready").exists()
    assert "not run" in err or "stopped" in err or "nothing more was run" in err


def test_a_command_that_ends_with_0_after_a_signal_is_not_skipped_the_next_time(project, fdl):
    script = "trap 'exit 0' TERM; touch ready; while [ ! -e over ]; do sleep 0.01; done"
    folder = project({"fdl.yml": f'commands: {{a: {{run: "{script}", inputs: data}}}}', "data": ""})
    first = subprocess.Popen([sys.executable, "-m", "fdl", "a"], cwd=folder)
    wait_for((folder / "ready").exists)
    first.terminate()
    # Nothing follows, so its own exit code counts.
    assert first.wait(PATIENCE) == 0
    (folder / "over").touch()
    assert "fdl a runs: it has not run here yet" in fdl("a").err
    assert "fdl a skipped" in fdl("a").err


def test_stop_timeout_is_the_limit_of_everything(job):
    fdl = job(
        "python hold.py deaf SIGTERM & exec python hold.py x", "deaf", "x", stop_timeout=1,
        grace=3600,
    )  # fmt: skip
    fdl.terminate()
    assert fdl.wait(PATIENCE) == 143
    assert not holds(fdl, "deaf")


def test_a_signal_reaches_the_job_of_an_fdl_within_fdl_once(job):
    fdl = job("exec python -m fdl u", "saver")
    fdl.terminate()
    assert fdl.wait(PATIENCE) == 7
    assert (fdl.folder / "saved").read_text() == "SIGTERM"


def test_a_signal_that_comes_twice_at_once_counts_once(job):
    # However long a busy machine takes between the two.
    fdl = job("exec python save.py", "saver", program=("-c", LONG_AT_ONCE))
    fdl.terminate()
    time.sleep(0.05)
    fdl.terminate()
    assert fdl.wait(PATIENCE) == 7
    assert (fdl.folder / "saved").read_text() == "SIGTERM"


def test_the_closer_manifest_says_how_a_program_is_stopped(project, fdl):
    project(
        {
            "fdl.yml": "stop_timeout: 60\ngrace: 1\ncommands:\n"
            "  a: {run: x}\n  b: {run: x, stop_timeout: null, grace: 2.5}\n"
            "  c: {run: x, grace: null}\n"
        }
    )
    plans = [json.loads(fdl("--dry-run", "--json", name).out) for name in "abc"]
    stopped = [(plan["stop_timeout"], plan["grace"]) for plan in plans]
    assert stopped == [(60, 1), (None, 2.5), (60, 10)]
    project({"fdl.yml": "grace: -1\ncommands: {a: {run: x}}"})
    assert "fdl.yml:1:8: `grace` must be at least 0" in fdl("a").err


def test_arguments_that_are_too_long_are_measured(project, fdl):
    project({"fdl.yml": "commands: {t: {run: 'true', append: " + "x" * 200_000 + "}}"})
    done = fdl("t")
    assert done.exit == 1
    assert "Argument list too long: one argument has 200" in done.err
    assert "the limit is 131072" in done.err
    assert "hint: write the values to a file" in done.err
