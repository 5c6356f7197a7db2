"""``cwd:`` and ``confirm:``: where a command runs, and the question before it."""

import json

import pytest

from tests.fdl.terminal import Terminal

DEPLOY = "commands: {deploy: {run: echo deployed, confirm: 'Deploy to production?'}}"


def test_commands_run_in_the_folder_of_cwd(project, fdl):
    folder = project(
        {
            "fdl.yml": """
                commands:
                  here: {run: pwd}
                  there: {run: pwd, cwd: src/deep}
                  train:
                  moved: {path: train, cwd: other}
                """,
            "src/deep/x": "",
            "train/fdl.yml": """
                entry: sh -c pwd
                cwd: work
                commands: {quick: {cwd: other, training: {epochs: 1}}, run: {run: pwd}}
                """,
            "train/work/x": "",
            "train/other/x": "",
        }
    )
    assert fdl("here", cwd="src").out == f"{folder}\n"
    assert fdl("there").out == f"{folder}/src/deep\n"
    assert fdl("train").out == f"{folder}/train/work\n"
    assert fdl("moved").out == f"{folder}/train/other\n", "the parent's key is the stronger one"
    assert fdl("train", "quick").out == f"{folder}/train/other\n"
    assert fdl("train", "run").out == f"{folder}/train\n", "cwd of a manifest is for its entry"
    assert "cwd: src/deep" in fdl("config", "show", "there").out
    assert "train/fdl.yml:3" in fdl("why", "cwd", "train", "quick").out


def test_a_missing_folder_is_an_error_with_its_place(project, fdl):
    folder = project({"fdl.yml": "commands:\n  t: {run: pwd, cwd: gone}\n"})
    done = fdl("t")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith(
        f"error: fdl.yml:2:22: `cwd: gone`: there is no folder {folder}/gone\n"
    )


def test_a_program_in_the_folder_of_cwd_is_asked_for_its_arguments(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": "entry: python main.py\ncwd: src\n",
            "train/src/main.py": """
                from fdl import FdlArgs, option

                class Args(FdlArgs):
                    epochs: int = option(default=1, help="Passes over the data")

                print(Args.parse_or_schema().epochs)
                """,
        }
    )
    assert "Passes over the data" in fdl("train", "--help").out
    assert fdl("train", "--epochs", "3").out == "3\n"


def test_a_question_needs_a_terminal_or_yes(project, fdl):
    project({"fdl.yml": DEPLOY})
    done = fdl("deploy")
    assert (done.exit, done.out) == (1, "")
    assert "asks `Deploy to production?`, and there is no terminal to ask on" in done.err
    assert "hint: fdl -y deploy answers yes" in done.err
    assert fdl("-y", "deploy").out == "deployed\n"
    assert "Asks before it runs: Deploy to production?" in fdl("deploy", "--help").out
    assert "confirm   Deploy to production?" in fdl("-n", "deploy").out
    assert json.loads(fdl("-n", "--json", "deploy").out)["confirm"] == "Deploy to production?"


@pytest.mark.parametrize(
    ("answer", "exit_code", "shown"),
    [("y", 0, "deployed"), ("YES", 0, "deployed"), ("", 1, "nothing ran"), ("x", 1, "nothing")],
)
def test_only_yes_confirms(project, answer, exit_code, shown):
    folder = project({"fdl.yml": DEPLOY})
    with Terminal("deploy", cwd=folder) as session:
        session.read_until("Deploy to production? [y/N] ")
        session.press(f"{answer}\r")
        assert session.finish() == exit_code
    assert shown in session.text
    assert ("deployed" in session.text) is (exit_code == 0)


def test_the_question_of_a_folder_is_also_that_of_its_commands(project, fdl):
    project(
        {
            "fdl.yml": "commands: {ops: {confirm: 'Touch production?'}}",
            "ops/fdl.yml": "commands: {a: {run: echo a}, b: {run: echo b, confirm: 'Really b?'}}",
        }
    )
    assert "asks `Touch production?`" in fdl("ops", "a").err
    assert "asks `Really b?`" in fdl("ops", "b").err


@pytest.mark.parametrize("where", [[], ["--on", "slurm"], ["--on", "here"], ["--jobs", "2"]])
def test_the_question_of_a_needed_command_is_asked_wherever_it_runs(project, fdl, where):
    project(
        {
            "fdl.yml": "slurm: {time: 1}\ncommands:\n"
            "  wipe: {run: echo wiped, confirm: 'Delete all runs?'}\n"
            "  train: {run: echo trained, needs: wipe}\n"
        }
    )
    done = fdl(*where, "train")
    assert (done.exit, done.out) == (1, "")
    assert "`fdl wipe` asks `Delete all runs?`, and there is no terminal to ask on" in done.err
