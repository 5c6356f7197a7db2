"""The warm process: who may speak with it, and when it ends."""

import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.fdl.warm.conftest import is_alive, socket_of, variables, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_session(cold):
    assert "has no warm process; `fdl warm` starts one" in cold.fdl("warm", "status").stderr
    first = cold.fdl("warm")
    assert f"{cold.root}: warm process for `fdl t`" in first.stdout
    assert "already running" in cold.fdl("warm").stdout
    cold.is_warm()
    assert "1 starts, 0 running, ends after 30m" in cold.fdl("warm", "status").stdout
    assert cold.fdl("warm", "stop").stdout == "ended 1 warm process\n"
    assert not cold.is_warm()
    assert list((cold.root / ".fdl/warm").iterdir()) == []


def test_its_socket_is_for_its_user_alone(project):
    path = socket_of(project)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_gets_no_answer(cold):
    cold.start()
    path = socket_of(cold)
    path.parent.chmod(0o777)
    path.chmod(0o777)
    ask = textwrap.dedent(
        f"""
        import os, socket
        os.setgid(65534); os.setuid(65534)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect({str(path)!r})
        body = b'{{"do":"status"}}'
        connection.sendall(len(body).to_bytes(4, "big") + body)
        try:
            print(connection.recv(100))
        except ConnectionResetError:
            print(b"")
        """
    )
    # The interpreter may lie in a folder of root alone.
    pid_read, pid_write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(pid_write, 1)
        try:
            exec(ask, {})
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.close(pid_write)
    os.waitpid(child, 0)
    connection = socket.socket(socket.AF_UNIX)
    assert os.read(pid_read, 100) in (b"b''\n", b"")
    connection.close()
    os.close(pid_read)
    assert cold.status()["starts"] == 0


def test_it_keeps_none_of_its_callers_variables(cold):
    done = cold.fdl("warm", env={"SECRET_TOKEN": "hidden-value", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0
    pid = cold.status()["pid"]
    words = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"hidden-value" not in words
    assert b"OMP_NUM_THREADS=1" in words
    cold.is_warm(env={"OTHER_TOKEN": "passing-by", "OMP_NUM_THREADS": "1"})
    assert b"passing-by" not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.slow
def test_it_ends_when_it_is_idle(cold):
    pid = cold.start("--idle", "0.01")["pid"]
    wait_for(lambda: not is_alive(pid))
    assert list((cold.root / ".fdl/warm").iterdir()) == []
    assert not cold.is_warm()


def test_it_ends_when_the_manifest_goes(cold):
    pid = cold.start()["pid"]
    (cold.root / "fdl.yml").unlink()
    wait_for(lambda: not is_alive(pid))


@pytest.mark.slow
def test_a_killed_server_does_not_end_its_runs(cold):
    pid = cold.start()["pid"]
    run = cold.popen("t", "wait", str(cold.root / "pid"))
    wait_for((cold.root / "pid").exists)
    os.kill(pid, signal.SIGKILL)
    (cold.root / "t/go").touch()
    assert run.communicate()[0] == "went\n"
    assert run.returncode == 0
    assert not cold.is_warm()


def test_a_killed_client_takes_its_run_along(cold):
    cold.start()
    run = cold.popen("t", "wait", str(cold.root / "pid"))
    wait_for(lambda: (cold.root / "pid").exists() and (cold.root / "pid").read_text())
    pid = int((cold.root / "pid").read_text())
    run.kill()
    run.communicate()
    wait_for(lambda: not is_alive(pid))


def test_a_killed_keeper_is_an_error_that_says_so(cold):
    cold.start()
    run = cold.popen("t", "wait", str(cold.root / "pid"))
    wait_for(lambda: (cold.root / "pid").exists() and (cold.root / "pid").read_text())
    pid = int((cold.root / "pid").read_text())
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    out, _ = run.communicate()
    assert run.returncode == 1
    assert "so the exit code is unknown" in out
    wait_for(lambda: not is_alive(pid))


@pytest.mark.slow
def test_a_server_that_does_not_answer_costs_a_moment(cold):
    pid = cold.start()["pid"]
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    assert not cold.is_warm()
    assert time.monotonic() - began < 60
    os.kill(pid, signal.SIGCONT)
    wait_for(cold.is_warm)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_fdl_reaches_the_program(project, number):
    (project.root / "pid").unlink(missing_ok=True)
    run = project.popen("t", "wait", str(project.root / "pid"))
    wait_for(lambda: (project.root / "pid").exists() and (project.root / "pid").read_text())
    run.send_signal(number)
    run.communicate()
    assert run.returncode == 128 + number


def test_an_interpreter_that_is_a_script_is_refused(cold):
    python = cold.root / ".venv/bin/python"
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "fdl", "warm"],
        cwd=cold.root,
        env=variables(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "is a script that chooses an interpreter at each start" in done.stderr


def test_two_calls_at_once_leave_one_process(cold):
    heavy = cold.packages / "heavy.py"
    heavy.write_text(f"{heavy.read_text()}\nimport time; time.sleep(0.3)\n")
    calls = [cold.popen("warm") for _ in range(3)]
    texts = sorted(one.communicate()[0] for one in calls)
    assert [one.returncode for one in calls] == [0, 0, 0]
    assert sum("warm process for" in one for one in texts) == 1
    assert sum("already running" in one for one in texts) == 2
    assert cold.fdl("warm", "stop").stdout == "ended 1 warm process\n"


def test_it_holds_what_a_package_says_that_its_programs_import_later(cold):
    heavy = cold.packages / "heavy.py"
    heavy.write_text(f"{heavy.read_text()}\n__warm_imports__ = ('later', 'absent', 'heavy')\n")
    (cold.packages / "later.py").write_text("__warm_imports__ = ('last',)\n")
    (cold.packages / "last.py").touch()
    imports = cold.start()["imports"]
    assert [one for one in imports if one in ("heavy", "later", "absent", "last")] == [
        "heavy", "later", "last",
    ]  # fmt: skip
    assert cold.is_warm()
