"""Help pages: what they show, how they are laid out, where they go."""

import os
import subprocess
import sys

import pytest

from fdl.help.layout import cells, wrap

FILES = {
    "fdl.yml": """
        description: A project of two parts
        commands:
          hello: {description: Say hello, run: echo hello, append: --loud -- --slow, docker: dev}
          plain: {run: make all}
          lines:
            run: |
              echo one
              echo two
          train:
          tools: {path: tools}
        """,
    "train/fdl.yml": """
        description: Train the network
        entry: python main.py
        docker: cuda
        arg-name: recipe
        ddp: {mode: sync, anchor: 10}
        training: {epochs: 5, batch_size: 64, lr: 1e-3, seed: 42}
        commands:
          quick:
            description: One epoch
            training: {epochs: 1}
            options: {model: linear}
          slow: {training: {epochs: 50}}
          lint: {description: Check the style, run: ruff check}
        """,
    "tools/fdl.yml": "commands: {fix: {run: ruff check --fix}}",
}


def section(page, heading):
    """The lines below one heading of a page."""
    lines = page.split(f"\n{heading}:\n", 1)[1].split("\n\n")[0]
    return lines.rstrip("\n").split("\n")


def test_the_project_page(project, fdl):
    project(FILES)
    page = fdl("--help")
    assert (page.exit, page.err) == (0, "")
    assert page.out.startswith("fdl - A project of two parts\n\nUsage: fdl ")
    headings = [line for line in page.out.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Options:", "Built-in commands:", "Commands:"]
    assert section(page.out, "Built-in commands")[0].startswith("  setup ")
    assert section(page.out, "Commands") == [
        "  hello  Say hello",
        "  plain  make all",
        "  lines  echo one ...",
        "  train  Train the network",
        "  tools  (sub-command)",
    ]
    for flag in ("-h, --help", "-V, --version", "-vvv", "-q, --quiet", "--no-ansi", "--no-append"):
        assert flag in page.out


def test_the_page_of_a_folder_with_presets(project, fdl):
    project(FILES)
    page = fdl("train", "--help")
    assert (page.exit, page.err) == (0, "")
    assert page.out.startswith("fdl train - Train the network\n")
    assert "Usage: fdl train [<recipe>|<command>] [ARGS]\n" in page.out
    assert section(page.out, "Arguments") == [
        "  <recipe>  Named settings to run with",
        "    quick   One epoch",
        "    slow",
    ]
    assert section(page.out, "Commands") == ["  lint  Check the style"]
    assert section(page.out, "Entry") == ["  python main.py  in docker service cuda"]
    assert section(page.out, "Defaults") == [
        "  mode        sync   train/fdl.yml:5:13",
        "  anchor      10     train/fdl.yml:5:27",
        "  epochs      5      train/fdl.yml:6:20",
        "  batch_size  64     train/fdl.yml:6:35",
        "  lr          0.001  train/fdl.yml:6:43",
        "  seed        42     train/fdl.yml:6:55",
    ]


@pytest.mark.case("cli", 27)
def test_the_page_of_a_preset_shows_what_it_would_run(project, fdl):
    project(FILES)
    page = fdl("train", "quick", "--help")
    assert (page.exit, page.err) == (0, "")
    assert page.out.startswith("fdl train quick - One epoch\n\nUsage: fdl train quick [ARGS]\n")
    assert "  training.epochs      1      train/fdl.yml:10:24" in section(page.out, "Settings")
    assert "  training.seed        42     train/fdl.yml:6:55" in section(page.out, "Settings")
    assert section(page.out, "Options") == ["  --model linear  train/fdl.yml:11:22"]
    assert " ".join(" ".join(section(page.out, "Runs")).replace("\\", "").split()) == (
        "python main.py --mode sync --anchor 10 --epochs 1 --batch-size 64 --lr 0.001 --seed 42 "
        "--model linear [ARGS]"
    )
    assert "docker service cuda" in page.out
    assert fdl("train", "-h", "quick").out == page.out


def test_the_page_of_a_run_command_shows_where_arguments_go(project, fdl):
    project(FILES)
    page = fdl("hello", "--help")
    assert page.out.startswith("fdl hello - Say hello\n")
    assert "Usage: fdl hello [-- ARGS [-- RUNNER_ARGS]]\n" in page.out
    assert section(page.out, "Runs") == ["  echo hello --loud [ARGS] -- --slow [RUNNER_ARGS]"]
    assert "docker service dev" in page.out
    assert "`fdl hello -- -x`" in page.out
    assert section(fdl("lines", "-h").out, "Runs") == [
        "  echo one",
        "  echo two [ARGS] [-- RUNNER_ARGS]",
    ]
    assert "fdl tools fix -- -x" in " ".join(fdl("tools", "fix", "-h").out.split())


def test_requested_help_goes_to_stdout_and_help_after_an_error_to_stderr(project, fdl):
    project(FILES)
    for typed in ([], ["-h"], ["tools"], ["train", "-h"], ["train", "slow", "-h"], ["config"]):
        page = fdl(*typed)
        assert (page.exit, page.err) == (0, "")
        assert "Usage: fdl" in page.out
    for typed in (["nope"], ["nope", "--help"], ["tools", "nope"], ["config", "nope"]):
        page = fdl(*typed)
        assert (page.exit, page.out) == (1, "")
        assert "Usage: fdl" in page.err


@pytest.mark.parametrize("columns", [40, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(project, fdl, columns):
    words = "A description made of many words which are all of them short. " * 5
    project({"fdl.yml": f"description: {words}\ncommands: {{a: {{run: x, description: {words}}}}}"})
    page = fdl("--help", env={"COLUMNS": str(columns)})
    widest = max(len(line) for line in page.out.splitlines())
    assert min(columns, 100) - 10 <= widest <= columns
    assert page.out.split().count("description") == 10


def test_a_long_name_does_not_push_the_descriptions_away(project, fdl):
    long = "a-command-with-a-name-of-considerable-length"
    project({"fdl.yml": f"commands: {{b: {{run: x, description: Short}}, {long}: {{run: make}}}}"})
    assert section(fdl().out, "Commands") == ["  b  Short", f"  {long}", "     make"]


def test_broken_commands_are_listed_as_such(project, fdl):
    project(
        {
            "fdl.yml": "commands: {a: {run: x, path: y}, p: {training: {lr: 1}}, gone: , bad: }",
            "bad/fdl.yml": "[",
        }
    )
    page = fdl("--help")
    assert (page.exit, page.err) == (0, "")
    assert section(page.out, "Commands") == [
        "  a     (broken: `fdl a` says why)",
        "  p     (broken: a preset needs an `entry`)",
        "  gone  (sub-command)",
        "  bad   (sub-command)",
    ]


def test_help_writes_nothing(project, fdl):
    folder = project(FILES)
    before = set(folder.rglob("*"))
    fdl("--help")
    fdl("train", "quick", "--help")
    assert set(folder.rglob("*")) == before


def test_descriptions_a_terminal_cannot_show_are_escaped_not_fatal(project, fdl):
    project({"fdl.yml": "description: größer → 大\ncommands: {}"})
    assert "größer → 大" in fdl().out
    page = fdl(env={"PYTHONIOENCODING": "ascii"})
    assert page.exit == 0
    assert "gr\\xf6\\xdfer" in page.out


def test_a_reader_that_leaves_early_is_no_error(project):
    folder = project(FILES)
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "fdl", "--help"], cwd=folder, stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert done.stderr == b""


def test_wrapping_breaks_at_blanks_and_measures_wide_characters():
    assert wrap("a bb ccc dddd", 6) == ["a bb", "ccc", "dddd"]
    assert wrap("longer-than-the-line x", 6) == ["longer-than-the-line", "x"]
    assert wrap("", 6) == [""]
    assert [cells(text) for text in ("abc", "大小", "e\u0301")] == [3, 4, 1]
