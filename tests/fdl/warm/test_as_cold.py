"""A program of the warm process is in everything like one that was started."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fdl.warm.conftest import variables, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

COLD = {"FDL_WARM": "0"}


def described(done, **differs):
    found = json.loads(done.stdout)
    # Each run has its own mark, and the cold one was asked for.
    for name in ("FDL_JOB", "FDL_WARM", *differs):
        found["env"].pop(name, None)
    return found


def test_it_finds_what_a_started_program_finds(project):
    words = ("t", "describe", "--a", "b c", "ü")
    warm, cold = project.fdl(*words), project.fdl(*words, env=COLD)
    assert described(warm) == described(cold)
    assert project.is_warm()
    assert not project.is_warm(env=COLD)


def test_a_module_is_started_as_with_dash_m(cold):
    cold.write("t/tools/__init__.py", "")
    cold.write("t/tools/report.py", (cold.root / "t/main.py").read_text())
    cold.write("t/fdl.yml", "entry: python -m tools.report\n")
    cold.start()
    words = ("t", "describe", "x")
    assert described(cold.fdl(*words)) == described(cold.fdl(*words, env=COLD))
    assert cold.is_warm()
    warm, as_usual = cold.fdl("t", "raise"), cold.fdl("t", "raise", env=COLD)
    assert warm.stderr == as_usual.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("exit", "0"),
        ("exit", "7"),
        ("raise",),
        ("signal", str(int(signal.SIGKILL))),
        ("signal", str(int(signal.SIGINT))),
        ("signal", str(int(signal.SIGTERM))),
    ],
    ids=" ".join,
)
def test_it_ends_as_a_started_program_ends(project, words):
    warm, cold = project.fdl("t", *words), project.fdl("t", *words, env=COLD)
    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    assert warm.stderr == cold.stderr


@pytest.mark.parametrize("what", ["own", "held", "file"])
def test_the_work_that_objects_do_at_the_end_is_done(project, what):
    left = project.root / "t/left.txt"
    results = []
    for env in ({}, COLD):
        done = project.fdl("t", "leave", what, env=env)
        results.append((done.returncode, done.stdout, done.stderr))
        if what == "file":
            assert left.read_text() == "all of it"
            left.unlink()
    assert results[0] == results[1]
    assert "exit function" in results[0][1]


def test_streams_of_c_are_written_and_the_exit_code_is_kept(cold):
    (cold.packages / "torch.py").write_text("import random as default_generator\n")
    cold.write(
        "t/main.py",
        "import ctypes, sys, torch\nctypes.CDLL(None).printf(b'from C')\nsys.exit(3)\n",
    )
    cold.start()
    for env in ({}, COLD):
        done = cold.fdl("t", env=env)
        assert (done.returncode, done.stdout) == (3, "from C")
    assert cold.status()["starts"] == 1


def test_packages_that_have_no_work_at_the_end_are_left_as_they_are(project):
    assert project.fdl("t", "leave", "nothing", env=COLD).stdout == (
        "exit function\nheavy is taken apart\n"
    )
    assert project.fdl("t", "leave", "nothing").stdout == "exit function\n"


def test_it_reads_what_is_piped_to_it(project):
    assert project.fdl("t", "read", stdin="words\n").stdout == "read words\n\n"


@pytest.mark.parametrize("switch", ["1", "0"])
def test_variables_umask_and_descriptors_are_the_callers(project, switch):
    shell = f"umask 027; exec 5</dev/null; A=x exec {sys.executable} -m fdl t describe"
    env = {**variables(), "FDL_WARM": switch}
    done = subprocess.run(
        ["sh", "-c", shell], cwd=project.root, env=env, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert found["umask"] == 0o027
    assert found["env"]["A"] == "x"
    assert found["descriptors"] == [0, 1, 2, 5]
    assert found["cwd"] == str(project.root / "t")


def test_a_signal_that_the_caller_ignores_stays_ignored(project):
    def run(switch):
        script = f"trap '' HUP; exec {sys.executable} -m fdl t describe"
        env = {**variables(), "FDL_WARM": switch}
        return subprocess.run(
            ["sh", "-c", script], cwd=project.root, env=env, capture_output=True, text=True
        )

    warm, cold = described(run("1")), described(run("0"))
    assert "SIG_IGN" in warm["handlers"][str(int(signal.SIGHUP))]
    assert warm == cold


def test_changed_code_counts_at_once(cold):
    cold.start()
    assert json.loads(cold.fdl("t", "describe").stdout)["helper"] == 1
    cold.write("t/helper.py", "VALUE = 22\n")
    assert json.loads(cold.fdl("t", "describe").stdout)["helper"] == 22
    assert cold.is_warm()


def test_the_kernel_lists_it_under_its_own_command_line(project):
    run = project.popen("t", "wait", str(project.root / "pid"))
    wait_for(lambda: (project.root / "pid").exists() and (project.root / "pid").read_text())
    pid = int((project.root / "pid").read_text())
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    assert words == f"python main.py wait {project.root}/pid".encode()
    mark = [one for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"FDL_" in one]
    assert mark[0].startswith(f"FDL_JOB={run.pid}.".encode())
    (project.root / "t/go").touch()
    assert run.communicate()[0] == "went\n"


def test_two_runs_at_once_are_two_processes(cold):
    cold.start()
    runs = [cold.popen("t", "wait", str(cold.root / name)) for name in "ab"]
    wait_for(lambda: all((cold.root / name).exists() for name in "ab"))
    assert cold.status()["running"] == 2
    (cold.root / "t/go").touch()
    assert [one.communicate()[0] for one in runs] == ["went\n"] * 2
    assert (cold.root / "a").read_text() != (cold.root / "b").read_text()
