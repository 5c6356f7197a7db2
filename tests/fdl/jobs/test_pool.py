"""`fdl --jobs N A B`: several commands side by side, their lines, signals, GPUs and exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fdl.hardware.fake_nvml import Slice, card, nvidia
from tests.fdl.programs import COUNTER
from tests.fdl.terminal import PATIENCE, Terminal
from tests.waiting import wait_for


def table(text):
    """The rows of the summary, as job -> state and exit code."""
    lines = text.splitlines()
    heads = next(place for place, line in enumerate(lines) if line.startswith("job "))
    return {row[0]: row[1:3] for row in map(str.split, lines[heads + 1 :])}


def state(pid):
    """The letter of a process in the process table: T for a stopped one."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_lines_stand_behind_their_command_and_on_their_stream(project, fdl):
    project(
        {
            "fdl.yml": """
            commands:
              lint: {run: "echo fine; echo careful >&2"}
              tests: {run: "printf 'half a line'"}
            """
        }
    )
    done = fdl("--jobs", "2", "lint", "tests")
    assert done.exit == 0
    assert sorted(done.out.splitlines()) == ["lint  | fine", "tests | half a line"]
    assert "lint  | careful" in done.err.splitlines()
    assert table(done.err) == {"lint": ["done", "0"], "tests": ["done", "0"]}


def test_a_line_that_is_written_over_is_printed_as_a_terminal_shows_it(project, fdl):
    bar = "printf '10%%\\r99%%\\r\\nlast\\r\\n'"
    project({"fdl.yml": f"commands:\n  t: {{run: {json.dumps(bar)}}}\n  u: {{run: 'true'}}"})
    assert fdl("--jobs", "2", "t", "u").out == "t | 99%\nt | last\n"


def test_commands_run_at_the_same_time(project, fdl):
    # Each waits for the other: one after the other, they would wait for ever.
    meet = "touch {0}; while [ ! -e {1} ]; do sleep 0.01; done; echo met"
    a, b = meet.format("a.there", "b.there"), meet.format("b.there", "a.there")
    project({"fdl.yml": f"commands: {{a: {{run: '{a}'}}, b: {{run: '{b}'}}}}"})
    assert sorted(fdl("--jobs", "2", "a", "b").out.splitlines()) == ["a | met", "b | met"]


def test_one_at_once_keeps_the_order(project, fdl):
    project({"fdl.yml": "commands: {a: {run: 'sleep 0.1; echo a'}, b: {run: echo b}}"})
    assert fdl("--jobs", "1", "a", "b").out == "a | a\nb | b\n"
    assert fdl("--jobs", "1", "b", "a").out == "b | b\na | a\n"


def test_the_first_failure_stops_the_rest_and_its_exit_code_is_ours(project, fdl):
    project(
        {
            "fdl.yml": """
            commands:
              bad: {run: "while [ ! -e started ]; do sleep 0.01; done; exit 3"}
              slow: {run: "touch started; exec sleep 600"}
              later: {run: touch later}
            """
        }
    )
    done = fdl("--jobs", "2", "slow", "bad", "later")
    assert done.exit == 3
    assert table(done.err) == {
        "slow": ["stopped", "143"],
        "bad": ["failed", "3"],
        "later": ["stopped"],
    }


