"""Processes: exit codes, signals, keys pressed on a terminal, pipes that close early."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.fdl.programs import COUNTER
from tests.fdl.terminal import PATIENCE, Terminal
from tests.waiting import wait_for

ON_TERMINAL_BECOME = "import os; command = {command}; os.execvp(command[0], command)"
ON_TERMINAL_FDL = (
    "import sys; from fdl.run import posix; from fdl.cli.entry import main; {setup}; "
    "sys.exit(main())"
)


@pytest.mark.case("cli", 23)
def test_the_scripts_exit_code_is_ours(project, fdl):
    project({"fdl.yml": "commands: {seven: {run: exit 7}, fine: {run: 'true'}}"})
    assert fdl("seven").exit == 7
    assert fdl("fine").exit == 0


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130), ("KILL", 137)])
def test_death_by_signal_is_128_and_its_number(project, fdl, name, code):
    project({"fdl.yml": f"commands: {{die: {{run: kill -{name} $$}}}}"})
    assert fdl("die").exit == code


def test_children_do_not_inherit_pythons_deaf_ear_for_broken_pipes(project, fdl):
    project({"fdl.yml": "commands: {t: {run: yes | head -n 1}}"})
    done = fdl("t")
    assert (done.exit, done.out, done.err) == (0, "y\n", "")


def test_a_reader_that_goes_early_is_met_in_silence(project):
    folder = project({"fdl.yml": "commands: {t: {run: yes}}"})
    script = f"{sys.executable} -m fdl $1 | head -n 1; echo ${{PIPESTATUS[0]}}"
    for words, code in (("t", 141), ("--dry-run t", 0), ("--help", 0)):
        done = subprocess.run(
            ["bash", "-c", script.replace("$1", words)], cwd=folder, capture_output=True, text=True
        )
        assert done.stderr == ""
        assert done.stdout.splitlines()[1] == str(code)


def test_a_message_nobody_reads_changes_neither_what_runs_nor_the_exit_code(project):
    folder = project({"fdl.yml": "entry: touch ran\ncommands: {p: {options: {version: true}}}"})
    read, write = os.pipe()
    os.close(read)
    for word, code, printed in (("p", 0, "touch"), ("nonsense", 1, "")):
        for unbuffered in ("", "1"):
            done = subprocess.run(
                [sys.executable, "-m", "fdl", word],
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
                stderr=write,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert (done.returncode, done.stdout[: len(printed)]) == (code, printed)
    os.close(write)


# Signals ------------------------------------------------------------------------------------


def counting_project(project):
    return project({"fdl.yml": f"commands: {{t: {{run: exec {sys.executable} count.py}}}}",
                    "count.py": COUNTER})  # fmt: skip


def test_ctrl_c_reaches_the_child_once_and_its_exit_code_is_ours(project):
    with Terminal("t", cwd=counting_project(project)) as terminal:
        terminal.read_until("ready")
        terminal.press("\x03")
        assert terminal.finish() == 7
    assert terminal.text.replace("^C", "").split() == ["ready", "SIGINT"]


def test_ctrl_c_ends_a_command_with_130(project):
    # A shell that forks at the moment of the key press can lose it, so it becomes the program.
    folder = project({"fdl.yml": "commands: {t: {run: echo ready; exec sleep 60}}"})
    with Terminal("t", cwd=folder) as terminal:
        terminal.read_until("ready")
        terminal.press("\x03")
        assert terminal.finish() == 130
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize(
    "name",
    ["SIGTERM", "SIGINT", "SIGUSR1"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("SIGHUP", "SIGUSR2")],
)
def test_a_signal_to_fdl_alone_is_handed_on_once(project, name):
    process = subprocess.Popen(
        [sys.executable, "-m", "fdl", "t"],
        cwd=counting_project(project),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (7, f"{name}\n")


def test_sigterm_ends_a_command_that_does_not_mind_with_143(project):
    folder = project({"fdl.yml": "commands: {t: {run: echo ready; exec sleep 60}}"})
    process = subprocess.Popen(
        [sys.executable, "-m", "fdl", "t"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(PATIENCE) == 143


def test_a_signal_ignored_by_our_parent_stays_ignored(project):
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    folder = project({"fdl.yml": f"commands: {{t: {{run: {sys.executable} check.py}}}}"})
    project({"check.py": code})
    done = subprocess.run(
        ["sh", "-c", f"trap '' HUP; exec {sys.executable} -m fdl t"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True\n"


def test_an_interrupt_sent_to_fdl_alone_reaches_the_child_on_a_terminal_too(project):
    with Terminal("t", cwd=counting_project(project)) as terminal:
        terminal.read_until("ready")
        os.kill(terminal.pid, signal.SIGINT)
        assert terminal.finish() == 7
    assert terminal.text.split() == ["ready", "SIGINT"]


def test_a_terminal_that_closes_ends_the_command(project):
    # What it has to say cannot go to the terminal.
    counter = COUNTER.replace("flush=True", "file=sys.stderr, flush=True")
    command = f"exec {sys.executable} count.py 2> said"
    folder = project({"fdl.yml": f"commands: {{t: {{run: {command}}}}}", "count.py": counter})
    terminal = Terminal("t", cwd=folder)
    wait_for(lambda: (folder / "said").exists() and (folder / "said").read_text())
    terminal.hang_up()
    assert terminal.finish() == 7
    assert (folder / "said").read_text() == "ready\nSIGHUP\n"


# Ctrl-C twice -------------------------------------------------------------------------------

STUBBORN = "trap '' INT; echo ready; "


def alive(pid):
    """Whether a process still runs; one that has ended and waits to be collected does not."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return status.stdout.strip()[:1] not in ("", "Z")


