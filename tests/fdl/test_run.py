"""Running commands: the shell text, containers, signals, exit codes."""

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdl.dispatch.compose import compose, quote, quote_cmd
from tests.fdl.terminal import PATIENCE, Terminal, outside_container

# A child that says it is ready, counts what it is sent for a moment, and exits with 7.
COUNTER = """
import signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: seen.append(signal.Signals(number).name))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.5)
print(*seen, flush=True)
sys.exit(7)
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())
    path.chmod(0o755)
    return path


TABLE = [
    pytest.param("tool t", "-- --slow", [], "tool t -- --slow", marks=pytest.mark.case("cli", 15)),
    pytest.param(
        "tool t",
        "-- --slow",
        ["-k", "x"],
        "tool t -k x -- --slow",
        marks=pytest.mark.case("cli", 16),
    ),
    pytest.param(
        "tool",
        "--rel -- --slow",
        ["-k", "x", "--", "--deep"],
        "tool --rel -k x -- --slow --deep",
        marks=pytest.mark.case("cli", 17),
    ),
    pytest.param(
        "tool",
        "--no-ansi",
        ["--ansi"],
        "tool --no-ansi --ansi",
        marks=pytest.mark.case("cli", 18),
    ),
    pytest.param(
        "tool", None, ["--", "--list"], "tool -- --list", marks=pytest.mark.case("cli", 19)
    ),
    pytest.param("tool", "  ", [], "tool"),
    pytest.param("tool", None, ["--"], "tool"),
    pytest.param("tool", "-a --", ["x"], "tool -a x --"),
    pytest.param("tool", "--a--b -- c", [], "tool --a--b -- c"),
    pytest.param("tool", None, ["a", "--", "b", "--", "c"], "tool a -- b -- c"),
]


@pytest.mark.parametrize(("run", "append", "user", "text"), TABLE)
def test_a_run_command_becomes_one_shell_text(project, fdl, run, append, user, text):
    fixed = "" if append is None else f"\n    append: '{append}'"
    folder = project({"fdl.yml": f"commands:\n  c:\n    run: {run}{fixed}\n"})
    executable(folder / "bin/tool", '#!/bin/sh\necho tool "$@"\n')
    typed = ["c", "--", *user] if user else ["c"]
    plan = json.loads(fdl("--dry-run", "--json", *typed).out)
    assert plan["argv"] == ["sh", "-c", text]
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    assert fdl(*typed, env={"PATH": path}).out == f"{text}\n"


@pytest.mark.case("cli", 20)
def test_arguments_before_the_separator_are_refused_with_the_right_form(project, fdl):
    project({"fdl.yml": "commands: {t: {run: echo}}"})
    done = fdl("t", "-k", "x")
    assert (done.exit, done.out) == (1, "")
    assert "fdl t -- -k x" in done.err
    done = fdl("t", "-k", "x", "--", "y")
    assert (done.exit, done.out) == (1, "")
    assert "fdl t -- -k x y" in done.err
    assert "fdl t -- 'a b'" in fdl("t", "a b").err


@pytest.mark.case("cli", 21)
def test_a_hostile_argument_arrives_as_one_literal(project, fdl):
    project({"fdl.yml": "commands: {t: {run: \"printf '%s\\\\n'\"}}"})
    assert fdl("t", "--", "it's $HOME").out == "it's $HOME\n"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter(
            lambda token: token != "--"
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_arguments_survive_a_real_shell(tokens):
    script = compose("printf '%s\\0'", None, tokens)
    out = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert out.decode().split("\0")[:-1] == tokens


@given(st.text())
def test_quoting_equals_the_standard_librarys(token):
    assert quote(token) == shlex.quote(token)


def test_quoting_for_the_windows_shell():
    assert [quote_cmd(token) for token in ("a", "a b", 'a"b', "")] == [
        "a",
        '"a b"',
        'a\\"b',
        '""',
    ]


def test_bytes_that_are_no_text_reach_the_program(project, tmp_path):
    project({"fdl.yml": "commands: {t: {run: printf %s}}"})
    command = [sys.executable, "-m", "fdl", "t", "--", b"a\xffb"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).stdout == b"a\xffb"


@pytest.mark.case("cli", 22)
def test_no_append_leaves_the_fixed_arguments_out(project, fdl):
    project({"fdl.yml": "commands: {t: {run: echo a, append: b -- c}}"})
    assert fdl("t").out == "a b -- c\n"
    assert fdl("--no-append", "t").out == "a\n"
    assert fdl("t", "--no-append", "--", "x").out == "a x\n"
    assert fdl("t", "--", "--no-append").out == "a b --no-append -- c\n"


def test_nothing_behind_the_separator_is_interpreted(project, fdl):
    project({"fdl.yml": "commands: {p: , t: {run: echo}}", "p/fdl.yml": "entry: printf '%s|'"})
    tail = ["--", "-v", "--env", "--help", "-q", "--ansi", "--", "--no-ansi", "", "--no-append"]
    done = fdl("p", "a", *tail)
    assert (done.exit, done.out) == (0, "".join(f"{token}|" for token in ["a", *tail]))
    assert fdl("t", "--", "--help").out == "--help\n"


def test_a_block_of_lines_takes_its_arguments_on_the_last_one(project, fdl):
    project({"fdl.yml": "commands:\n  t:\n    run: |\n      echo one\n      echo two\n"})
    assert fdl("t").out == "one\ntwo\n"
    assert fdl("t", "--", "x").out == "one\ntwo x\n"


@pytest.mark.case("cli", 23)
def test_the_scripts_exit_code_is_ours(project, fdl):
    project({"fdl.yml": "commands: {seven: {run: exit 7}, fine: {run: 'true'}}"})
    assert fdl("seven").exit == 7
    assert fdl("fine").exit == 0


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130), ("KILL", 137)])
def test_death_by_signal_is_128_and_its_number(project, fdl, name, code):
    project({"fdl.yml": f"commands: {{die: {{run: kill -{name} $$}}}}"})
    assert fdl("die").exit == code


def test_a_command_runs_where_it_is_declared_with_our_streams(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {sub: }",
            "sub/fdl.yml": "commands: {t: {run: 'pwd; cat; echo oops >&2'}}",
            "deep/er/x": "",
        }
    )
    done = fdl("sub", "t", cwd="deep/er", stdin="typed\n")
    assert (done.out, done.err) == (f"{folder / 'sub'}\ntyped\n", "oops\n")


def test_children_do_not_inherit_pythons_deaf_ear_for_broken_pipes(project, fdl):
    project({"fdl.yml": "commands: {t: {run: yes | head -n 1}}"})
    done = fdl("t")
    assert (done.exit, done.out, done.err) == (0, "y\n", "")


def test_the_projects_virtual_environment_comes_first(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {t: {run: tool}, sub: }",
            "sub/fdl.yml": "entry: tool x",
        }
    )
    executable(folder / ".venv/bin/tool", "#!/bin/sh\necho mine $FDL_PROJECT_ROOT $1\n")
    assert fdl("t").out == f"mine {folder}\n"
    assert fdl("sub").out == f"mine {folder} x\n"
    shown = fdl("--dry-run", "t").out
    assert f'PATH={folder}/.venv/bin:"$PATH"' in shown


def test_python_missing_from_the_path_is_the_running_one(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {p: }",
            "p/fdl.yml": "entry: python main.py",
            "p/main.py": "import sys; print(sys.executable)",
        }
    )
    (folder / "empty").mkdir()
    done = fdl("p", env={"PATH": str(folder / "empty")})
    assert (done.exit, done.out) == (0, f"{sys.executable}\n")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("no-such-program-here x", "cannot start `no-such-program-here`: no such program"),
        ("./missing", "cannot start `./missing`: no such program"),
        ("./text", "cannot start `./text`: "),
    ],
)
def test_a_program_that_cannot_start_is_explained(project, fdl, entry, words):
    folder = project({"fdl.yml": "commands: {p: }", "p/fdl.yml": f"entry: {entry}"})
    executable(folder / "p/text", "\x7fELF is not what follows")
    done = fdl("p")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith(f"error: p/fdl.yml:1:8: {words}")
    assert "hint: " in done.err


def test_a_folder_that_vanished_under_our_feet_is_explained(project):
    folder = project({"gone/x": ""})
    code = "import os; from fdl.__main__ import main; os.rmdir(os.getcwd()); exit(main(['t']))"
    (folder / "gone/x").unlink()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder / "gone", capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the current directory cannot be read")


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
    folder = project({"fdl.yml": "commands: {t: {run: echo ready; sleep 60}}"})
    with Terminal("t", cwd=folder) as terminal:
        terminal.read_until("ready")
        terminal.press("\x03")
        assert terminal.finish() == 130
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
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


# Containers ---------------------------------------------------------------------------------

COMPOSE = """
    services:
      dev:
        image: x
        volumes: [".:/app/", "data:/data"]
    """

FAKE_DOCKER = """
    #!/bin/sh
    for argument in "$@"; do printf '%s\\n' "$argument"; done
    printf 'cwd=%s\\nplan=%s\\nverbosity=%s\\n' "$PWD" "${FDL_PLAN:+set}" "$FLODL_VERBOSITY"
    exit 5
    """


def launch(folder, *args, terminal=False):
    """What would be started outside a container, as tokens."""
    done = outside_container("--dry-run", "--json", *args, cwd=folder, terminal=terminal)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["launch"]


@pytest.mark.case("cli", 24)
def test_a_nested_entry_starts_in_its_folder_of_the_mount(project):
    files = {
        "fdl.yml": "commands: {sub: }",
        "sub/fdl.yml": "entry: python main.py\ndocker: dev\n",
    }
    folder = project({**files, "docker-compose.yml": COMPOSE})
    tokens = launch(folder, "sub", "it's $HOME")
    assert tokens[:5] == ["docker", "compose", "run", "--rm", "-T"]
    assert tokens[-4:-1] == ["dev", "bash", "-c"]
    assert tokens[-1] == "cd /app/sub && python main.py 'it'\"'\"'s $HOME'"
    assert "FDL_PROJECT_ROOT=/app" in tokens
    (folder / "docker-compose.yml").unlink()
    tokens = launch(folder, "sub")
    assert tokens[-1].startswith("cd /workspace/sub && ")
    assert "FDL_PROJECT_ROOT=/workspace" in tokens


def test_docker_is_started_without_a_shell_from_the_projects_root(project):
    folder = project(
        {
            "fdl.yml": "commands: {sub: }",
            "sub/fdl.yml": "entry: python main.py\ndocker: dev\ntraining: {epochs: 2}\n",
            "docker-compose.yml": COMPOSE,
        }
    )
    executable(folder / "bin/docker", FAKE_DOCKER)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = outside_container("-v", "sub", "a b", cwd=folder / "sub/..", env={"PATH": path})
    expected = [
        *["compose", "run", "--rm", "-T", "-e", "FDL_PROJECT_ROOT=/app", "-e", "FDL_PLAN"],
        *["-e", "FLODL_VERBOSITY", "-e", "FLODL_COLOR", "dev", "bash", "-c"],
        "cd /app/sub && python main.py --epochs 2 'a b'",
        *[f"cwd={folder}", "plan=set", "verbosity=2"],
    ]
    assert (done.returncode, done.stdout.splitlines()) == (5, expected)


def test_a_run_command_in_docker_starts_in_the_services_own_folder(project):
    folder = project(
        {
            "fdl.yml": "commands:\n  t: {run: make test, docker: dev}\n  sub:\n",
            "sub/fdl.yml": "commands: {t: {run: make test, docker: dev}}",
            "docker-compose.yml": COMPOSE,
        }
    )
    wrapper = ["docker", "compose", "run", "--rm", "-e", "FLODL_VERBOSITY", "-e", "FLODL_COLOR"]
    tokens = launch(folder, "t", "--", "x y", terminal=True)
    assert tokens == [*wrapper, "dev", "bash", "-c", "make test 'x y'"]
    tokens = launch(folder, "sub", "t", terminal=True)
    assert tokens == [*wrapper, "dev", "bash", "-c", "cd /app/sub && make test"]


def test_a_preset_in_docker_announces_service_and_inner_command(project):
    folder = project({"fdl.yml": "entry: main\ndocker: dev\ncommands: {p: {training: {seed: 1}}}"})
    executable(folder / "bin/docker", "#!/bin/sh\n")
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = outside_container("p", cwd=folder, env={"PATH": path})
    assert (done.returncode, done.stderr) == (0, "fdl: [dev] main --seed 1\n")


@pytest.mark.parametrize(
    ("name", "text", "root"),
    [
        ("docker-compose.yaml", "services: {dev: {volumes: ['./:/a']}}", "/a"),
        ("compose.yml", "services: {dev: {volumes: ['.:/b:ro']}}", "/b"),
        (
            "compose.yaml",
            "services: {dev: {volumes: [{type: bind, source: ., target: /c/}]}}",
            "/c",
        ),
        ("compose.yaml", "services: {dev: {volumes: !reset ['x:/y', '.:/d']}}", "/d"),
        ("compose.yaml", "services: {dev: {volumes: ['.:/']}}", ""),
        ("compose.yaml", "x: &v ['.:/e']\nservices: {dev: {volumes: *v}}", "/e"),
        ("compose.yaml", "services: {dev: {volumes: ['./sub:/f']}}", "/workspace"),
        ("compose.yaml", "services: {other: {volumes: ['.:/g']}}", "/workspace"),
        ("compose.yaml", "services: {dev: }", "/workspace"),
        ("compose.yaml", "services: [", "/workspace"),
        ("compose.yaml", "just text", "/workspace"),
    ],
)
def test_where_the_project_is_mounted(project, name, text, root):
    folder = project(
        {"fdl.yml": "commands: {s: }", "s/fdl.yml": "entry: main\ndocker: dev\n", name: text}
    )
    assert launch(folder, "s")[-1] == f"cd {root}/s && main"


def test_a_folder_outside_the_project_cannot_run_in_its_container(project):
    folder = project(
        {
            "in/fdl.yml": "commands: {out: {path: ../out}}",
            "out/fdl.yml": "entry: main\ndocker: dev\n",
        }
    )
    done = outside_container("out", cwd=folder / "in")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{folder / 'out'} lies outside the project {folder / 'in'}" in done.stderr


def test_inside_a_container_nothing_is_wrapped(project):
    folder = project({"fdl.yml": "commands: {t: {run: echo direct, docker: dev}}"})
    code = (
        "import os; from fdl.__main__ import main; from fdl.dispatch.planner import Surroundings; "
        "main(['t'], Surroundings(os.environ, in_container=True, terminal=False))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.stdout == "direct\n"


def test_without_docker_the_error_says_so(project):
    folder = project({"fdl.yml": "commands: {t: {run: echo, docker: dev}}", "bin/x": ""})
    done = outside_container("t", cwd=folder, env={"PATH": str(folder / "bin")})
    assert done.returncode == 1
    assert "cannot start `docker`" in done.stderr
    assert "install Docker" in done.stderr


# The warm path ------------------------------------------------------------------------------

# Runs fdl in the same process and reports which modules that has loaded.
LOADED = """
import sys
before = set(sys.modules)
from fdl.__main__ import main
code = main(sys.argv[1:])
print(code, *sorted(set(sys.modules) - before))
"""


def loaded_by(folder, *args):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *args], cwd=folder, capture_output=True, text=True
    )
    assert done.stderr == ""
    code, *modules = done.stdout.splitlines()[-1].split()
    assert code == "0"
    return set(modules)


def test_a_warm_run_command_loads_nothing_but_our_own_modules(project, fdl):
    folder = project({"fdl.yml": "commands: {t: {run: 'true', append: -a -- -b}}"})
    assert fdl("t").exit == 0
    foreign = {name for name in loaded_by(folder, "t", "--", "it's") if name.split(".")[0] != "fdl"}
    assert foreign <= {"__future__", "_json"}


def test_the_version_loads_next_to_nothing(tmp_path):
    assert loaded_by(tmp_path, "--version") == {
        "__future__",
        "fdl",
        "fdl.__main__",
        "fdl.errors",
    }


def test_the_help_page_loads_no_framework(project, fdl):
    folder = project({"fdl.yml": "commands: {t: {run: 'true'}, s: }", "s/fdl.yml": "entry: main"})
    assert fdl("t").exit == 0
    assert fdl("--dry-run", "s").exit == 0
    assert loaded_by(folder, "t", "--help").isdisjoint(
        {"yaml", "pydantic", "typer", "rich", "json", "re"}
    )
    assert loaded_by(folder, "--help").isdisjoint({"typer", "rich", "httpx", "torch"})
