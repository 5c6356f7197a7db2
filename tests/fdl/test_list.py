"""``fdl list``: every command of a project, the broken ones included."""

import json

import pytest

from fdl.cli.entry import main
from tests.fdl.terminal import Terminal

FILES = {
    "fdl.yml": """
        description: A project of several parts
        commands:
          hello: {run: echo hello, description: Say hello}
          train:
          tools: {path: lib/tools, description: What surrounds it}
          lines:
            run: |
              echo one
              echo two
        """,
    "train/fdl.yml": """
        description: Train the network
        entry: python main.py
        commands:
          quick: {description: One epoch, training: {epochs: 1}}
        """,
    "lib/tools/fdl.yml": "commands: {report: , fix: {run: ruff check --fix}}",
    "lib/tools/report/fdl.yml": "entry: python report.py\ncommands: {last: {options: {n: 1}}}",
}


def listed(session):
    """Command -> the rest of its record."""
    assert (session.exit, session.err) == (0, "")
    document = json.loads(session.out)
    assert document["schema_version"] == 1
    return {" ".join(one.pop("command")): one for one in document["commands"]}


def test_one_line_per_command_with_its_kind_place_and_description(project, fdl):
    project(FILES)
    done = fdl("list")
    assert (done.exit, done.err) == (0, "")
    assert done.out.splitlines() == [
        "hello              run     fdl.yml:3:3                    Say hello",
        "train              path    fdl.yml:4:3                    Train the network",
        "train quick        preset  train/fdl.yml:4:3              One epoch",
        "tools              path    fdl.yml:5:3                    What surrounds it",
        "tools report       path    lib/tools/fdl.yml:1:12",
        "tools report last  preset  lib/tools/report/fdl.yml:2:12",
        "tools fix          run     lib/tools/fdl.yml:1:22         ruff check --fix",
        "lines              run     fdl.yml:6:3                    echo one ...",
    ]


def test_the_first_words_of_a_line_can_be_typed(project, fdl):
    project({"fdl.yml": 'commands: {say hi: {run: echo hi}, "it\'s": {run: echo it}}'})
    names = [line.split("  ")[0] for line in fdl("list").out.splitlines()]
    assert names == ["'say hi'", "'it'\"'\"'s'"]


def test_json_holds_the_same_with_the_words_apart(project, fdl):
    project(FILES)
    commands = listed(fdl("list", "--json"))
    assert list(commands) == [
        "hello", "train", "train quick", "tools", "tools report", "tools report last", "tools fix",
        "lines",
    ]  # fmt: skip
    assert commands["tools report last"] == {
        "kind": "preset",
        "description": None,
        "needs": [],
        "origin": "lib/tools/report/fdl.yml:2:12",
        "reason": None,
    }
    assert commands["train"]["description"] == "Train the network"


def test_it_is_the_project_that_is_listed_wherever_one_stands(project, fdl):
    folder = project(FILES)
    (folder / "lib" / "deep").mkdir()
    assert fdl("list", cwd="lib/deep").out == fdl("list").out
    assert listed(fdl("list", "--json", cwd="train"))["quick"]["origin"] == "fdl.yml:4:3"


@pytest.mark.parametrize(
    ("spec", "child", "reason"),
    [
        ("{run: x, path: y}", None, "fdl.yml:1:30: command `fdl b`: `run` and `path` exclude"),
        ("{docker: dev}", None, "fdl.yml:1:24: command `fdl b`: `docker` needs `run`"),
        ("{training: {lr: 1}}", None, "is a preset, but its manifest has no `entry`"),
        ("", None, "no fdl.yml found in"),
        ("", "[", "b/fdl.yml:2:1: not valid YAML"),
        ("", "comands: {}", "b/fdl.yml:1:1: unknown key `comands`; did you mean `commands`?"),
        ("", "inherit-from: fdl.yml", "`inherit-from` leads in a circle"),
    ],
)
def test_a_broken_command_is_listed_with_the_reason_and_costs_the_others_nothing(
    project, fdl, spec, child, reason
):
    files = {"fdl.yml": f"commands: {{b: {spec}, ok: {{run: echo ok}}}}"}
    project(files if child is None else {**files, "b/fdl.yml": child})
    commands = listed(fdl("list", "--json"))
    assert [command["kind"] for command in commands.values()] == ["broken", "run"]
    assert reason in commands["b"]["reason"]
    text = fdl("list")
    assert (text.exit, text.err) == (0, "")
    first, second = text.out.splitlines()
    assert first.startswith("b   broken  fdl.yml:1:12  ")
    assert reason in first
    assert second.startswith("ok  run     fdl.yml:1:")
    assert second.endswith("  echo ok")


def test_only_a_broken_root_is_an_error(project, fdl):
    project({"fdl.yml": "commands: ["})
    for typed in (["list"], ["list", "--json"]):
        done = fdl(*typed)
        assert (done.exit, done.out) == (1, "")
        assert done.err.startswith("error: fdl.yml:2:1: not valid YAML")


def test_without_a_project_there_is_nothing_to_list(fdl):
    done = fdl("list")
    assert (done.exit, done.out) == (1, "")
    assert "no fdl.yml found" in done.err


def test_a_project_without_commands_lists_nothing(project, fdl):
    project({"fdl.yml": "description: Empty\n"})
    assert fdl("list").out == ""
    assert listed(fdl("list", "--json")) == {}


