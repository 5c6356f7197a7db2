"""``fdl config show`` and ``fdl why`` on terminals of several widths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from fdl.base.layout import cells
from tests.conftest import Fdl, Project
from tests.fdl import screen
from tests.fdl.test_screens import QUIET
from tests.rows import sampled

ADDRESS = "https://example.org/" + "very-long-name/" * 10
SENTENCE = "A classifier of digits, described in more words than fit on one line of most terminals"
FILES = {
    "fdl.yml": f"""
        description: {SENTENCE}
        entry: python train.py --data /data/digits --name "two  blanks" --verbose --all-of-it
        training: {{lr: 0.1, epochs: 5}}
        env: {{ADDRESS: "{ADDRESS}", 名前: "数字の分類器を訓練するための設定 数字の分類器"}}
        commands:
          quick:
            options:
              tags: [first tag, second tag, third tag, fourth tag, fifth tag, sixth tag]
              names: [one, two]
        """,
    "fdl.cloud.yml": "training: {lr: 0.2}\n",
    "fdl.ci.yml": "inherit-from: fdl.cloud.yml\ntraining: {lr: 0.3, epochs: null}\n",
}
WIDTHS = (40, 60, 80, 100, 132, 220)


@pytest.fixture(name="root")
def _root(project: Project) -> Path:
    return project(FILES)


def shown(root: Path, columns: int, *words: str) -> list[str]:
    code, raw = screen.typed(*words, cwd=root, columns=columns, env=QUIET)
    assert code == 0
    return screen.plain(raw).splitlines()


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_page_fits_the_terminal_and_reads_back(root: Path, fdl: Fdl, columns: int) -> None:
    lines = shown(root, columns, "config", "show", "ci")
    assert yaml.safe_load("\n".join(lines)) == yaml.safe_load(fdl("config", "show", "ci").out)
    assert all(line.index("#") < 60 for line in lines if "#" in line)
    wide = [line for line in lines if cells(line) > columns]
    assert all(ADDRESS in line for line in wide)
    told = [line for line in lines if "wider than this terminal" in line]
    assert bool(told) == bool(wide)
    assert told == [] or "env.ADDRESS" in " ".join(lines[lines.index(told[0]) :])


@pytest.mark.parametrize("columns", WIDTHS)
def test_every_origin_is_there(root: Path, fdl: Fdl, columns: int) -> None:
    def comments(text: str) -> list[str]:
        return re.sub(r"\s+", " ", " ".join(re.findall(r"# (.*)", text))).split()

    lines = shown(root, columns, "config", "show", "ci")
    page = [line for line in lines if "wider than this terminal" not in line]
    found = comments("\n".join(page))
    assert [word for word in found if word != "env.ADDRESS"] == comments(
        fdl("config", "show", "ci").out
    )


def test_a_long_value_has_its_origin_on_a_line_of_its_own(root: Path) -> None:
    lines = shown(root, 60, "config", "show", "ci")
    start = lines.index("training:")
    assert lines[0].startswith("description: A classifier of digits, ")
    assert lines[2].split() == ["#", "fdl.yml:1"]
    assert lines[start + 1].split("#")[0].strip() == "lr: 0.3"
    column = lines[start + 1].index("#")
    assert lines[2].index("#") == column
    assert lines[start + 2].index("#") == column, "a long origin goes on below itself"


@pytest.mark.usefixtures("root")
def test_a_pipe_gets_one_line_per_value_whatever_the_columns(fdl: Fdl) -> None:
    for words in (("config", "show", "ci"), ("config", "show", "quick"), ("why", "description")):
        plain = fdl(*words).out
        assert fdl(*words, env={"COLUMNS": "40"}).out == plain
        assert "wider than" not in plain
    lines = fdl("config", "show", "ci").out.splitlines()
    assert lines[0].startswith(f"description: {SENTENCE}")
    assert len({line.index("  # ") for line in lines if "  # " in line}) == 1


@pytest.mark.parametrize(
    ("asked", "columns"),
    sampled(("description", "entry", "training.lr", "env", "commands"), WIDTHS),
)
def test_why_fits_the_terminal(root: Path, fdl: Fdl, asked: str, columns: int) -> None:
    lines = shown(root, columns, "--env", "ci", "why", asked)
    wide = [line for line in lines if cells(line) > columns]
    assert all(ADDRESS in line for line in wide)
    text = " ".join(lines)
    assert ("wider than this terminal: env.ADDRESS" in re.sub(r"\s+", " ", text)) == bool(wide)
    words = fdl("--env", "ci", "why", asked).out.split()
    seen = text.split()
    assert [word for word in words if word not in seen] == []


def test_why_on_a_wide_terminal_is_what_a_pipe_gets(root: Path, fdl: Fdl) -> None:
    for asked in ("training.lr", "training.epochs", "commands.quick.options.names"):
        lines = shown(root, 120, "--env", "ci", "why", asked)
        assert lines == fdl("--env", "ci", "why", asked).out.splitlines()


def test_origins_are_dimmed_on_a_terminal_only(root: Path, fdl: Fdl) -> None:
    _, raw = screen.typed("config", "show", cwd=root, columns=80, env=QUIET)
    assert "\x1b[2m# fdl.yml:3\x1b[0m" in raw
    assert "\x1b" not in fdl("--ansi", "config", "show").out
