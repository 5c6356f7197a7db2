"""``fdl add flodl-hf``: what a project that is there already gets, and what it keeps."""

import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml

from fdl.base.errors import ScaffoldError
from fdl.scaffold.add import playground
from tests.fdl.terminal import Terminal

PYPROJECT = """\
[project]
name = "mine"
version = "1"
dependencies = [
    "numpy",
    "flodl[train]==0.4.2",  # held
]

[tool.ruff]
line-length = 100
"""
MANIFEST = """\
# ours
description: mine

commands:
    test:
        run: pytest  # all

training:
    lr: 0.1
"""
FILES = [".gitignore", "README.md", "fdl.yml", "main.py", "pyproject.toml"]
COMMANDS = [
    *("classify", "bert", "roberta-sentiment", "distilbert-sentiment", "ner", "qa", "fill-mask"),
    *("encode", "finetune", "build", "check", "shell"),
]


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def mine(tmp_path):
    """A project with line ends of Windows in its ``pyproject.toml``."""
    (tmp_path / "pyproject.toml").write_bytes(PYPROJECT.replace("\n", "\r\n").encode())
    (tmp_path / "fdl.yml").write_text(MANIFEST)
    (tmp_path / "fdl.yml.example").write_text(MANIFEST.replace("ours", "everybody's"))
    return tmp_path


def replace(file, old, new):
    text = file.read_bytes().decode()
    assert old in text
    file.write_bytes(text.replace(old, new).encode())


# --install ------------------------------------------------------------------------------------


@pytest.mark.case("cli", 60)
@pytest.mark.case("hf", 48)
def test_install_adds_the_extra_in_place_and_the_second_time_nothing(fdl, mine):
    before = contents(mine)
    done = fdl("add", "hf", "--install")
    assert (done.exit, done.err) == (0, "")
    assert done.out.startswith("Changed pyproject.toml: flodl[train,hf]==0.4.2\n")
    after = contents(mine)
    expected = before["pyproject.toml"].replace(b"flodl[train]", b"flodl[train,hf]")
    assert after == {**before, "pyproject.toml": expected}
    again = fdl("add", "flodl-hf", "--install")
    assert (again.exit, again.out) == (0, "")
    assert "pyproject.toml demands `flodl[train,hf]==0.4.2` already" in again.err
    assert contents(mine) == after


@pytest.mark.case("cli", 60)
def test_install_keeps_a_range_and_refuses_a_repository(fdl, mine):
    replace(mine / "pyproject.toml", "flodl[train]==0.4.2", "flodl >=0.1,<9 ; os_name != 'x'")
    done = fdl("add", "hf", "--install")
    assert (done.exit, done.err) == (0, "")
    (numpy, ours) = tomllib.loads((mine / "pyproject.toml").read_text())["project"]["dependencies"]
    assert (numpy, ours) == ("numpy", "flodl[hf] >=0.1,<9 ; os_name != 'x'")

    for place in ("git+https://h.test/flodl", "file:///src/flodl"):
        (mine / "pyproject.toml").write_text(PYPROJECT.replace("==0.4.2", f" @ {place}"))
        before = contents(mine)
        for mode in ("--install", "--playground"):
            refused = fdl("add", "hf", mode)
            assert refused.exit == 1
            assert f"error: flodl comes from {place} here" in refused.err
            assert "hint: hold it to a version" in refused.err
        assert contents(mine) == before


@pytest.mark.case("cli", 60)
@pytest.mark.case("hf", 48)
def test_without_flags_and_without_a_terminal_both_flags_are_named(fdl, mine):
    before = contents(mine)
    done = fdl("add", "hf")
    assert done.exit == 1
    assert "error: say what to add: `--playground`, `--install`, or both" in done.err
    assert contents(mine) == before