@pytest.mark.parametrize(
    "name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow), "SIGHUP"]
)
def test_a_signal_reaches_every_job_once_and_starts_no_further_one(project, name):
    counting = f"{{run: exec {sys.executable} count.py}}"
    folder = project(
        {
            "fdl.yml": f"commands: {{a: {counting}, b: {counting}, c: {{run: touch c}}}}",
            "count.py": COUNTER,
        }
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "fdl", "--jobs", "2", "a", "b", "c"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        ready = {process.stdout.readline(), process.stdout.readline()}
        assert ready == {"a | ready\n", "b | ready\n"}
        process.send_signal(getattr(signal, name))
        out, err = process.communicate(timeout=PATIENCE)
    assert sorted(out.splitlines()) == [f"a | {name}", f"b | {name}"]
    assert table(err) == {"a": ["stopped", "7"], "b": ["stopped", "7"], "c": ["stopped"]}
    assert process.returncode == 128 + getattr(signal, name)
    assert not (folder / "c").exists()


def test_ctrl_c_on_a_terminal_reaches_every_job_once(project):
    folder = project(
        {
            "fdl.yml": f"""
            commands:
              a: {{run: exec {sys.executable} count.py}}
              b: {{run: 'true'}}
            """,
            "count.py": COUNTER,
        }
    )
    with Terminal("--jobs", "2", "a", "b", cwd=folder) as terminal:
        terminal.read_until("ready")
        terminal.press("\x03")
        assert terminal.finish() == 130
    assert terminal.text.count("SIGINT") == 1
    # The names are coloured there.
    assert "\x1b[36ma\x1b[0m | " in terminal.text


@pytest.mark.skipif(sys.platform != "linux", reason="reads the state of processes from /proc")
def test_ctrl_z_stops_the_jobs_and_they_continue_with_fdl(project):
    # Not a shell loop: a shell whose new child is stopped early waits in another state.
    folder = project(
        {
            "fdl.yml": f"""
            commands:
              a: {{run: exec {sys.executable} wait.py}}
              b: {{run: 'true'}}
            """,
            "wait.py": """
            import os, time

            print(os.getpid(), flush=True)
            while not os.path.exists("go"):
                time.sleep(0.01)
            print("gone")
            """,
        }
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "fdl", "--jobs", "2", "a", "b"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        job = int(process.stdout.readline().removeprefix("a | "))
        process.send_signal(signal.SIGTSTP)
        try:
            for pid in (job, process.pid):
                wait_for(lambda pid=pid: state(pid) == "T")
        finally:
            (folder / "go").touch()
            process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "a | gone\n")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no parent-death signal")
def test_killing_fdl_ends_its_jobs(project):
    folder = project(
        {"fdl.yml": "commands: {a: {run: echo $PPID; exec sleep 600}, b: {run: 'true'}}"}
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "fdl", "--jobs", "2", "a", "b"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        job = int(process.stdout.readline().removeprefix("a | "))
        process.kill()
    wait_for(lambda: not Path(f"/proc/{job}").exists())


def test_a_daemon_that_keeps_the_stream_open_is_not_waited_for(project, fdl):
    up = "sleep 600 & echo $! > pid; echo up"
    folder = project({"fdl.yml": f"commands: {{up: {{run: '{up}'}}, b: {{run: 'true'}}}}"})
    done = fdl("--jobs", "2", "up", "b")
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    assert (done.exit, done.out) == (0, "up | up\n")


# GPUs ---------------------------------------------------------------------------------------


def devices(project, fdl, tmp_path, cards, each, env=None, jobs="4"):
    """The devices that four commands see, started as many at once as fit."""
    names = ("a", "b", "c", "d")
    one = "{run: echo $CUDA_VISIBLE_DEVICES}"
    project({"fdl.yml": f"commands: {{{', '.join(f'{name}: {one}' for name in names)}}}"})
    machine = {**nvidia(tmp_path / "nvidia", cards), **(env or {})}
    done = fdl("--jobs", jobs, "--gpus-each", each, *names, env=machine)
    assert done.exit == 0, done.err
    return [line.partition(" | ")[2] for line in sorted(done.out.splitlines())]


def test_every_job_gets_devices_of_its_own(project, fdl, tmp_path):
    cards = [card("8.0", bus=bus) for bus in range(1, 5)]
    assert sorted(devices(project, fdl, tmp_path, cards, "1")) == ["0", "1", "2", "3"]
    assert set(devices(project, fdl, tmp_path, cards, "2")) <= {"0,1", "2,3"}
    assert set(devices(project, fdl, tmp_path, cards[:3], "2")) == {"0,1"}


def test_only_the_visible_devices_are_handed_out_under_their_names(project, fdl, tmp_path):
    cards = [card("8.0", bus=bus) for bus in range(1, 5)]
    shown = {"CUDA_VISIBLE_DEVICES": "3,1"}
    assert set(devices(project, fdl, tmp_path, cards, "1", shown)) == {"3", "1"}
    by_name = {"CUDA_VISIBLE_DEVICES": f"{cards[2].uuid},{cards[0].uuid}"}
    assert set(devices(project, fdl, tmp_path, cards, "1", by_name)) == {
        cards[2].uuid,
        cards[0].uuid,
    }


def test_slices_of_a_gpu_are_handed_out_by_uuid(project, fdl, tmp_path):
    cards = [card("8.0", slices=[Slice("MIG-a"), Slice("MIG-b")])]
    assert set(devices(project, fdl, tmp_path, cards, "1")) == {"MIG-a", "MIG-b"}


def test_too_few_gpus_are_an_error(project, fdl, tmp_path):
    project({"fdl.yml": "commands: {a: {run: 'true'}, b: {run: 'true'}}"})
    machine = nvidia(tmp_path / "nvidia", [card("8.0")])
    done = fdl("--jobs", "2", "--gpus-each", "2", "a", "b", env=machine)
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith("error: `--gpus-each 2`: this machine has 1 usable GPU\n")
    assert "hint: " in done.err


# What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["lint", "tset"], "unknown command: tset", "did you mean `fdl test`?"),
        (["lint", "sub/fsat"], "unknown command: sub fsat", "did you mean `fdl sub fast`?"),
        (["lint", "list"], "`list` is a built-in command", "fdl list"),
        (["lint", "lint"], "`lint` is named twice", "each command once"),
        (
            ["lint", "test", "--", "-k", "x"],
            "arguments after `--`: several commands",
            'as one: "lint test"',
        ),
        (
            ["lint", "test", "--fast"],
            "`--fast`: several commands take no arguments",
            'as one: "lint test"',
        ),
    ],
)
def test_words_that_are_no_commands_are_refused(project, fdl, words, message, hint):
    project(
        {
            "fdl.yml": "commands: {lint: {run: 'true'}, test: {run: 'true'}, sub: }",
            "sub/fdl.yml": "commands: {fast: {run: 'true'}}",
        }
    )
    done = fdl("--jobs", "2", *words)
    assert (done.exit, done.out) == (1, "")
    assert message in done.err
    assert hint in done.err


@pytest.mark.parametrize("word", ["sub/fast", "sub fast"])
def test_a_command_below_a_folder_is_one_word(project, fdl, word):
    project(
        {
            "fdl.yml": "commands: {lint: {run: 'true'}, sub: }",
            "sub/fdl.yml": "commands: {fast: {run: echo hi}}",
        }
    )
    assert fdl("--jobs", "2", "lint", word).out == "sub fast | hi\n"


def test_without_the_flag_a_second_word_stays_an_argument(project, fdl):
    project({"fdl.yml": "commands: {lint: {run: echo lint}, test: {run: echo test}}"})
    done = fdl("lint", "test")
    assert (done.exit, done.out) == (1, "")
    assert "arguments of `fdl lint` go after `--`" in done.err
