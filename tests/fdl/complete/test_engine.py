"""What is offered where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdl.base.global_flags import ANYWHERE, FLAGS, GLOBAL_FLAGS
from fdl.cli.builtins import summary
from fdl.cli.complete import answer, sources
from fdl.manifest.builtins import BUILTINS
from tests.conftest import Fdl, Project
from tests.fdl.complete.conftest import Complete
from tests.waiting import pass_a_tick

pytestmark = pytest.mark.usefixtures("root")

COMMANDS = ["train", "test", "my command", "it's", "a:b", "a:c"]


def test_the_first_word_is_a_built_in_a_command_or_an_environment(complete: Complete) -> None:
    assert complete("") == [*BUILTINS, *COMMANDS, "ci", "cloud"]


def test_without_words_the_answer_is_that_of_an_empty_one(complete: Complete) -> None:
    assert complete() == complete("")


def test_bash_gets_what_begins_like_the_word(complete: Complete) -> None:
    assert complete("t") == ["train", "test"]
    assert complete("tra") == ["train"]
    assert complete("x") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_get_all_that_belongs_there_with_descriptions(
    complete: Complete, shell: str
) -> None:
    lines = complete("tr", shell=shell)
    assert "train\tTrain a model" in lines
    assert "test\tRun: the tests" in lines
    assert f"list\t{summary('list')}" in lines
    assert "a:b" in lines
    assert "ci\tEnvironment of fdl.ci" in lines


def test_a_path_command_is_described_by_its_folder_once_that_is_known(
    complete: Complete, fdl: Fdl, project: Project
) -> None:
    project(
        {
            "fdl.yml": "commands: {x: , y: {run: 'true'}}",
            "x/fdl.yml": "{description: From the folder, entry: 'true', commands: {}}",
        }
    )
    assert "x" in complete("x", shell="zsh")
    assert fdl("x").exit == 0
    assert "x\tFrom the folder" in complete("x", shell="zsh")


def test_commands_that_cannot_run_are_left_out(complete: Complete) -> None:
    for word in ("bro", "now", "orp"):
        assert complete(word) == []


def test_built_ins_are_completed_at_any_depth(complete: Complete) -> None:
    assert complete("config", "") == ["show", "set"]
    assert complete("self", "schema", "c") == ["clear"]
    assert complete("config", "show", "--j") == ["--json"]
    assert complete("config", "nonsense", "") == []
    for words in (["completions"], ["self", "completions"]):
        assert complete(*words, "") == ["bash", "zsh", "fish"]
    assert complete("skill", "") == complete("self", "skill", "") == ["list", "install"]
    assert complete("version", "") == []


def test_behind_a_command_and_a_help_flag_stand_groups_of_options(complete: Complete) -> None:
    for flag in ("-h", "--help"):
        assert complete("train", flag, "") == ["output-files", "all"]
        assert complete("train", "quick", flag, "") == ["output-files", "all"]
        assert complete("train", flag, "ou") == ["output-files"]
    assert "output-files\twhat a run leaves" in complete("train", "-h", "", shell="zsh")
    assert complete("--help", "a") == [
        "adopt",
        "add",
        "a:b",
        "a:c",
        "all",
    ]
    assert complete("config", "--help", "") == []


def test_a_built_in_hides_a_command_of_its_name(complete: Complete, project: Project) -> None:
    project({"fdl.yml": "commands: {list: {run: 'true'}, lisp: {run: 'true'}}"})
    assert complete("lis") == ["list", "lisp"]
    assert complete("li", shell="zsh").count(f"list\t{summary('list')}") == 1


def test_children_and_presets_are_completed_at_any_depth(complete: Complete) -> None:
    expected = ["quick", "slow", "check", "tools"]
    # The first positional of the program is a file, so files may stand here as well.
    assert [line for line in complete("train", "") if not line.startswith(":")] == expected
    assert complete("train", "tools", "") == ["deep"]
    assert "quick\tOne epoch" in complete("train", "", shell="zsh")
    assert "tools\tWhat surrounds it" in complete("train", "", shell="fish")


@pytest.mark.case("cli", 52)
def test_presets_follow_a_path_command_and_choices_an_option_of_a_built_in(
    complete: Complete, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project(
        {
            "fdl.yml": "commands: {ddp-bench: {}}",
            "ddp-bench/fdl.yml": """
                entry: python -m bench
                commands:
                  quick: {training: {epochs: 1}}
                  validate: {options: {check: true}}
                """,
        }
    )
    assert complete("ddp-bench", "") == ["quick", "validate"]

    for words in (["--cuda", ""], ["--cuda", "12"]):
        assert answer(["bash", "--", "libtorch", "download", *words]) == 0
        assert capsys.readouterr().out.split() == ["12.6", "12.8"]


def test_installed_variants_follow_activate_and_remove_also_outside_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for id in ("precompiled/cu128", "builds/sm61-sm120"):
        (tmp_path / "own/libtorch" / id / "lib").mkdir(parents=True)
    (tmp_path / "own/libtorch/precompiled/half-made").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "own"))
    for command in ("activate", "remove"):
        assert answer(["bash", "--", "libtorch", command, ""]) == 0
        assert capsys.readouterr().out.split() == ["builds/sm61-sm120", "precompiled/cu128"]


def test_the_catalog_completes_versions_and_variants(capsys: pytest.CaptureFixture[str]) -> None:
    def offered(*words: str) -> list[str]:
        assert answer(["bash", "--", "libtorch", *words]) == 0
        return capsys.readouterr().out.split()

    assert offered("install", "") == ["auto", "cpu", "cu126", "cu128"]
    assert offered("install", "--torch", "2.1") == ["2.10.0", "2.11.0", "2.13.0"]
    assert offered("download", "--source", "") == ["archive", "wheel"]


def test_a_built_in_may_take_its_values_from_a_function(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ids(asked: sources.Asked) -> list[tuple[str, str]]:
        assert asked.project.directory == str(root)
        return [("precompiled/cpu", "CPU only"), ("builds/sm61", "")]

    monkeypatch.chdir(root)
    monkeypatch.setitem(sources.SOURCES, "variants", ids)
    assert answer(["zsh", "--", "libtorch", "activate", ""]) == 0
    assert capsys.readouterr().out == "precompiled/cpu\tCPU only\nbuilds/sm61\n"
    assert answer(["bash", "--", "libtorch", "activate", "b"]) == 0
    assert capsys.readouterr().out == "builds/sm61\n"


def test_options_of_a_program_are_offered_until_they_are_given(complete: Complete) -> None:
    own = ["--model", "--epochs", "--cache", "--out", "--tags", "--ckpt"]
    assert complete("train", "--")[: len(own)] == own
    assert complete("train", "quick", "--")[: len(own)] == own
    assert complete("train", "--model", "conv", "--m") == []
    assert complete("train", "--model=conv", "--m") == []
    assert complete("train", "-n", "3", "--e") == ["--env"]
    assert complete("train", "--cache", "--c") == ["--ckpt"]
    assert complete("train", "--tags", "red", "--ta") == ["--tags"]
    assert complete("train", "-n") == ["-n"]
    assert "--model\tWhich model" in complete("train", "--", shell="fish")


def test_the_value_of_an_option_is_one_of_its_choices(complete: Complete) -> None:
    assert complete("train", "--model", "") == ["linear", "conv", "big net"]
    assert complete("train", "--model", "li") == ["linear"]
    assert complete("train", "--model=") == ["--model=linear", "--model=conv", "--model=big net"]
    assert complete("train", "--cache", "--model=c") == ["--model=conv"]
    # A value is due and nobody knows which: neither flags nor commands stand in for it.
    assert complete("train", "--epochs", "") == []
    assert "--cache" in complete("train", "--epochs", "-")


def test_values_of_a_list_are_completed_one_by_one(complete: Complete) -> None:
    assert complete("train", "--tags", "") == ["red", "green", "blue"]
    assert complete("train", "--tags", "red,") == ["red,green", "red,blue"]
    assert complete("train", "--tags=red,blue,g") == ["--tags=red,blue,green"]


def test_a_completer_runs_in_the_folder_of_the_program(complete: Complete) -> None:
    assert complete("train", "--ckpt", "") == ["one", "two words"]
    assert complete("train", "--ckpt=o") == ["--ckpt=one"]
    assert complete("train", "--ckpt", "", shell="zsh") == ["one\tthe first", "two words"]


def test_a_completer_sees_the_project_and_no_input(complete: Complete, project: Project) -> None:
    root = with_completer(project, "cat; pwd; echo $FDL_PROJECT_ROOT; exit 3")
    assert complete("p", "--x", "") == [str(root / "p"), str(root)]


def test_a_completer_that_takes_too_long_is_stopped_with_all_it_started(
    complete: Complete, project: Project
) -> None:
    snippet = "exec 9>held; echo x >&9; echo early; sleep 1000 & sleep 1000; echo late"
    root = with_completer(project, snippet)
    os.mkfifo(root / "p/held")
    held = os.open(root / "p/held", os.O_RDONLY | os.O_NONBLOCK)
    assert complete("p", "--x", "") == ["early"]
    os.set_blocking(held, True)
    assert os.read(held, 9) == b"x\n"
    # The end comes when the last process that held the other side is gone.
    assert os.read(held, 9) == b""
    os.close(held)


def test_a_completer_that_never_stops_talking_is_cut(complete: Complete, project: Project) -> None:
    with_completer(project, "yes word")
    assert complete("p", "--x", "") == ["word"]


def with_completer(project: Project, snippet: str) -> Path:
    return project(
        {
            "fdl.yml": "commands: {p: {}}",
            "p/fdl.yml": f"""
                entry: python main.py
                schema: {{options: {{x: {{type: string, completer: '{snippet}'}}}}}}
                """,
        }
    )


def test_positionals_are_completed_in_their_order(complete: Complete, root: Path) -> None:
    assert complete("train", "no") == [f":files\t{root}/train"]
    assert complete("train", "data.txt", "f") == ["fast", "full"]
    assert complete("train", "--epochs", "3", "data.txt", "f") == ["fast", "full"]
    assert complete("train", "data.txt", "fast", "") == [
        line for line in complete("train", "-") if line not in global_flags()
    ]


def global_flags() -> list[str]:
    return [flag.name for flag in FLAGS if flag.text and flag.place == ANYWHERE]


def test_files_are_those_that_the_program_will_see(complete: Complete, root: Path) -> None:
    assert complete("train", "--out", "") == [f":files\t{root}/train"]
    assert complete("train", "--out=x") == [f":files\t{root}/train"]
    assert complete("test", "--", "x") == [":files"]
    assert complete("test", "--", "x", cwd="sub dir") == [f":files\t{root}"]


def test_a_program_that_nobody_knows_gets_files_where_nothing_else_fits(
    complete: Complete, root: Path
) -> None:
    assert complete("train", "tools", "") == ["deep"]
    assert complete("train", "tools", "d") == ["deep"]
    assert complete("train", "tools", "--unknown") == []
    assert complete("train", "tools", "--unknown=x") == [f":files\t{root}/train/tools"]
    assert complete("train", "tools", "x") == [f":files\t{root}/train/tools"]
    assert complete("train", "tools", "deep", "") == [f":files\t{root}/train/tools"]


def test_behind_two_dashes_nothing_of_fdl_is_offered(complete: Complete, root: Path) -> None:
    assert complete("test", "") == ["--"]
    assert complete("test", "--")[0] == "--"
    assert complete("test", "--", "--") == [":files"]
    assert complete("test", "--", "--env", "") == [":files"]
    assert complete("test", "--", "--env=") == [":files"]
    assert complete("train", "--", "qui") == [f":files\t{root}/train"]
    assert complete("list", "--", "") == []
    assert complete("--", "") == []


def test_global_flags_are_offered_anywhere_before_them(complete: Complete) -> None:
    assert complete("--dr") == ["--dry-run"]
    assert complete("test", "--no-") == ["--no-ansi", "--no-append"]
    assert complete("train", "quick", "--q") == ["--quiet"]
    assert complete("test", "--ansi", "--no-") == ["--no-append"]
    assert complete("test", "-q", "--q") == []
    # Behind a command these are the command's own.
    assert complete("test", "--dr") == []
    assert complete("-n", "--d") == []
    assert complete("--dry-run", "--js") == ["--json"]
    assert complete("--js") == []
    assert complete("--json", "--d") == ["--dry-run"]
    assert complete("-v", "--quiet", "t") == ["train", "test"]
    assert complete("--help", "tra") == ["train"]


def test_every_global_flag_is_known_here(complete: Complete) -> None:
    assert set(GLOBAL_FLAGS) <= {*complete("--")}


def test_flags_that_contradict_each_other_are_followed_by_nothing(complete: Complete) -> None:
    assert complete("--ansi", "--no-ansi", "t") == []
    assert complete("--env", "ci", "--env", "cloud", "t") == []


def test_an_environment_is_completed_where_one_is_named(complete: Complete) -> None:
    assert complete("--env", "") == ["ci", "cloud"]
    assert complete("test", "--env", "c") == ["ci", "cloud"]
    assert complete("--env=cl") == ["--env=cloud"]
    assert complete("ci", "cl") == []
    assert complete("config", "show", "") == ["ci", "cloud", *COMMANDS]
    assert complete("config", "show", "ci", "n") == ["nightly"]
    assert complete("--env", "ci", "--en") == []


def test_the_environment_decides_what_is_offered(complete: Complete) -> None:
    assert complete("n") == []
    assert complete("ci", "n") == ["nightly"]
    assert complete("--env", "ci", "n") == ["nightly"]
    assert complete("--env=ci", "n") == ["nightly"]
    assert complete("n", "--env", "ci") == ["ci"]
    assert complete("n", env={"FDL_ENV": "ci"}) == ["nightly"]
    assert complete("c", env={"FDL_ENV": "ci"}) == ["check", "config"]
    assert complete("ci", "n", env={"FDL_ENV": "cloud"}) == []


def test_an_environment_of_a_nested_manifest_is_completed(
    complete: Complete, project: Project, fdl: Fdl
) -> None:
    project(
        {
            "train/fdl.gpu.yml": "commands: {big: {training: {epochs: 1}}}\n",
            "train/tools/fdl.far.yml": "{}",
            "train/fdl.test.yml": "{}",
        }
    )
    assert complete("g") == ["gpu"]
    assert "gpu\tEnvironment of fdl.gpu" in complete("", shell="zsh")
    assert "gpu\tEnvironment of train/fdl.gpu.yml" in complete("--env", "", shell="zsh")
    assert complete("gpu", "tr") == ["train"]
    assert "big" in complete("gpu", "train", "b")
    assert "big" not in complete("train", "b")
    assert "big" in complete("--env", "gpu", "train", "b")
    assert "big" in complete("train", "b", env={"FDL_ENV": "gpu"})
    assert complete("config", "show", "g") == ["gpu"]
    assert "big" in complete("config", "show", "gpu", "train", "b")
    # A command has the name, so only `--env` leads to the environment.
    assert complete("tes") == ["test"]
    assert complete("--env", "tes") == ["test"]
    # A folder that has never been used is not read for a keystroke.
    assert complete("fa") == []
    assert fdl("train", "-n", "--help").exit == 0
    assert fdl("train", "check").exit == 0
    assert complete("fa") == ["far"]


def test_an_environment_left_over_from_another_project_is_passed_over(complete: Complete) -> None:
    assert complete("tra", env={"FDL_ENV": "elsewhere"}) == ["train"]
    assert complete("--env", "elsewhere", "tra") == ["train"]


def test_an_environment_named_like_a_command_is_no_first_word(
    complete: Complete, project: Project
) -> None:
    project({"fdl.test.yml": "commands: {extra: {run: 'true'}}", "fdl.list.yml": "{}"})
    assert complete("te") == ["test"]
    assert complete("test", "") == ["--"]
    assert complete("--env", "te") == ["test"]


def test_paths_and_layers_of_the_manifest_are_completed(complete: Complete) -> None:
    assert complete("why", "commands.test.") == ["commands.test.run", "commands.test.description"]
    assert complete("config", "set", "desc") == ["description"]
    assert 'commands."a:b".run\tfdl.yml:8:14' in complete("why", "", shell="zsh")
    assert complete("config", "set", "--where", "") == [
        "base",
        "ci",
        "cloud",
        "fdl.yml",
        "fdl.ci.yml",
        "fdl.cloud.yml",
        "train/fdl.yml",
    ]
    assert complete("config", "set", "description", "new", "--where=b") == ["--where=base"]


def test_commands_are_completed_where_they_are_arguments(complete: Complete) -> None:
    assert complete("self", "schema", "clear", "") == ["train"]
    assert complete("self", "schema", "refresh", "train", "") == ["tools"]
    assert complete("self", "schema", "refresh", "test", "") == ["--dry-run"]
    for asked in (("why", "training.lr"), ("config", "show"), ("plan",)):
        assert complete(*asked, "tr") == ["train"]
        assert "quick" in complete(*asked, "train", "q")
        assert complete(*asked, "train", "tools", "") == ["deep"]
        assert complete(*asked, "train", "quick", "--mo") == ["--model"]
    assert complete("why", "tr") == [], "the field comes first"
    assert complete("config", "set", "--for", "train q") == ["train quick"]
    assert complete("config", "set", "--for=train tools ") == ["--for=train tools deep"]


def test_a_broken_manifest_leaves_the_built_ins(complete: Complete, project: Project) -> None:
    project({"fdl.yml": "commands: [\n"})
    assert complete("") == list(BUILTINS)
    assert complete("config", "") == ["show", "set"]
    assert complete("train", "") == []
    assert complete("why", "") == ["--run", "--json"]


def test_a_broken_child_costs_only_what_is_below_it(complete: Complete, project: Project) -> None:
    project({"train/fdl.yml": "entry: [1"})
    assert complete("tr") == ["train"]
    assert complete("train", "") == []


def test_outside_every_project_the_built_ins_are_left(complete: Complete, root: Path) -> None:
    for file in root.glob("fdl*"):
        file.unlink()
    assert complete("") == list(BUILTINS)
    assert complete("--env", "") == []
    assert complete("train", "") == []
    assert complete("config", "show", "") == ["--json"]


def test_an_example_is_read_and_never_copied(complete: Complete, root: Path) -> None:
    (root / "fdl.yml").rename(root / "fdl.yml.example")
    before = sorted(root.rglob("*"))
    assert complete("tra") == ["train"]
    assert sorted(root.rglob("*")) == before


def test_no_program_is_started_and_nothing_written(
    complete: Complete, project: Project, root: Path
) -> None:
    project(
        {
            "train/fdl.yml": "{entry: python main.py, compile: true}",
            "train/main.py": "import fdl\nopen('started', 'w')  # FdlArgs --fdl-schema\n",
        }
    )
    before = sorted(root.rglob("*"))
    complete("train", "--")
    complete("train", "")
    assert sorted(root.rglob("*")) == before


def test_what_no_terminal_line_can_hold_is_left_out(complete: Complete, project: Project) -> None:
    project({"fdl.yml": 'commands: {"a\\nb": {run: x}, "a\\tb": {run: x}}'})
    assert complete("a", shell="zsh") == [f"{n}\t{summary(n)}" for n in BUILTINS] + [
        "ci\tEnvironment of fdl.ci",
        "cloud\tEnvironment of fdl.cloud",
    ]


def test_a_description_of_many_lines_becomes_one(complete: Complete, project: Project) -> None:
    project({"fdl.yml": 'commands: {x: {run: "true", description: "a\\n  b\\tc\\e[31m"}}'})
    assert "x\ta b c?[31m" in complete("x", shell="fish")


def test_a_secret_never_appears(complete: Complete, project: Project) -> None:
    project(
        {
            "fdl.yml": """
                env: {HF_TOKEN: planted-secret}
                commands:
                  x: {run: "curl --token planted-secret", append: !secret planted-secret}
                """
        }
    )
    for words in (["x"], ["x", ""], ["why", ""], ["config", "set", ""], [""]):
        assert "planted" not in "".join(complete(*words, shell="zsh"))


@pytest.mark.parametrize("words", [[], ["bash"], ["bash", "x"], ["", "--"], ["tcsh", "--", "tr"]])
def test_whatever_is_asked_the_exit_code_is_zero(fdl: Fdl, words: list[str]) -> None:
    session = fdl("__complete", *words)
    assert (session.exit, session.err) == (0, "")


def test_a_vanished_folder_leaves_the_built_ins(root: Path) -> None:
    gone = root / "gone"
    gone.mkdir()
    script = 'cd gone && rmdir ../gone && exec "$0" -m fdl __complete bash -- con'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable], cwd=root, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "config\n", "")


def test_a_warm_completion_imports_no_more_than_a_warm_command(fdl: Fdl, root: Path) -> None:
    pass_a_tick()
    fdl("test")
    fdl("train", "quick")
    assert (root / "train/.fdl/manifest.json").exists()
    for words in ([""], ["train", ""], ["train", "--"], ["train", "--model", ""], ["config", ""]):
        assert imported(root, words).isdisjoint(HEAVY)


def test_a_completion_reads_no_yaml_where_only_an_environment_has_been_used(
    fdl: Fdl, root: Path
) -> None:
    (root / "fdl.ci.yml").write_text("description: In CI\n")
    pass_a_tick()
    fdl("--env", "ci", "test")
    assert (root / ".fdl/manifest.ci.json").exists()
    assert not (root / ".fdl/manifest.json").exists()
    assert imported(root, ["--env", "ci", "te"]).isdisjoint(HEAVY)


HEAVY = {
    *("re", "json", "typing", "dataclasses", "enum", "pathlib", "shlex", "textwrap"),
    *("yaml", "pydantic", "subprocess", "functools"),
}


def imported(folder: Path, words: list[str]) -> set[str]:
    """The modules that are loaded after a completion."""
    code = (
        "import sys; from fdl.cli.complete import answer; "
        f"answer(['zsh', '--', *{words!r}]); print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())
