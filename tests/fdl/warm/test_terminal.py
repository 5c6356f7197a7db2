"""A program of the warm process on a terminal: keys, size, stop and continue."""

import sys
import termios
from pathlib import Path

import pytest

from tests.fdl.terminal import Terminal
from tests.fdl.warm.conftest import variables, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PROGRAM = """
import heavy, os, signal, sys, time

def main(do):
    print("warm", heavy.LOADED_BY != os.getpid())
    if do == "input":
        print("said", input("name? "))
    elif do == "size":
        signal.signal(signal.SIGWINCH, lambda *_: print("now", *os.get_terminal_size(), flush=True))
        print(*os.get_terminal_size(), flush=True)
        while True:
            time.sleep(0.02)
    elif do == "loop":
        while True:
            time.sleep(0.02)
    elif do == "heed":
        try:
            print("heeds", flush=True)
            while True:
                time.sleep(0.02)
        except KeyboardInterrupt:
            print("heeded", flush=True)
            sys.exit(5)
    elif do == "raw":
        import tty
        tty.setcbreak(0)
        print("press", flush=True)
        print("got", repr(os.read(0, 1)))

main(sys.argv[1])
"""


@pytest.fixture(scope="module")
def seen(project):
    project.write("t/main.py", PROGRAM)
    return project


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def run_of(fdl):
    """The program of a client: what carries its mark."""
    from fdl.run.tree import mark_of

    for one in Path("/proc").iterdir():
        if one.name.isdigit() and mark_of(int(one.name)).startswith(f"{fdl}."):
            return int(one.name)
    return 0


def test_it_asks_on_the_terminal(seen):
    with seen.terminal("t", "input") as terminal:
        terminal.read_until("name? ")
        terminal.press("Ada\n")
        assert terminal.finish() == 0
        assert "warm True" in terminal.text
        assert "said Ada" in terminal.text


def test_ctrl_c_ends_it_with_its_own_code(seen):
    with seen.terminal("t", "heed") as terminal:
        terminal.read_until("heeds")
        wait_for(lambda: run_of(terminal.pid))
        terminal.press("\x03")
        assert terminal.finish() == 5
        assert terminal.text.count("heeded") == 1


def test_ctrl_c_ends_it_as_an_interrupted_program(seen):
    with seen.terminal("t", "loop") as terminal:
        terminal.read_until("warm True")
        terminal.press("\x03")
        assert terminal.finish() == 130
        assert terminal.text.count("KeyboardInterrupt") == 1


def test_it_knows_the_size_and_its_changes(seen):
    with seen.terminal("t", "size", size=(20, 70)) as terminal:
        terminal.read_until("70 20")
        termios.tcsetwinsize(terminal._master, (30, 90))
        terminal.read_until("now 90 30")
        terminal.press("\x03")
        assert terminal.finish() == 130


def test_it_reads_single_keys(seen):
    with seen.terminal("t", "raw") as terminal:
        terminal.read_until("press")
        terminal.press("x")
        assert terminal.finish() == 0
        assert "got b'x'" in terminal.text


# A shell with job control: it sees its job stop, and continues it in the foreground.
SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if not job:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "fdl", "t", "loop"])
_, status = os.waitpid(job, os.WUNTRACED)
os.tcsetpgrp(0, os.getpgrp())
print("shell:", os.WIFSTOPPED(status), job, "waits", flush=True)
sys.stdin.readline()
os.tcsetpgrp(0, job)
os.killpg(job, signal.SIGCONT)
print("shell: continued", flush=True)
_, status = os.waitpid(job, os.WUNTRACED)
print("shell: ended", os.waitstatus_to_exitcode(status), flush=True)
"""


def test_ctrl_z_stops_it_and_the_shell_continues_it(seen):
    with Terminal(cwd=seen.root, env={**variables(), "CI": ""}, program=SHELL) as terminal:
        terminal.read_until("warm True")
        terminal.press("\x1a")
        terminal.read_until(" waits")
        fdl = int(terminal.text.split("shell: True")[1].split()[0])
        program = run_of(fdl)
        wait_for(lambda: state(program) == "T")
        terminal.press("\n")
        terminal.read_until("shell: continued")
        wait_for(lambda: state(program) != "T")
        terminal.press("\x03")
        terminal.read_until("shell: ended 130")
