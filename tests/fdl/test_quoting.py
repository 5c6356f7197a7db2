"""The shell text of a command, and what reaches the program: every argument, byte for byte."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from fdl.base.shell_words import compose, join, quote, quote_cmd
from tests.fdl.docker_engine import Engine
from tests.fdl.programs import executable
from tests.fdl.terminal import outside_container

# What can be an argument: any text without NUL, and any other bytes as Python carries them.
ARGUMENTS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
        st.binary().map(lambda raw: os.fsdecode(raw.replace(b"\0", b"\1"))),
        st.sampled_from(["", " ", "'", '"', "$HOME", "`id`", "a\nb", "\\", "*", "-e", "!x", "~"]),
    ),
    min_size=1,
    max_size=6,
)


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


def without_separator(tokens):
    return [token for token in tokens if token != "--"]


@settings(max_examples=100)
@given(ARGUMENTS.map(without_separator))
def test_any_arguments_survive_a_real_shell(tokens):
    script = compose("set --", None, tokens) + "\nprintf '%s\\0' \"$@\""
    out = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert out == b"".join(os.fsencode(token) + b"\0" for token in tokens or [""])


@settings(max_examples=100)
@given(ARGUMENTS)
def test_a_joined_command_line_means_exactly_its_tokens(tokens):
    command = join(["printf", "%s\\0", "x", *tokens])
    out = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert out == b"".join(os.fsencode(token) + b"\0" for token in ["x", *tokens])


class Recorder:
    """A project with a program that writes its arguments down, here and in a container."""

    def __init__(self, folder: Path) -> None:
        mount = folder / "it's the $mount"
        self.project = folder / "project"
        self.engine = Engine(folder / "docker", workdir=str(mount))
        files = {
            "fdl.yml": "commands: {here: {run: sub/record}, there: {run: sub/record, docker: dev},"
            " sub: }",
            "sub/fdl.yml": "entry: ./record\ndocker: dev\n",
            "compose.yml": f'services: {{dev: {{volumes: [".:{mount}"]}}}}',
        }
        for name, text in files.items():
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            (self.project / name).write_text(text)
        executable(
            self.project / "sub/record",
            """
            #!/bin/sh
            printf '%s\\0' "$#" "$@" > "$(dirname "$0")/arguments"
            """,
        )
        mount.symlink_to(self.project)

    def type(self, *args: str) -> list[str]:
        """The arguments that the program gets when one types ``fdl ARGS``."""
        done = outside_container(*args, cwd=self.project, env={"PATH": self.engine.path})
        assert done.returncode == 0, done.stderr
        count, *arguments = (self.project / "sub/arguments").read_bytes().split(b"\0")[:-1]
        assert int(count) == len(arguments)
        return [os.fsdecode(argument) for argument in arguments]


@pytest.fixture(scope="module")
def recorder():
    with tempfile.TemporaryDirectory() as folder:
        yield Recorder(Path(folder).resolve())


@settings(max_examples=15)
@given(ARGUMENTS.map(without_separator))
def test_any_arguments_reach_a_run_command(recorder, tokens):
    assert recorder.type("here", "--", *tokens) == tokens


@settings(max_examples=15)
@given(ARGUMENTS.map(without_separator))
@pytest.mark.slow
def test_any_arguments_reach_a_run_command_in_docker(recorder, tokens):
    assert recorder.type("there", "--", *tokens) == tokens


@settings(max_examples=15)
@given(ARGUMENTS)
def test_any_arguments_reach_an_entry_in_docker(recorder, tokens):
    assert recorder.type("sub", "--", *tokens) == tokens


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
    assert (done.exit, done.out) == (0, "".join(f"{token}|" for token in ["a", *tail[1:]]))
    assert fdl("t", "--", "--help").out == "--help\n"


def test_a_block_of_lines_takes_its_arguments_on_the_last_one(project, fdl):
    project({"fdl.yml": "commands:\n  t:\n    run: |\n      echo one\n      echo two\n"})
    assert fdl("t").out == "one\ntwo\n"
    assert fdl("t", "--", "x").out == "one\ntwo x\n"