@pytest.mark.parametrize(
    ("flavor", "extra"), [("full", "hf"), ("vision", "hf-vision"), ("offline", "hf-offline")]
)
def test_the_flavor_chooses_the_extra(fdl, mine, flavor, extra):
    assert fdl("add", "hf", "--install", "--flavor", flavor).exit == 0
    assert f'"flodl[train,{extra}]==0.4.2"' in (mine / "pyproject.toml").read_text()
    # What brings more includes it; what brings less does not.
    for other in ("vision", "offline"):
        fdl("add", "hf", "--install", "--flavor", other)
    kept = {"hf": "hf", "hf-vision": "hf-vision", "hf-offline": "hf-offline,hf-vision"}[extra]
    assert f'"flodl[train,{kept}]==0.4.2"' in (mine / "pyproject.toml").read_text()


def test_a_flavor_without_install_is_refused(fdl, mine):
    done = fdl("add", "hf", "--playground", "--flavor", "offline")
    assert done.exit == 2
    assert "error: `--flavor` says what `--install` demands" in done.err
    assert not (mine / "flodl-hf").exists()


def test_a_locked_range_of_a_group_becomes_a_pin_in_a_new_list(fdl, project):
    folder = project(
        {
            "pyproject.toml": """
                [project]
                name = "x"

                [dependency-groups]
                dev = ["flodl>=0.3"]
                """,
            "uv.lock": '[[package]]\nname = "flodl"\nversion = "0.5.1"\n',
        }
    )
    done = fdl("add", "hf", "--install")
    assert (done.exit, done.err) == (0, "")
    text = (folder / "pyproject.toml").read_text()
    assert text.startswith('[project]\nname = "x"\ndependencies = ["flodl[hf]==0.5.1"]\n\n[dep')


def test_a_requirements_file_is_changed_where_the_project_has_no_list(fdl, project):
    folder = project(
        {
            "pyproject.toml": "[tool.ruff]\n",
            "requirements.txt": "torch\nflodl==0.4 # held\n",
        }
    )
    for code, out in ((0, "Changed requirements.txt: flodl[hf]==0.4\n"), (0, "")):
        done = fdl("add", "hf", "--install")
        assert done.exit == code
        assert done.out.partition("Next")[0] == out
        assert (folder / "requirements.txt").read_text() == "torch\nflodl[hf]==0.4 # held\n"
        assert (folder / "pyproject.toml").read_text() == "[tool.ruff]\n"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (None, "there is no pyproject.toml in", "fdl init NAME"),
        ("[project\n", "pyproject.toml is not valid TOML", "fix it"),
        ('[project]\nname = "x"\n', "does not name flodl", '"flodl=='),
        ('[project]\nname = "x"\ndynamic = ["dependencies"]', "are dynamic", "flodl[hf]"),
        ('[project]\ndependencies = "flodl"', "is not a list of texts", "dependencies = ["),
        ('[tool.poetry.dependencies]\nflodl = "0.4"', "tool.poetry", 'poetry add "flodl[hf]"'),
    ],
)
def test_install_says_what_is_missing_and_leaves_the_file_alone(fdl, tmp_path, text, message, hint):
    file = tmp_path / "pyproject.toml"
    if text is not None:
        file.write_text(text)
    done = fdl("add", "hf", "--install")
    assert done.exit == 1
    error, _, remedy = done.err.partition("hint: ")
    assert message in error
    assert hint in remedy
    assert (file.read_text() if text else None) == text


def test_a_link_stays_a_link_and_permissions_stay(fdl, mine):
    real = mine / "elsewhere.toml"
    (mine / "pyproject.toml").rename(real)
    (mine / "pyproject.toml").symlink_to(real.name)
    real.chmod(0o640)
    assert fdl("add", "hf", "--install").exit == 0
    assert (mine / "pyproject.toml").is_symlink()
    assert b"train,hf" in real.read_bytes()
    assert real.stat().st_mode & 0o777 == 0o640


# --playground ---------------------------------------------------------------------------------


