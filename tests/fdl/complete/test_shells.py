"""Completion in the real shells: what a line becomes when TAB is pressed, and what is listed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.conftest import Fdl
from tests.fdl.complete.conftest import FILES
from tests.fdl.complete.shells import Shell
from tests.waiting import pass_a_tick

SHELLS = ("bash", "zsh", "fish")
LOAD = {
    "bash": 'eval "$(fdl completions bash)"',
    "zsh": 'eval "$(fdl completions zsh)"',
    "fish": "fdl completions fish | source",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after some work in it, so that completion finds its manifests read."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
    pass_a_tick()
    for env in ([], ["--env", "ci"], ["--env", "cloud"]):
        # Its program is missing, but all three manifests on the way to it have been read.
        typed = [sys.executable, "-m", "fdl", *env, "train", "tools", "deep"]
        assert subprocess.run(typed, cwd=folder, capture_output=True).returncode
    caches = {str(path.relative_to(folder)) for path in folder.rglob(".fdl/*.json")}
    assert {".fdl/manifest.ci.json", "train/tools/.fdl/manifest.json"} < caches
    return folder


@pytest.fixture(scope="module", params=SHELLS)
def shell(
    request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    """Each shell in the project, with the printed script loaded and nothing else.

    Nobody runs anything in it, so one serves all tests: every line is emptied after it was shown.
    """
    home = tmp_path_factory.mktemp("home")
    with Shell(request.param, home, root, LOAD[request.param]) as started:
        yield started


def test_names_and_choices_are_completed(shell: Shell) -> None:
    assert shell.press_tab("fdl tr") == "fdl train "
    assert shell.press_tab("fdl train qui") == "fdl train quick "
    assert shell.press_tab("fdl train tools d") == "fdl train tools deep "
    assert shell.press_tab("fdl config se") == "fdl config set "
    assert shell.press_tab("fdl train --mod") == "fdl train --model "
    assert shell.press_tab("fdl train --model lin") == "fdl train --model linear "
    assert shell.press_tab("fdl train --tags red,gr") == "fdl train --tags red,green "
    assert shell.press_tab("fdl train --ckpt on") == "fdl train --ckpt one "
    assert shell.press_tab("fdl ci ni") == "fdl ci nightly "
    assert shell.press_tab("fdl -v --env clo") == "fdl -v --env cloud "
    assert shell.press_tab("fdl nonsense ") == "fdl nonsense "


def test_an_equals_sign_or_a_colon_is_part_of_the_word(shell: Shell) -> None:
    assert shell.press_tab("fdl train --model=lin") == "fdl train --model=linear "
    assert shell.press_tab("fdl train --tags=red,bl") == "fdl train --tags=red,blue "
    assert shell.press_tab("fdl --env=clo") == "fdl --env=cloud "
    assert shell.press_tab("fdl a:b") == "fdl a:b "


def test_blanks_and_quotes_survive(shell: Shell) -> None:
    assert shell.press_tab("fdl my") == r"fdl my\ command "
    assert shell.press_tab('fdl "my co') == 'fdl "my command" '
    assert shell.press_tab("fdl 'my co") == "fdl 'my command' "
    assert shell.press_tab("fdl it") == r"fdl it\'s "
    assert shell.press_tab('fdl "it') == """fdl "it's" """
    assert shell.press_tab("fdl train --model=big") == r"fdl train --model=big\ net "
    assert shell.press_tab('fdl train --model "bi') == 'fdl train --model "big net" '
    assert shell.press_tab(r"fdl my\ command --qui") == r"fdl my\ command --quiet "


def test_files_are_completed_where_they_belong(shell: Shell) -> None:
    assert shell.press_tab("fdl test -- to") == "fdl test -- top.txt "
    assert shell.press_tab("fdl test -- su") == r"fdl test -- sub\ dir/"
    assert shell.press_tab(r"fdl test -- sub\ dir/b") == r"fdl test -- sub\ dir/b.txt "
    assert shell.press_tab("fdl test -- ~/bi") == "fdl test -- ~/bin/"
    # A program's files are seen from its own folder, where it is going to run.
    assert shell.press_tab("fdl train --out no") == "fdl train --out notes.txt "
    assert shell.press_tab("fdl train --out=no") == "fdl train --out=notes.txt "
    assert shell.press_tab("fdl train --out=./no") == "fdl train --out=./notes.txt "
    assert shell.press_tab("fdl train --out ../to") == "fdl train --out ../top.txt "
    assert shell.press_tab("fdl train my") == r"fdl train my\ data/"
    assert shell.press_tab("fdl train --out=~/bi") == "fdl train --out=~/bin/"
    assert shell.press_tab("fdl train top") == "fdl train top"


def test_the_program_may_be_called_by_its_path_and_anywhere_on_a_line(shell: Shell) -> None:
    assert shell.press_tab(f"{shell.launcher} tr") == f"{shell.launcher} train "
    assert shell.press_tab("true && fdl tr") == "true && fdl train "
    assert shell.press_tab("A=1 fdl tr") == "A=1 fdl train "
    assert shell.press_tab("  fdl  -v   tr") == "  fdl  -v   train "


def test_nothing_typed_is_executed(shell: Shell, root: Path) -> None:
    shell.press_tab("fdl $(touch executed) tr")
    shell.press_tab("fdl train '$(touch executed)")
    if shell.name != "zsh":  # whose own TAB carries such words out, completion or not
        shell.press_tab("fdl train --model=$(touch executed)")
    assert not (root / "executed").exists()


def test_several_candidates_are_listed(shell: Shell) -> None:
    assert shell.press_tab("fdl te") == "fdl test "
    assert shell.press_tab("fdl t") == "fdl t"
    assert "test" in shell.text
    assert "train" in shell.text
    # bash has no room for descriptions.
    assert ("Train a model" in shell.text) is (shell.name != "bash")
    assert ("Run: the tests" in shell.text) is (shell.name != "bash")
    assert shell.press_tab("fdl train --model=") == "fdl train --model="
    for choice in ("linear", "conv"):
        assert choice in shell.text


@pytest.mark.parametrize(
    "name", [SHELLS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in SHELLS[1:])]
)
def test_the_working_directory_decides(
    root: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    with Shell(name, tmp_path_factory.mktemp("home"), root, LOAD[name]) as shell:
        shell.run("cd train")
        assert shell.press_tab("fdl qui") == "fdl quick "
        assert shell.press_tab("fdl --env c") == "fdl --env c"
        shell.run("cd /")
        assert shell.press_tab("fdl tr") == "fdl tr"
        assert shell.press_tab("fdl self au") == "fdl self autocomplete "


@pytest.mark.parametrize("name", SHELLS)
def test_completions_prints_the_script_of_a_shell(fdl: Fdl, name: str) -> None:
    session = fdl("completions", name)
    assert (session.exit, session.err) == (0, "")
    assert "__complete" in session.out
    if name == "bash":
        assert fdl("completions").out == session.out


def test_completions_refuses_other_shells(fdl: Fdl) -> None:
    session = fdl("completions", "tcsh")
    assert (session.exit, session.out) == (2, "")
    assert "invalid value `tcsh` for `<shell>` -- allowed: bash, zsh, fish" in session.err


def test_bash_without_word_breaks_at_equals_signs_and_colons(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    start = f"COMP_WORDBREAKS=$' \\t\\n\"\\''\n{LOAD['bash']}"
    with Shell("bash", tmp_path_factory.mktemp("home"), root, start) as shell:
        assert shell.press_tab("fdl train --model=lin") == "fdl train --model=linear "
        assert shell.press_tab("fdl a:b") == "fdl a:b "
        assert shell.press_tab("fdl test -- --x=to") == "fdl test -- --x=top.txt "
        assert shell.press_tab("fdl train --out=no") == "fdl train --out=notes.txt "


def test_zsh_may_find_the_script_on_its_function_path(
    root: Path, tmp_path_factory: pytest.TempPathFactory, fdl: Fdl
) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / "functions").mkdir()
    (home / "functions/_fdl").write_text(fdl("completions", "zsh").out)
    start = "fpath=(~/functions $fpath)\nautoload -Uz compinit && compinit -u -D"
    with Shell("zsh", home, root, start) as shell:
        assert shell.press_tab("fdl tr") == "fdl train "
        assert shell.press_tab("fdl train --model=lin") == "fdl train --model=linear "
