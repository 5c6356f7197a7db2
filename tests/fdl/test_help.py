"""Help pages: what they show, how they are laid out, where they go."""

import os
import subprocess
import sys

import pytest

from fdl.base.layout import cells, wrap
from fdl.cli.builtins import summary
from fdl.manifest.builtins import BUILTINS, PANELS

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


def headings(page):
    return [line[:-1] for line in page.splitlines() if line.endswith(":") and line[0] != " "]


COMMANDS = [
    "  hello  Say hello",
    "  plain  make all",
    "  lines  echo one ...",
    "  train  Train the network",
    "  tools  (sub-command)",
]
SHORT = "Built-in commands (see fdl --help all)"


def test_the_project_page_begins_with_the_project_s_commands(project, fdl):
    project(FILES)
    page = fdl("--help")
    assert (page.exit, page.err) == (0, "")
    assert page.out.startswith("fdl - A project of two parts\n\nUsage: fdl ")
    assert headings(page.out) == ["Commands", SHORT]
    assert section(page.out, "Commands") == COMMANDS
    rows = [line.strip().split("  ", 1) for line in section(page.out, SHORT)]
    assert {panel: tuple(names.strip().split(", ")) for panel, names in rows} == PANELS
    for flag in ("--help", "--version", "-v", "--quiet", "--no-ansi", "--no-append", "--env NAME"):
        assert flag in page.out


def test_the_project_page_fits_a_small_terminal(project, fdl):
    project({**FILES, "fdl.ci.yml": "", "fdl.cloud.yml": ""})
    page = fdl("--env", "ci", "--help", env={"COLUMNS": "80"})
    lines = page.out.splitlines()
    assert "Environments: ci (active), cloud" in lines
    # What was typed stands above the page, and the next prompt below.
    assert len(lines) + 1 < 24
    assert max(map(len, lines)) <= 80


def test_all_of_the_project_page_describes_every_built_in_command(project, fdl):
    project(FILES)
    page = fdl("--help", "all")
    assert (page.exit, page.err) == (0, "")
    assert headings(page.out) == ["Commands", *PANELS, "Options"]
    assert section(page.out, "Commands") == COMMANDS
    for panel, names in PANELS.items():
        lines = section(page.out, panel)
        assert [line.split()[0] for line in lines if line[2] != " "] == list(names)
    for name in BUILTINS:
        assert f" {name} " in page.out
        assert summary(name) in " ".join(page.out.split())
    assert "-n, --dry-run [--json]" in page.out
    # A project's own command of this name is stronger.
    project({"fdl.yml": "commands: {all: {run: make all}}"})
    assert fdl("--help", "all").out.startswith("fdl all\n")


def test_outside_a_project_the_page_says_how_to_start_one(fdl):
    for typed in ([], ["--help"], ["--help", "all"]):
        page = fdl(*typed)
        assert (page.exit, page.err) == (0, "")
        assert headings(page.out) == [*PANELS, "Options"]
        assert page.out.endswith("\nStart a project with `fdl init demo`.\n")


def test_every_built_in_command_stands_in_one_panel():
    assert sorted(name for names in PANELS.values() for name in names) == sorted(BUILTINS)


GROUPS = {
    "fdl.yml": "commands: {train: , tools: {path: tools}}",
    "train/fdl.yml": """
        entry: python main.py
        commands: {quick: {training: {epochs: 1}}}
        schema:
          collapsed: {distributed: several GPUs or machines}
          options:
            epochs: {type: int, default: 3}
            workers: {type: int, default: 0, group: Data loading}
            policy: {type: string, choices: [sync, async], group: distributed}
            nodes: {type: string, group: distributed}
        """,
    "tools/fdl.yml": "commands: {fix: {run: ruff check --fix}}",
}
DISTRIBUTED = [
    "Distributed (several GPUs or machines):",
    "      --policy TEXT  [possible: sync, async]",
    "      --nodes TEXT",
]


def test_options_stand_in_their_groups_and_a_collapsed_group_is_a_line(project, fdl):
    project(GROUPS)
    page = fdl("train", "--help").out
    assert headings(page)[1:5] == ["Options", "Data loading", "More options", "Entry"]
    assert section(page, "Options") == [
        "      --epochs INT      [default: 3]",
        "  -h, --help            Show this page; `--help all` shows every option",
        "      --refresh-schema  Ask the program again which arguments it takes",
    ]
    assert section(page, "Data loading") == ["      --workers INT  [default: 0]"]
    assert section(page, "More options") == [
        "  --help distributed  2 options for several GPUs or machines"
    ]


def test_the_page_of_a_group(project, fdl):
    project(GROUPS)
    group = "\n".join(DISTRIBUTED)
    page = fdl("train", "--help", "distributed")
    assert (page.exit, page.err) == (0, "")
    assert page.out == f"Usage: fdl train [OPTIONS]\n\n{group}\n"
    assert fdl("train", "-h", "Distributed").out == page.out
    preset = fdl("train", "quick", "--help", "distributed").out
    assert preset == f"Usage: fdl train quick [OPTIONS]\n\n{group}\n"
    everything = fdl("train", "--help", "all").out
    assert group in everything
    assert "More options" not in everything
    assert "\nEntry:\n" in everything
    assert group in fdl("train", "quick", "--help", "all").out
    # A word before the flag is an argument of the program, and a preset stays a preset.
    assert fdl("train", "distributed", "--help").out == fdl("train", "--help").out
    assert fdl("train", "--help", "quick").out == fdl("train", "--help").out, "it selects nothing"