@pytest.mark.case("cli", 61)
@pytest.mark.case("hf", 48)
def test_a_playground_gets_its_files_and_its_command_and_the_second_time_an_error(fdl, mine):
    before = contents(mine)
    done = fdl("add", "hf", "--playground")
    assert (done.exit, done.err) == (0, "")
    after = contents(mine)
    assert sorted(after) == sorted([*before, *(f"flodl-hf/{name}" for name in FILES)])
    assert done.out.startswith("Created flodl-hf/ with 5 files:\n  flodl-hf/.gitignore\n")
    assert "Added the command `flodl-hf` to fdl.yml\n" in done.out
    assert "Added the command `flodl-hf` to fdl.yml.example\n" in done.out
    added = (
        b"    flodl-hf:\n"
        b"        description: Try models of the Hugging Face hub\n"
        b"        path: ./flodl-hf/\n"
    )
    for name in ("fdl.yml", "fdl.yml.example"):
        head, later, rest = before[name].partition(b"\ntraining:")
        assert after[name] == head + added + later + rest
    assert after["pyproject.toml"] == before["pyproject.toml"]
    assert fdl("list").err == ""

    again = fdl("add", "hf", "--playground")
    assert again.exit == 1
    assert "error: flodl-hf exists already; nothing was written" in again.err
    assert contents(mine) == after


@pytest.mark.case("hf", 48)
def test_both_flags_do_both_and_the_second_time_nothing(fdl, mine):
    done = fdl("add", "hf", "--playground", "--install")
    assert (done.exit, done.err) == (0, "")
    assert done.out.index("Changed pyproject.toml") < done.out.index("Created flodl-hf/")
    after = contents(mine)
    assert b"flodl[train,hf]==0.4.2" in after["pyproject.toml"]
    assert b"    flodl-hf:\n" in after["fdl.yml"]
    assert fdl("add", "hf", "--playground", "--install").exit == 1
    assert contents(mine) == after


def test_an_entry_that_is_there_already_is_kept(fdl, mine):
    replace(mine / "fdl.yml", "    test:", "    flodl-hf:\n        path: ./flodl-hf/\n    test:")
    before = contents(mine)
    assert fdl("add", "hf", "--playground").exit == 0
    after = contents(mine)
    assert after["fdl.yml"] == before["fdl.yml"]
    assert after["fdl.yml.example"] != before["fdl.yml.example"]


def test_the_playground_demands_the_flodl_of_the_project(fdl, mine):
    fdl("add", "hf", "--playground")
    made = tomllib.loads((mine / "flodl-hf/pyproject.toml").read_text())
    assert made["project"]["dependencies"] == ["flodl[hf]==0.4.2"]


@pytest.mark.parametrize("containers", [False, True])
def test_the_commands_run_in_a_container_where_the_project_has_one(fdl, mine, containers):
    if containers:
        (mine / "docker-compose.yml").write_text("services: {dev: {image: x}}\n")
    assert fdl("add", "hf", "--playground").exit == 0
    made = yaml.safe_load((mine / "flodl-hf/fdl.yml").read_text())["commands"]
    assert list(made) == COMMANDS
    assert {one.get("docker") for one in made.values()} == {"dev" if containers else None}
    assert ("docker" in (mine / "flodl-hf/fdl.yml").read_text()) == containers
    assert ("--user" in made["build"]["run"]) == containers


@pytest.mark.usefixtures("mine")
def test_every_command_can_be_planned_and_takes_another_model(fdl):
    fdl("add", "hf", "--playground")
    for name in COMMANDS:
        plan = fdl("--dry-run", "flodl-hf", name, "--", "owner/name")
        assert plan.exit == 0, plan.err
        assert " owner/name" in plan.out
    assert "python main.py owner/name" in fdl("-n", "flodl-hf", "classify", "--", "owner/name").out


def test_the_playground_is_a_package_that_builds(fdl, mine):
    fdl("add", "hf", "--playground")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=mine / "flodl-hf",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (mine / "flodl-hf/dist/flodl_hf_playground-0.1.0-py3-none-any.whl").is_file()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_keeps_what_belongs_to_everybody(fdl, mine):
    fdl("add", "hf", "--playground")
    subprocess.run(["git", "init", "-q"], cwd=mine, check=True)
    kept = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "flodl-hf"],
        cwd=mine,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    expected = sorted(f"flodl-hf/{name}" for name in FILES)
    assert sorted(kept) == expected


