"""``include:``: commands from other files."""

import pytest

from tests.waiting import wait_for

FILES = {
    "fdl.yml": """
        include: [tasks/ci.yml, {path: mine.yml, required: false}]
        commands: {a: {run: echo a}}
        """,
    "tasks/ci.yml": "include: deep.yml\ncommands: {lint: {run: pwd}, train: }\n",
    "tasks/deep.yml": "commands: {deep: {run: echo deep, cwd: tasks}}\n",
    "train/fdl.yml": "commands: {t: {run: echo trained}}\n",
}


def test_included_commands_run_as_if_written_in_the_manifest(project, fdl):
    folder = project(FILES)
    assert fdl("a").out == "a\n"
    assert fdl("lint", cwd="tasks").out == f"{folder}\n"
    assert fdl("deep").out == "deep\n"
    assert fdl("train", "t").out == "trained\n"
    assert "lint" in fdl("--help").out
    assert "# tasks/ci.yml:2" in fdl("config", "show").out
    assert "tasks/deep.yml:1:24" in fdl("-n", "deep").out


def test_a_changed_or_new_included_file_is_noticed(project, fdl):
    folder = project(FILES)
    # Files that have just been written are not kept: another change may have the same time.
    wait_for(lambda: fdl("deep").out == "deep\n" and (folder / ".fdl/manifest.json").exists())
    (folder / "tasks/deep.yml").write_text("commands: {deep: {run: echo changed}}")
    assert fdl("deep").out == "changed\n"
    assert "unknown command: mine" in fdl("mine").err
    (folder / "mine.yml").write_text("commands: {mine: {run: echo mine}}")
    assert fdl("mine").out == "mine\n"
    (folder / "mine.yml").unlink()
    assert "unknown command: mine" in fdl("mine").err


def test_an_overlay_changes_an_included_command(project, fdl):
    project({**FILES, "fdl.ci.yml": "commands: {deep: {run: echo ci}}"})
    assert fdl("--env", "ci", "deep").out == "ci\n"
    assert "(overrides tasks/deep.yml:1)" in fdl("config", "show", "ci").out


def test_a_file_that_two_files_include_counts_once(project, fdl):
    project({**FILES, "mine.yml": "include: tasks/deep.yml"})
    assert fdl("deep").out == "deep\n"


def test_config_set_writes_into_the_included_file(project, fdl):
    folder = project(FILES)
    done = fdl("config", "set", "commands.deep.run", "echo set")
    assert (done.exit, done.err) == (0, "")
    assert "run: echo set" in (folder / "tasks/deep.yml").read_text()
    assert fdl("deep").out == "set\n"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (
            {"fdl.yml": "include: gone.yml"},
            "fdl.yml:1:10: `include: gone.yml`: there is no such file in ",
        ),
        (
            {"mine.yml": "commands:\n  a: {run: echo b}\n"},
            "mine.yml:2:3: command `a` is also defined at fdl.yml:2:12\n",
        ),
        (
            {"mine.yml": "env: {A: b}"},
            "mine.yml:1:1: `env` cannot be in an included file, which gives commands only\n",
        ),
        (
            {"tasks/deep.yml": "include: ci.yml"},
            "tasks/deep.yml:1:10: `include` leads in a circle: "
            "tasks/ci.yml -> tasks/deep.yml -> tasks/ci.yml\n",
        ),
        ({"mine.yml": "comands: {}"}, "mine.yml:1:1: unknown key `comands`; did you mean"),
        ({"fdl.yml": "include: 5"}, "fdl.yml:1:10: `include` must be a path, or a list of paths"),
    ],
)  # fmt: skip
def test_what_cannot_be_included_is_an_error_with_its_place(project, fdl, files, problem):
    project({**FILES, **files})
    done = fdl("a")
    assert (done.exit, done.out) == (1, "")
    assert problem in done.err