def test_words_behind_the_help_flag_select_nothing(project, fdl):
    project(
        {"fdl.yml": "commands: {a: , t: {run: echo t}}", "a/fdl.yml": "commands: {b: {run: x}}"}
    )
    assert fdl("a", "--help", "b").out == fdl("a", "--help").out
    assert fdl("a", "--help", "b", "c").out == fdl("a", "--help").out
    assert fdl("t", "-h", "a").out == fdl("t", "--help").out
    assert fdl("--help", "a", "b").out == fdl("a", "b", "--help").out, "no command was named yet"
    assert fdl("config", "--help", "show").out == fdl("config", "--help").out
    assert fdl("__complete", "bash", "--", "a", "--help", "").out == ""


def test_an_unknown_group_is_refused_with_the_groups(project, fdl):
    project(GROUPS)
    done = fdl("train", "--help", "distribted")
    assert (done.exit, done.out) == (1, "")
    assert done.err == (
        "error: no group of options is called `distribted`; groups: data-loading, distributed, "
        "all\nhint: did you mean `--help distributed`?\n"
        "Usage: fdl train [OPTIONS]\nsee fdl train --help\n"
    )
    assert "groups: data-loading, distributed, all" in fdl("train", "--help", "images").err
    assert "unknown command: tools fxi" in fdl("tools", "--help", "fxi").err
    assert "unknown command: nope" in fdl("--help", "nope").err


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
    assert fdl("-h", "train", "quick").out == page.out


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


def test_requested_help_goes_to_stdout(project, fdl):
    project(FILES)
    for typed in ([], ["-h"], ["tools"], ["train", "-h"], ["train", "slow", "-h"], ["config"]):
        page = fdl(*typed)
        assert (page.exit, page.err) == (0, "")
        assert "Usage: fdl" in page.out


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        (
            ["hellp"],
            [
                "error: unknown command: hellp",
                "hint: did you mean `fdl hello`?",
                "Usage: fdl [OPTIONS] COMMAND [ARGS]",
                "see fdl --help",
            ],
        ),
        (
            ["xyz", "--help"],
            [
                "error: unknown command: xyz",
                "Usage: fdl [OPTIONS] COMMAND [ARGS]",
                "see fdl --help",
            ],
        ),
        (
            ["--dry-rnu", "train"],
            [
                "error: unknown option: --dry-rnu",
                "hint: did you mean `--dry-run`?",
                "Usage: fdl [OPTIONS] COMMAND [ARGS]",
                "see fdl --help",
            ],
        ),
        (
            ["tools", "fxi"],
            [
                "error: unknown command: tools fxi",
                "hint: did you mean `fdl tools fix`?",
                "Usage: fdl tools [<command>]",
                "see fdl tools --help",
            ],
        ),
    ],
)
def test_an_error_ends_with_the_usage_line_and_where_the_page_is(project, fdl, typed, lines):
    project(FILES)
    done = fdl(*typed)
    assert (done.exit, done.out) == (1, "")
    assert done.err.splitlines() == lines


def test_a_flag_that_the_program_does_not_have_is_told_in_four_lines(project, fdl):
    project(
        {
            "fdl.yml": """
                entry: python main.py
                commands: {train: {path: sub}}
                """,
            "sub/fdl.yml": """
                entry: python main.py
                schema:
                  strict: true
                  args: [{name: data, type: path, required: true}]
                  options: {workers: {type: int}, mode: {type: string, choices: [fast, slow]}}
                """,
        }
    )
    done = fdl("train", "data", "--worker", "3")
    assert (done.exit, done.out) == (1, "")
    assert done.err.splitlines() == [
        "error: `fdl train`: unknown option `--worker`",
        "hint: did you mean `--workers`?",
        "Usage: fdl train [OPTIONS] <data>",
        "see fdl train --help",
    ]
    refused = fdl("train", "data", "--mode", "medium").err.splitlines()
    assert refused[0].startswith("error: `fdl train`: invalid value `medium` for `--mode`")
    assert refused[1:] == [
        "hint: choose one of them",
        "Usage: fdl train [OPTIONS] <data>",
        "see fdl train --help",
    ]


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


def test_help_is_also_a_word(project, fdl):
    project(
        {"fdl.yml": "entry: echo\ncommands: {quick: {training: {epochs: 1}}, help: {run: make}}"}
    )
    for words in ((), ("quick",), ("config", "set"), ("all",)):
        asked = ("--help", *words) if words == ("all",) else (*words, "--help")
        assert fdl("help", *words).out == fdl(*asked).out
    assert fdl("help", "quick").out.startswith("fdl quick")
    assert "unknown command: nope" in fdl("help", "nope").err
    assert "command `help` cannot be reached" in fdl("config", "show").err
