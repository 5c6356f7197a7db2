"""A program on a PATH that is a fork behaves as the program that was started would."""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from tests import fork_server
from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]


def start(program: str, *options: str, **more: object) -> subprocess.Popen[str]:
    """Start ``python -c PROGRAM`` from a PATH whose python is forked."""
    path = fork_server.on_path("python", (), "import decimal, json\n", os.environ)
    words = [*options, "-c", f"import os, signal, sys, time\n{program}"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    env = {**os.environ, "PATH": path, "OWN": "1"}
    return subprocess.Popen(["python", *words], **{"env": env, **pipes, **more})


def test_it_is_a_fork_with_its_own_words_folder_and_variables(tmp_path: Path) -> None:
    program = (
        "print('decimal' in sys.modules, sys.argv, os.getcwd(), os.environ['OWN'])\n"
        "print(sys.dont_write_bytecode)"
    )
    with start(program, "-u", "-B", cwd=tmp_path) as child:
        told = child.stdout.read()
    assert told == f"True ['-c'] {tmp_path} 1\nTrue\n"
    assert child.returncode == 0


def test_other_options_of_python_start_it_the_ordinary_way() -> None:
    with start("print('decimal' in sys.modules, sys.flags.optimize)", "-O") as child:
        assert child.stdout.read() == "False 1\n"


def test_the_root_can_be_a_place_of_modules_and_others_start_the_ordinary_way(
    tmp_path: Path,
) -> None:
    program = "print('decimal' in sys.modules, sys.path[1])"
    for folder, forked in ((ROOT, True), (tmp_path, False)):
        env = {**os.environ, "PYTHONPATH": str(folder)}
        path = fork_server.on_path("python", (), "import decimal, json\n", os.environ)
        with start(program, env={**env, "PATH": path}) as child:
            assert child.stdout.read() == f"{forked} {folder}\n"
        assert fork_server.can_fork(env) is forked
        told = fork_server.python("-c", "import sys; print(sys.path[:2])", env=env).stdout
        assert told == f"['', {str(folder)!r}]\n"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(3)", 3),
        ("raise ValueError('x')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_it_ends_as_the_program_does(end: str, code: int) -> None:
    with start(end, stderr=subprocess.DEVNULL) as child:
        assert child.wait(60) == code


def test_an_abrupt_one_tells_what_it_ends_with() -> None:
    program = "import atexit; atexit.register(print, 'left'); raise ValueError('x')"
    done = fork_server.python("-c", program, abrupt=True)
    assert (done.returncode, done.stdout) == (1, "left\n")
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("ValueError: x\n")


def test_its_processes_find_its_file_by_a_name_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import multiprocessing\n"
        "def work():\n    print('here', flush=True)\n"
        "if __name__ == '__main__':\n"
        "    one = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    one.start()\n    one.join()\n"
    )
    done = fork_server.python("program.py", cwd=tmp_path, torch=True)
    assert (done.stdout, done.stderr) == ("here\n", "")


def test_signals_reach_the_program() -> None:
    program = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("ready", flush=True)
# Short sleeps: one that begins just after a signal arrived does not see it.
for _ in range(600):
    time.sleep(0.1)
"""
    with start(program) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 5


def test_a_killed_one_takes_the_program_with_it() -> None:
    with start("print(os.getpid(), flush=True)\ntime.sleep(60)") as child:
        pid = int(child.stdout.readline())
        assert pid != child.pid
        child.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_further_descriptors_keep_their_numbers() -> None:
    reader, writer = os.pipe()
    with start(f"os.write({writer}, b'here')", pass_fds=[writer]):
        os.close(writer)
        assert os.read(reader, 10) == b"here"
    os.close(reader)


SHARES = """
import os, subprocess, sys
from tests import fork_server

path = fork_server.on_path("python", (), "import decimal, json\\n", os.environ)
words = ["python", "-c", "import os; print(os.getppid(), flush=True)"]
subprocess.run(words, env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL)
sys.stdin.read()
"""


def share(run: str) -> subprocess.Popen[str]:
    """A process of a run of tests: prints who forks its programs, and ends with its input."""
    return subprocess.Popen(
        [sys.executable, "-c", SHARES],
        cwd=ROOT,
        env={**os.environ, "PYTEST_XDIST_TESTRUNUID": run},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_processes_of_a_run_share_one_that_ends_with_the_last_of_them() -> None:
    run = uuid.uuid4().hex
    with share(run) as first, share(run) as second:
        server = first.stdout.readline()
        assert second.stdout.readline() == server
        first.communicate()
        assert Path("/proc", server.strip()).exists()
    wait_for(lambda: not list(Path(tempfile.gettempdir()).glob(f"fork-{run[:16]}-*")))


def test_it_has_its_own_folder_for_temporary_files(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    program = "import tempfile; print(tempfile.gettempdir())"
    assert fork_server.python("-c", program, env=env, torch=True).stdout == f"{tmp_path}\n"


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are forked on Linux")
