"""Running commands on this machine: folder, streams, programs, and what a warm start loads."""

import subprocess
import sys

import pytest

from tests.fdl.programs import executable
from tests.waiting import pass_a_tick


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
    code = "import os; from fdl.cli.entry import main; os.rmdir(os.getcwd()); exit(main(['t']))"
    (folder / "gone/x").unlink()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder / "gone", capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the current directory cannot be read")


# The warm path ------------------------------------------------------------------------------

# Runs fdl in the same process and reports which modules that has loaded.
LOADED = """
import sys
before = set(sys.modules)
from fdl.cli.entry import main
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
    pass_a_tick()
    assert fdl("t").exit == 0
    loaded = loaded_by(folder, "t", "--", "it's")
    foreign = {name for name in loaded if name.split(".")[0] != "fdl"}
    assert foreign <= {"__future__", "_json"}


@pytest.mark.parametrize(
    "typed",
    [
        *(["t"], ["--dry-run", "t"], ["--help"]),
        ["__complete", "bash", "--", "t"],
    ],
    ids=" ".join,
)
def test_a_cold_start_loads_yaml_and_pydantic_for_the_manifest_and_no_other_framework(
    typed, project
):
    manifest = "training: {seed: 1}\ncommands: {t: {run: 'true', env: {A: 1}}, q: {ddp: {}}}"
    manifest += "\nentry: python tool.py"
    loaded = loaded_by(project({"fdl.yml": manifest}), *typed)
    assert {"yaml", "pydantic"} <= loaded
    assert loaded.isdisjoint({"typer", "click", "rich", "jinja2", "httpx2"})


def test_the_version_loads_next_to_nothing(tmp_path):
    assert loaded_by(tmp_path, "--version") == {
        "__future__",
        "fdl",
        "fdl.base",
        "fdl.base.errors",
        "fdl.cli",
        "fdl.cli.entry",
        "fdl.version",
    }


def test_a_warm_help_page_reads_no_yaml_and_the_first_one_is_not_drawn_by_rich(project, fdl):
    folder = project({"fdl.yml": "commands: {t: {run: 'true'}, s: }", "s/fdl.yml": "entry: main"})
    pass_a_tick()
    assert fdl("t").exit == 0
    assert fdl("--dry-run", "s").exit == 0
    assert loaded_by(folder, "t", "--help").isdisjoint({"yaml", "pydantic", "typer"})
    assert loaded_by(folder, "--help").isdisjoint({"typer", "rich", "httpx2", "torch"})


@pytest.mark.parametrize(
    "typed", ["config show", "config show t", "why commands.t.run", "check", "list"], ids=str
)
def test_a_warm_built_in_command_neither_reads_nor_checks_the_manifest_again(typed, project, fdl):
    folder = project({"fdl.yml": "commands: {t: {run: 'true'}}"})
    pass_a_tick()
    assert fdl("t").exit == 0
    assert loaded_by(folder, *typed.split()).isdisjoint({"yaml", "pydantic"})