def pids(folder):
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def test_a_second_ctrl_c_ends_a_child_that_ignores_the_first(project):
    folder = project(
        {"fdl.yml": "commands:\n  t:\n    run: |\n"
                    f"      echo $$ > pids; {STUBBORN} exec sleep 60\n"}
    )  # fmt: skip
    with Terminal("t", cwd=folder) as terminal:
        terminal.read_until("ready")
        assert terminal.press_until_it_ends("\x03") == 130
    assert "Traceback" not in terminal.text
    assert not any(map(alive, pids(folder)))


def test_a_second_ctrl_c_leaves_no_grandchild_behind(project):
    script = "sleep 61 & echo $! >> pids; (sleep 62 & echo $! >> pids; sleep 63) & echo $! >> pids"
    whole = "while [ $(wc -l < pids) -lt 3 ]; do sleep 0.01; done"
    folder = project(
        {"fdl.yml": "commands: {t: {run: sh family.sh}}",
         "family.sh": f"trap '' INT; {script}; {whole}; echo ready; wait; sleep 64\n"}
    )  # fmt: skip
    with Terminal("t", cwd=folder) as terminal:
        terminal.read_until("ready")
        assert terminal.press_until_it_ends("\x03") == 130
    family = pids(folder)
    assert len(family) == 3
    assert not any(map(alive, family))


def test_a_second_ctrl_c_ends_fdl_within_fdl_and_spares_who_started_it(project):
    fdl = f"{sys.executable} -m fdl"
    folder = project(
        {"fdl.yml": f"""
         commands:
           outer: {{run: {fdl} inner; echo unreachable}}
           inner: {{run: sh stubborn.sh}}
         """,
         "stubborn.sh": f"echo $$ > pids; {STUBBORN} sleep 60; sleep 60",
         "script.sh": f"trap : INT\n{fdl} outer\necho exit $?\n"}
    )  # fmt: skip
    become = ON_TERMINAL_BECOME.format(command=["sh", "script.sh"])
    with Terminal(cwd=folder, program=become) as terminal:
        terminal.read_until("ready")
        assert terminal.press_until_it_ends("\x03") == 0
    assert terminal.text.replace("^C", "").split() == ["ready", "exit", "130"]
    assert not any(map(alive, pids(folder)))


