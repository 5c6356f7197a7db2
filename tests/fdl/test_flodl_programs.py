"""`fdl runs verify` and `fdl ddp-bench`: programs of flodl behind names of fdl."""

import json
from pathlib import Path

import pytest

import flodl
from tests.fdl.programs import executable
from tests.fdl.run_directory.trails import trail

BENCH = Path(flodl.__file__).parent / "ddp_bench" / "fdl.yml"
ONE, TWO = "2026-01-01T09-00-00", "2026-01-02T09-00-00"
SHOWS_ARGUMENTS = '#!/bin/sh\nprintf "%s\\n" "$@"\nexit 4\n'


@pytest.fixture
def python(project, tmp_path):
    """A project with two runs whose Python prints its arguments and exits with 4."""
    project({"fdl.yml": "output: {dir: out}\n", ".venv/pyvenv.cfg": "home = /usr\n"})
    for name in (ONE, TWO):
        trail(tmp_path / "out" / name)
    return executable(tmp_path / ".venv/bin/python", SHOWS_ARGUMENTS)


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), [f"out/{TWO}"]),
        (("last", "--json"), [f"out/{TWO}", "--json"]),
        ((ONE,), [f"out/{ONE}"]),
        ((f"out/{ONE}",), [f"out/{ONE}"]),
    ],
)
def test_a_run_is_named_as_everywhere_and_the_exit_code_passed_on(fdl, tmp_path, words, expected):
    done = fdl("runs", "verify", *words)
    assert done.exit == 4, done.err
    flag, module, path, *rest = done.out.splitlines()
    assert (flag, module) == ("-m", "flodl.train.run.verify")
    assert (tmp_path / path).resolve() == (tmp_path / expected[0]).resolve()
    assert rest == expected[1:]


@pytest.mark.usefixtures("python")
def test_a_run_that_is_not_there_starts_nothing(fdl):
    done = fdl("runs", "verify", "nope")
    assert (done.exit, done.out) == (2, "")
    assert "no run is called `nope`" in done.err


def test_a_dry_run_shows_the_program(python, fdl):
    done = fdl("-n", "runs", "verify", ONE)
    assert done.exit == 0
    assert "-m flodl.train.run.verify" in done.out
    assert done.out == fdl("runs", "verify", ONE, "-n").out
    assert json.loads(fdl("-n", "--json", "runs", "verify", ONE).out)["argv"][0] == str(python)


needs_bench = pytest.mark.skipif(not BENCH.exists(), reason="this flodl has no bench")


@needs_bench
@pytest.mark.usefixtures("python")
def test_a_preset_becomes_flags_and_what_is_typed_comes_last(fdl):
    done = fdl("ddp-bench", "quick", "--ranks", "2", "--", "x")
    assert done.exit == 4, done.err
    _, module, *argv = done.out.splitlines()
    assert module == "flodl.ddp_bench"
    # The bench starts ranks itself, so that nothing of this is kept back.
    assert argv[-3:] == ["--ranks", "2", "x"]
    assert {"--model", "--mode", "--epochs"} <= set(argv)
    plain = fdl("ddp-bench", "--list").out.splitlines()
    assert plain == ["-m", "flodl.ddp_bench", "--list"]


@needs_bench
@pytest.mark.usefixtures("python")
def test_the_bench_works_where_it_was_called(fdl, tmp_path):
    before = set(BENCH.parent.iterdir())
    plan = json.loads(fdl("-n", "--json", "ddp-bench", "quick").out)
    assert (plan["cwd"], plan["preset"]) == (str(tmp_path), "quick")
    assert plan["command"] == ["ddp-bench", "quick"]
    assert plan["flags"][0]["origin"].startswith("flodl/ddp_bench/fdl.yml:")
    assert json.loads(plan["env"]["FDL_PLAN"])["cwd"] == str(tmp_path)
    assert set(BENCH.parent.iterdir()) == before, "nothing is cached beside a library"


@needs_bench
@pytest.mark.usefixtures("python")
def test_its_page_shows_the_presets(fdl):
    before = set(BENCH.parent.glob(".*"))
    page = fdl("ddp-bench", "--help")
    assert page.exit == 0, page.err
    assert "Usage: fdl ddp-bench" in page.out
    for preset in ("quick", "full-sweep", "solo-0", "solo-1", "validate", "report"):
        assert f"    {preset}" in page.out
    assert "Settings:" in fdl("ddp-bench", "quick", "--help").out
    assert set(BENCH.parent.glob(".*")) == before, "nothing is kept where flodl is installed"


@needs_bench
def test_completion_knows_its_presets(project, fdl):
    project({"fdl.yml": ""})
    offered = fdl("__complete", "bash", "--", "ddp-bench", "").out.splitlines()
    assert {"quick", "validate", "report"} <= set(offered)


def test_completion_of_a_plan_is_that_of_the_command(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: , test: {run: a}}",
            "train/fdl.yml": """
                entry: python main.py
                schema: {options: {depth: {type: int}}}
                commands: {quick: {training: {epochs: 1}}}
            """,
        }
    )

    def offered(*words):
        return fdl("__complete", "bash", "--", "plan", *words).out.splitlines()

    assert offered("") == ["train", "test"]
    assert offered("train", "q") == ["quick"]
    assert {"--simulate", "--json", "--depth"} <= set(offered("train", "--"))
    assert offered("train", "--json", "--simulate", "40", "q") == ["quick"]


@pytest.mark.usefixtures("forked_venv")
@pytest.mark.parametrize("name", ["ddp-bench", "plan", "sweep"])
def test_a_project_s_own_command_of_the_name_is_stronger(project, fdl, name):
    project(
        {
            "fdl.yml": f"commands: {{{name}: , other: {{run: fdl}}}}",
            f"{name}/fdl.yml": "entry: echo mine\ncommands: {fast: {options: {x: 1}}}\n",
        }
    )
    assert fdl(name, "fast", "--help").exit == 0
    assert fdl(name, "fast").out == "mine --x 1\n"
    assert fdl("__complete", "bash", "--", name, "").out.splitlines()[-1] == "fast"
    assert f"{name} fast" in fdl("list").out
    assert "unreachable" not in fdl("--help").out
    project({"fdl.yml": "commands: {broken"})
    assert "mine" not in fdl(name).out