def test_folders_that_lead_back_are_entered_once(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {again: {path: .}, a: }",
            "a/fdl.yml": "commands: {b: {path: ../b}}",
            "b/fdl.yml": "commands: {a: {path: ../a}, up: {path: ..}, link: }",
        }
    )
    (folder / "b" / "link").symlink_to(folder / "a")
    commands = listed(fdl("list", "--json"))
    assert list(commands) == ["again", "a", "a b", "a b a", "a b up", "a b link"]
    assert {command["kind"] for command in commands.values()} == {"path"}


def test_two_ways_to_one_folder_are_both_listed(project, fdl):
    project(
        {
            "fdl.yml": "commands: {x: {path: c}, y: {path: c}}",
            "c/fdl.yml": "commands: {t: {run: x}}",
        }
    )
    assert list(listed(fdl("list", "--json"))) == ["x", "x t", "y", "y t"]


@pytest.fixture
def multiplied(project):
    """A folder whose commands have two commands each, 20 levels deep."""
    twice = "commands: {{a: {{path: ../{0}}}, b: {{path: ../{0}}}}}"
    files = {f"{n}/fdl.yml": twice.format(n + 1) for n in range(20)}
    return project({**files, "20/fdl.yml": "commands: {}"}) / "0"


def test_ways_that_multiply_end_in_a_warning(multiplied, monkeypatch, capsys):
    monkeypatch.chdir(multiplied)
    monkeypatch.setattr("fdl.cli.commands.list._LIMIT", 100)
    assert main(["list"]) == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 100
    assert told.err.startswith("warning: the list ends after 100 commands")


@pytest.mark.slow
@pytest.mark.usefixtures("multiplied")
def test_ten_thousand_commands_are_listed(fdl):
    done = fdl("list", cwd="0")
    assert done.exit == 0
    assert len(done.out.splitlines()) == 10_000
    assert done.err.startswith("warning: the list ends after 10000 commands")


def test_a_name_of_fdl_itself_cannot_be_used(project, fdl):
    project({"fdl.yml": "commands: {list: {run: ls}, sub: }", "sub/fdl.yml": "commands: {list: }"})
    commands = listed(fdl("list", "--json"))
    assert commands["list"]["kind"] == "broken"
    assert commands["list"]["reason"] == "fdl has a built-in command `list`; rename this one"
    assert "built-in" not in commands["sub list"]["reason"]


def test_overlays_count(project, fdl):
    project(
        {
            **FILES,
            "fdl.ci.yml": """
                commands:
                  hello: {description: Say it in CI}
                  lines: null
                  check: {run: make check}
                """,
            "train/fdl.ci.yml": "commands: {long: {training: {epochs: 90}}}",
        }
    )
    document = json.loads(fdl("--env", "ci", "list", "--json").out)
    assert document["env"] == "ci"
    commands = listed(fdl("--env", "ci", "list", "--json"))
    assert commands["hello"]["description"] == "Say it in CI"
    assert commands["check"]["origin"] == "fdl.ci.yml:4:3"
    assert commands["train long"]["origin"] == "train/fdl.ci.yml:1:12"
    assert "lines" not in commands
    assert "check" not in listed(fdl("list", "--json"))


def test_secrets_in_scripts_are_not_listed(project, fdl):
    project(
        {
            "fdl.yml": """
                commands:
                  a: {run: push --api-key s3cr3t-one}
                  b: {run: API_TOKEN=s3cr3t-two push}
                  c: {run: !secret push s3cr3t-three}
                """
        }
    )
    done = fdl("list")
    assert done.exit == 0
    assert [line.split("  ")[0] for line in done.out.splitlines()] == ["a", "b", "c"]
    assert "s3cr3t" not in done.out
    assert "s3cr3t" not in fdl("list", "--json").out


def test_nothing_in_a_manifest_steers_the_terminal(project, fdl):
    spec = r'{run: "echo \e[1m", description: "x\ny\u202Ez"}'
    project({"fdl.yml": rf'commands: {{"a\e[2J": {spec}}}'})
    assert fdl("list").out == "'a\\x1b[2J'  run  fdl.yml:1:12  x y\\u202ez\n"


def test_wide_characters_line_up(project, fdl):
    project({"fdl.yml": "commands: {学习: {run: a}, bb: {run: b}}"})
    assert fdl("list").out.splitlines() == [
        "'学习'  run  fdl.yml:1:12  a",
        "bb      run  fdl.yml:1:26  b",
    ]


def test_listing_writes_nothing(project, fdl):
    folder = project(FILES)
    before = set(folder.rglob("*"))
    fdl("list")
    assert set(folder.rglob("*")) == before


def test_a_terminal_gets_lines_that_fit_and_a_pipe_gets_them_whole(project, fdl):
    words = "A description of many words " * 5
    folder = project({"fdl.yml": f"commands: {{a: {{run: x, description: {words}}}}}"})
    assert fdl("list").out == f"a  run  fdl.yml:1:12  {words}".rstrip() + "\n"
    with Terminal("list", cwd=folder, env={"COLUMNS": "40", "NO_COLOR": "1"}) as terminal:
        assert terminal.finish() == 0
    assert terminal.text == "a  run  fdl.yml:1:12  A description of …\r\n"


def test_colour_is_for_terminals(project, fdl):
    folder = project({"fdl.yml": "commands: {a: {run: x}, b: {run: x, path: y}}"})
    assert "\x1b" not in fdl("list").out
    with Terminal("list", cwd=folder) as terminal:
        assert terminal.finish() == 0
    assert "\x1b[36ma\x1b[0m" in terminal.text
    assert "\x1b[2mfdl.yml:1:12\x1b[0m" in terminal.text
    assert "\x1b[1;31mbroken\x1b[0m" in terminal.text