def test_a_second_ctrl_c_spares_who_started_fdl_also_when_the_shell_between_them_is_gone(project):
    folder = project(
        {"fdl.yml": "commands: {t: {run: echo $PPID > fdl; sh stubborn.sh}}",
         "stubborn.sh": f"echo $$ > pids; {STUBBORN} sleep 60; sleep 60",
         "between.sh": f"trap : INT\necho $$ > between\n{sys.executable} -m fdl t\n:\n",
         "script.sh": "trap : INT\nsh between.sh\n"
                      "while [ ! -e over ]; do sleep 0.1; done\necho spared\n"}
    )  # fmt: skip
    become = ON_TERMINAL_BECOME.format(command=["sh", "script.sh"])
    with Terminal(cwd=folder, program=become) as terminal:
        terminal.read_until("ready")
        terminal.press("\x03")
        terminal.read_until("^C")
        time.sleep(0.5)
        os.kill(int((folder / "between").read_text()), signal.SIGKILL)
        while alive(int((folder / "fdl").read_text())):
            terminal.press("\x03")
            time.sleep(0.3)
        (folder / "over").touch()
        assert terminal.finish() == 0
    assert terminal.text.replace("^C", "").split()[-1] == "spared"
    assert not any(map(alive, pids(folder)))


PRESSES = """
import os, signal, sys, termios, time, tty
mode = sys.argv[1]
if mode == "keys":
    tty.setcbreak(0)
seen = []
def say(*_):
    seen.append(1)
    os.write(1, b"press %d\\n" % len(seen))  # `print` below may still be at work
signal.signal(signal.SIGINT, say)
print("press 0", flush=True)
while len(seen) < 3:
    time.sleep(0.01)
sys.exit(7)
"""


def press_thrice(terminal):
    for count in range(3):
        terminal.read_until(f"press {count}")
        terminal.press("\x03")
    terminal.read_until("press 3")


def test_a_prompt_may_be_interrupted_any_number_of_times(project):
    folder = project({"fdl.yml": f"commands: {{t: {{run: exec {sys.executable} presses.py keys}}}}",
                      "presses.py": PRESSES})  # fmt: skip
    with Terminal("t", cwd=folder) as terminal:
        press_thrice(terminal)
        assert terminal.finish() == 7


def test_presses_far_apart_are_first_presses_each(project):
    folder = project({"fdl.yml": f"commands: {{t: {{run: exec {sys.executable} presses.py x}}}}",
                      "presses.py": PRESSES})  # fmt: skip
    # The shortest distance that counts as far, so that nobody has to wait for it.
    impatient = ON_TERMINAL_FDL.format(setup="posix._TWICE_WITHIN_S = -1")
    with Terminal("t", cwd=folder, program=impatient) as terminal:
        press_thrice(terminal)
        assert terminal.finish() == 7


# Ctrl-Z -------------------------------------------------------------------------------------


def test_ctrl_z_stops_and_fg_continues_as_in_any_shell(project):
    folder = project({"fdl.yml": f"commands: {{t: {{run: exec {sys.executable} job.py}}}}",
                      "job.py": JOB})  # fmt: skip
    become = ON_TERMINAL_BECOME.format(command=["bash", "--norc", "--noprofile", "-i"])
    with Terminal(cwd=folder, program=become, env={"PS1": "> "}) as terminal:
        terminal.press(f"{sys.executable} -m fdl t; echo exit=$?\n")
        terminal.read_until("ready")
        terminal.press("\x1a")
        terminal.read_until("Stopped")
        # The shell sees that fdl has stopped; its job may be on the way there on a busy machine.
        limit = time.monotonic() + 60
        while states_of((folder / "pids").read_text()) != ["T", "T"]:
            assert time.monotonic() < limit
            time.sleep(0.05)
        terminal.press("fg; echo again=$?\n")
        terminal.read_until("continued")
        terminal.press("\x03")
        terminal.read_until("again=7")
        terminal.press("exit\n")
        assert terminal.finish() == 0


def states_of(pids):
    """The first letter of the state of each process."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", pids], capture_output=True, text=True)
    return [state[0] for state in told.stdout.split()]


JOB = """
import os, signal, sys, time
open("pids", "w").write(f"{os.getpid()},{os.getppid()}")
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"continued\\n"))
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