@pytest.mark.parametrize("missing", [["pyproject.toml"], ["fdl.yml", "fdl.yml.example"]])
def test_what_is_no_project_is_sent_to_init(fdl, mine, missing):
    for name in missing:
        (mine / name).unlink()
    before = contents(mine)
    done = fdl("add", "hf", "--playground")
    assert done.exit == 1
    assert f"error: there is no {missing[0]} in {mine}" in done.err
    assert "fdl init NAME" in done.err
    assert contents(mine) == before


def test_an_empty_folder_gets_a_playground_at_once(fdl, tmp_path):
    done = fdl("add", "hf", "--playground")
    assert done.exit == 0, done.err
    assert "Added the command `flodl-hf` to fdl.yml, a new file" in done.out
    commands = yaml.safe_load((tmp_path / "fdl.yml").read_text())["commands"]
    assert commands["flodl-hf"]["path"] == "./flodl-hf/"
    listed = fdl("flodl-hf", "--help")
    assert listed.exit == 0, listed.err
    assert "classify" in listed.out
    again = fdl("add", "hf", "--playground")
    assert again.exit == 1


def test_a_dry_run_in_an_empty_folder_leaves_it_empty(fdl, tmp_path):
    done = fdl("add", "hf", "--playground", "-n")
    assert done.exit == 0, done.err
    assert "Would add the command `flodl-hf` to fdl.yml, a new file" in done.out
    assert not list(tmp_path.iterdir())


def test_a_broken_manifest_stops_it_before_anything_is_written(fdl, mine):
    (mine / "fdl.yml.example").write_text("commands: [\n")
    before = contents(mine)
    done = fdl("add", "hf", "--playground", "--install")
    assert done.exit == 1
    assert "error: fdl.yml.example:2:1: not valid YAML" in done.err
    assert contents(mine) == before


def test_a_manifest_that_cannot_be_written_takes_everything_back(mine):
    prepared = playground(mine, {})
    with (mine / "fdl.yml.example").open("a") as stream:
        stream.write("# somebody else\n")
    before = contents(mine)
    with pytest.raises(ScaffoldError, match=r"fdl\.yml\.example has changed meanwhile"):
        prepared.write()
    assert contents(mine) == before


@pytest.mark.parametrize("words", [["--playground"], ["--install"], ["--playground", "--install"]])
def test_a_dry_run_tells_and_changes_nothing(fdl, mine, words):
    before = contents(mine)
    done = fdl("add", "hf", *words, "-n")
    assert (done.exit, done.err) == (0, "")
    titles = {
        "--playground": "Would create flodl-hf/ with 5 files:",
        "--install": "Would change pyproject.toml: flodl[train,hf]==0.4.2",
    }
    assert [title for title in titles.values() if title in done.out] == [
        title for flag, title in titles.items() if flag in words
    ]
    assert contents(mine) == before


# The command line -----------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["torch"], ["flodl"]])
def test_a_missing_or_unknown_target_names_those_there_are(fdl, mine, words):
    done = fdl("add", *words, "--playground")
    assert done.exit == 2
    assert "flodl-hf, hf" in done.err
    assert not (mine / "flodl-hf").exists()


MENU = "Choose [1]: "


@pytest.mark.parametrize(
    ("answers", "code", "playground", "install"),
    [
        (["\n"], 0, True, False),
        (["1\n"], 0, True, False),
        (["2\n"], 0, False, True),
        (["both?\n", "3\n"], 0, True, True),
        (["4\n"], 1, False, False),
        (["\x04"], 1, False, False),
    ],
)
def test_on_a_terminal_somebody_chooses(mine, answers, code, playground, install):
    with Terminal("add", "hf", cwd=mine) as terminal:
        for answer in answers:
            terminal.read_until(MENU)
            terminal.text = ""
            terminal.press(answer)
        assert terminal.finish() == code
    assert (mine / "flodl-hf").exists() is playground
    assert (b"[train,hf]" in (mine / "pyproject.toml").read_bytes()) is install


def test_yes_takes_the_first_choice(fdl, mine):
    assert fdl("-y", "add", "hf").exit == 0
    assert (mine / "flodl-hf").is_dir()
