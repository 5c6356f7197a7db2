"""When a program is started without the warm process, and silently."""

import os
import resource
import subprocess
import sys

import pytest

from fdl.warm import client, facts, wire
from tests.fdl.warm.conftest import socket_of, variables

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def last_reason(project):
    return project.status()["last_cold"]


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "LD_BIND_NOW", "CUDA_VISIBLE_DEVICES", "LC_ALL"]
)
def test_another_value_of_a_variable_that_compiled_code_may_read(project, name):
    value = "C" if name == "LC_ALL" else "17"
    assert not project.is_warm(env={name: value})
    assert last_reason(project) == f"the variable {name} differs"
    assert project.is_warm()


def test_another_value_of_a_variable_that_an_import_reads(cold):
    heavy = cold.packages / "heavy.py"
    heavy.write_text(f"{heavy.read_text()}\nCOLOUR = os.environ.get('COLOUR')\n")
    cold.start()
    assert cold.is_warm(env={"SHAPE": "round"})
    assert not cold.is_warm(env={"COLOUR": "red"})
    assert last_reason(cold) == "the variable COLOUR differs"


def test_a_variable_that_an_import_sets_is_set(cold):
    heavy = cold.packages / "heavy.py"
    heavy.write_text(f"{heavy.read_text()}\nos.environ.setdefault('MADE', 'by heavy')\n")
    cold.start()
    assert cold.is_warm()
    assert '"MADE": "by heavy"' in cold.fdl("t", "describe").stdout


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID", "RANK"])
def test_a_batch_scheduler(project, name):
    assert not project.is_warm(env={name: "1"})


def before(change):
    """What a start after a change of the calling process prints."""

    def run(project):
        done = subprocess.run(
            [sys.executable, "-m", "fdl", "t", "warm"],
            cwd=project.root,
            env=variables(),
            capture_output=True,
            text=True,
            preexec_fn=change,
        )
        assert done.stderr == ""
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda: os.nice(3), "nice or scheduling"),
        (lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)), "limits"),
        (lambda: os.sched_setaffinity(0, [0]), "credentials or processors"),
        (lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)), "nice or scheduling"),
    ],
    ids=["nice", "limits", "processors", "scheduler"],
)
def test_another_limit_or_priority(project, change, reason):
    if reason == "limits" and resource.getrlimit(resource.RLIMIT_CORE) == (0, 0):
        pytest.skip("the limit is 0 already")
    if len(os.sched_getaffinity(0)) == 1 and "processors" in reason:
        pytest.skip("there is one processor")
    assert before(change)(project) == "False\n"
    assert last_reason(project) == f"{reason} differs"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop a capability")
def test_other_namespaces_and_capabilities(project):
    for words in (["unshare", "--uts"], ["setpriv", "--bounding-set=-chown"]):
        done = subprocess.run(
            [*words, sys.executable, "-m", "fdl", "t", "warm"],
            cwd=project.root,
            env=variables(),
            capture_output=True,
            text=True,
        )
        assert done.stdout == "False\n", done
        assert last_reason(project) in (
            "namespace uts differs",
            "credentials or processors differs",
        )


def test_a_package_that_was_installed_or_changed(cold):
    cold.start()
    assert cold.is_warm()
    (cold.packages / "other").mkdir()
    assert not cold.is_warm()
    assert last_reason(cold) == f"{cold.packages} has changed"


def test_a_changed_file_of_an_imported_package(cold):
    cold.start()
    (cold.packages / "heavy.py").write_text(f"{(cold.packages / 'heavy.py').read_text()}\nMORE = 1")
    assert not cold.is_warm()
    assert last_reason(cold) == f"{cold.packages}/heavy.py has changed"


def test_another_interpreter(cold):
    cold.start()
    (cold.root / ".venv/pyvenv.cfg").write_text(
        (cold.root / ".venv/pyvenv.cfg").read_text() + "prompt = new\n"
    )
    assert not cold.is_warm()
    assert last_reason(cold) == "the interpreter is another one"


def test_a_module_of_the_project_with_the_name_of_a_package(cold):
    cold.start()
    cold.write("t/heavy.py", "LOADED_BY = 0\n")
    assert cold.fdl("t", "describe").returncode == 0
    assert last_reason(cold) == f"{cold.root}/t/heavy.py would come first"


def test_flags_of_the_interpreter(cold):
    cold.write("t/fdl.yml", "entry: python main.py\ncommands:\n  q: {description: Q}\n")
    cold.start()
    cold.write("t/fdl.yml", "entry: python -O main.py\n")
    assert not cold.is_warm()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("print('hello')", "it prints `hello`"),
        ("import sys; sys.stderr.isatty()", "it asks whether there is a terminal"),
        ("dict(os.environ)", "it reads all variables"),
        (
            "import threading\nthreading.Thread(target=lambda: __import__('time').sleep(60), "
            "daemon=True).start()",
            "1 threads have started",
        ),
    ],
    ids=["prints", "terminal", "environment", "threads"],
)
def test_an_import_that_a_fork_would_miss_is_left_to_the_program(cold, text, why):
    heavy = cold.packages / "heavy.py"
    (cold.packages / "light.py").write_text("import os\nLOADED_BY = os.getpid()\n")
    cold.write("t/main.py", f"import light\n{(cold.root / 't/main.py').read_text()}")
    heavy.write_text(f"{heavy.read_text()}\n{text}\n")
    done = cold.fdl("warm")
    assert f"`heavy` is imported at each start: {why}" in done.stderr
    assert "light" in cold.status()["imports"]
    assert "heavy" not in cold.status()["imports"]


def test_nothing_to_hold_is_said(cold):
    cold.write("t/main.py", "print(1)\n")
    done = cold.fdl("warm")
    assert done.returncode == 1
    assert "import no package that a warm process could hold" in done.stderr


def test_every_other_fact_that_a_process_inherits(project):
    """What the tests cannot change for real: cgroups, security labels, memory policies."""
    mine = facts.facts()
    assert {"cgroup", "memory policy", "security label", "namespace mnt"} <= mine.keys()
    python = str(project.root / ".venv/bin/python")
    request = {
        "do": "run",
        "version": client.version(),
        "interpreter": facts.interpreter(python),
        "env": variables(),
    }
    for name in mine:
        connection = wire.connect(str(socket_of(project)), 10)
        wire.send(connection, {**request, "facts": {**mine, name: "another"}})
        assert wire.receive(connection)[0] == {"cold": f"{name} differs"}
        connection.close()
