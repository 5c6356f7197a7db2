"""`fdl flodl-hf`: commands of flodl, with those of the project."""

import json
from pathlib import Path

import pytest

import flodl
from tests.fdl.programs import executable

MANIFEST = Path(flodl.__file__).parent / "hf" / "fdl.yml"
SHOWS_ARGUMENTS = '#!/bin/sh\nprintf "%s\\n" "$@"\nexit 4\n'
NAMES = (
    "convert",
    "export",
    "verify-export",
    "verify-matrix",
    "info",
)

pytestmark = pytest.mark.skipif(not MANIFEST.exists(), reason="this flodl has no models")

OWN = {
    "fdl.yml": "commands: {flodl-hf: , other: {run: echo other}}",
    "flodl-hf/fdl.yml": """
        description: Mine
        commands:
          classify: {run: echo mine, description: Three sentences}
          info: {run: echo own info, description: Of my own}
    """,
}


@pytest.fixture
def python(project, tmp_path):
    """A project whose Python prints its arguments and exits with 4."""
    project({"fdl.yml": "", ".venv/pyvenv.cfg": "home = /usr\n"})
    return executable(tmp_path / ".venv/bin/python", SHOWS_ARGUMENTS)


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_alone_it_lists_the_commands(project, fdl, words):
    project({"fdl.yml": ""})
    done = fdl("flodl-hf", *words)
    assert (done.exit, done.err) == (0, "")
    assert "Usage: fdl flodl-hf <command>" in done.out
    assert all(f"\n  {name} " in done.out for name in NAMES)
    assert done.out.count("Commands:") == 1


def test_no_project_is_needed(fdl):
    assert "  convert " in fdl("flodl-hf").out


@pytest.mark.usefixtures("python")
def test_arguments_and_the_exit_code_are_passed_on(fdl):
    done = fdl("flodl-hf", "convert", "owner/name", "--force", "--out", "x")
    assert done.exit == 4, done.err
    assert done.out.splitlines() == [
        *("-m", "flodl.hf", "convert", "owner/name", "--force", "--out", "x")
    ]
    done = fdl("flodl-hf", "info", "bert-qa", "--", "./dir")
    assert done.out.splitlines()[2:] == ["info", "bert-qa", "./dir"]


@pytest.mark.usefixtures("python")
def test_it_works_where_it_was_called_and_names_the_project(project, fdl, tmp_path):
    project({"sub/x": ""})
    plan = json.loads(fdl("-n", "--json", "flodl-hf", "info", "m", cwd="sub").out)
    assert (plan["cwd"], plan["command"]) == (str(tmp_path / "sub"), ["flodl-hf", "info"])
    assert plan["env"]["FDL_PROJECT_ROOT"] == str(tmp_path)
    assert plan["origin"].startswith("flodl/hf/fdl.yml:")
    assert json.loads(plan["env"]["FDL_PLAN"])["cwd"] == str(tmp_path / "sub")


def test_an_unknown_command_is_told_with_the_place_of_the_list(project, fdl):
    project({"fdl.yml": ""})
    done = fdl("flodl-hf", "exprot")
    assert (done.exit, done.out) == (1, "")
    assert "unknown command: flodl-hf exprot" in done.err
    assert "did you mean `fdl flodl-hf export`?" in done.err
    assert done.err.splitlines()[2:] == [
        "Usage: fdl flodl-hf <command> [ARGS]",
        "see fdl flodl-hf --help",
    ]


@pytest.mark.usefixtures("forked_venv")
def test_the_page_of_a_command_has_its_arguments(project, fdl):
    project({"fdl.yml": ""})
    done = fdl("flodl-hf", "convert", "--help")
    assert done.exit == 0, done.err
    assert "fdl flodl-hf convert" in done.out
    assert "--revision" in done.out
    assert fdl("--help", "flodl-hf", "convert").out == done.out
    assert fdl("flodl-hf", "--help", "convert").out == fdl("flodl-hf", "--help").out


@pytest.mark.usefixtures("forked_venv")
def test_bad_usage_exits_with_2_and_help(project, fdl):
    project({"fdl.yml": ""})
    done = fdl("flodl-hf", "export", "--hub", "a/b", "--checkpoint", "m.fdl", "--out", "o")
    assert done.exit == 2
    assert "exclude each other" in done.err
    assert "Usage: fdl flodl-hf export" in done.err


@pytest.mark.usefixtures("forked_venv")
def test_a_failure_exits_with_1_and_one_message(project, fdl):
    project({"fdl.yml": ""})
    done = fdl("flodl-hf", "info", "./nowhere")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def test_the_project_s_commands_are_there_besides_and_win(project, fdl):
    project(OWN)
    assert fdl("flodl-hf", "classify").out == "mine\n"
    assert fdl("flodl-hf", "info").out == "own info\n"
    plan = json.loads(fdl("-n", "--json", "flodl-hf", "convert", "x").out)
    assert plan["argv"][-3:] == ["flodl.hf", "convert", "x"]


def test_help_says_where_the_project_s_commands_are_from(project, fdl):
    project(OWN)
    page = fdl("flodl-hf", "--help").out
    assert page == fdl("flodl-hf").out
    mine, of_flodl = page.split("Commands of flodl:")
    assert "Three sentences" in mine
    assert "flodl-hf/fdl.yml:3" in mine
    assert "flodl-hf/fdl.yml:4" in mine
    assert "  info " not in of_flodl
    assert all(f"  {name} " in of_flodl for name in NAMES if name != "info")
    assert "unreachable" not in fdl("--help").out


def test_an_unknown_word_is_looked_for_in_both(project, fdl):
    project(OWN)
    done = fdl("flodl-hf", "clasify")
    assert done.exit == 1
    assert "did you mean `fdl flodl-hf classify`?" in done.err


def test_an_entry_of_the_project_gets_what_nobody_knows(project, fdl):
    project(
        {
            "fdl.yml": "commands: {flodl-hf: }",
            "flodl-hf/fdl.yml": "entry: echo mine\ncommands: {fast: {options: {x: 1}}}\n",
        }
    )
    assert fdl("flodl-hf", "owner/name").out == "mine owner/name\n"
    assert fdl("flodl-hf", "fast").out == "mine --x 1\n"
    plan = json.loads(fdl("-n", "--json", "flodl-hf", "verify-matrix").out)
    assert "flodl.hf" in plan["argv"]


def test_a_command_that_is_no_folder_stands_alone(project, fdl):
    project({"fdl.yml": "commands: {flodl-hf: {run: echo mine}}"})
    assert fdl("flodl-hf").out == "mine\n"


def test_a_broken_manifest_of_the_project_is_told(project, fdl):
    project({**OWN, "flodl-hf/fdl.yml": "commands: {broken"})
    done = fdl("flodl-hf", "convert", "x")
    assert done.exit == 1
    assert "flodl-hf/fdl.yml" in done.err


def test_completion_offers_both(project, fdl):
    project(OWN)
    offered = fdl("__complete", "bash", "--", "flodl-hf", "").out.splitlines()
    assert offered[:2] == ["classify", "info"]
    assert set(NAMES) <= set(offered)
    assert fdl("__complete", "bash", "--", "flodl-hf", "conv").out.splitlines() == ["convert"]
    fdl("flodl-hf", "convert", "--help")
    flags = fdl("__complete", "bash", "--", "flodl-hf", "convert", "--").out.splitlines()
    assert {"--revision", "--out", "--force"} <= set(flags)
    assert fdl("__complete", "bash", "--", "flodl-hf", "classify", "").out.splitlines() == ["--"]
