"""``fdl config show`` as typed in a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.conftest import Fdl, Project

MANIFEST = """
    # An image classifier.
    description: digits
    entry: python train.py
    training:
      lr: 1e-3
      seed: 42
    commands:
      hello: {run: "echo hi: there"}
      quick:
        training: {epochs: 1}
        options:
          sizes: [1, 2]
          name: no
    """


def test_every_leaf_carries_its_line_in_one_column(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": MANIFEST})
    session = fdl("config", "show")
    assert (session.exit, session.err) == (0, "")
    assert session.out == (
        "description: digits        # fdl.yml:2\n"
        "entry: python train.py     # fdl.yml:3\n"
        "training:\n"
        "  lr: 0.001                # fdl.yml:5\n"
        "  seed: 42                 # fdl.yml:6\n"
        "commands:\n"
        "  hello:\n"
        '    run: "echo hi: there"  # fdl.yml:8\n'
        "  quick:\n"
        "    training:\n"
        "      epochs: 1            # fdl.yml:10\n"
        "    options:\n"
        "      sizes: [1, 2]        # fdl.yml:12\n"
        '      name: "no"           # fdl.yml:13\n'
    )
    assert [path.name for path in root.iterdir()] == ["fdl.yml"]


@pytest.mark.case("cli", 12)
def test_an_exponent_is_a_float_and_no_is_text(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": "training: {lr: 1e-3}\ncommands: {p: {options: {name: no}}}\n"})
    shown = yaml.safe_load(fdl("config", "show").out)
    assert shown == {"training": {"lr": 0.001}, "commands": {"p": {"options": {"name": "no"}}}}
    leaves = json.loads(fdl("config", "show", "--json").out)
    assert {leaf["path"]: leaf["value"] for leaf in leaves} == {
        "training.lr": 0.001,
        "commands.p.options.name": "no",
    }
    assert type(leaves[0]["value"]) is float


def test_json_gives_every_leaf_its_place(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": MANIFEST, "deep/down/x": ""})
    session = fdl("config", "show", "--json", cwd="deep/down")
    assert (session.exit, session.err) == (0, "")
    leaves = json.loads(session.out)
    assert len(leaves) == 8
    assert leaves[2] == {
        "path": "training.lr",
        "value": 0.001,
        "file": "fdl.yml",
        "line": 5,
        "column": 7,
        "overrides": [],
    }
    assert leaves[6]["value"] == [1, 2]


def test_without_a_manifest_it_says_what_to_type(tmp_path: Path, fdl: Fdl) -> None:
    session = fdl("config", "show")
    assert (session.exit, session.out) == (1, "")
    assert session.err.startswith(
        f"error: no fdl.yml found in {tmp_path} or any directory above it"
    )
    assert "fdl init NAME" in session.err


def test_a_broken_manifest_is_told_with_its_place(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": "description: x\ncommands:\n\thello: {run: y}\n"})
    session = fdl("config", "show")
    assert (session.exit, session.out) == (1, "")
    assert "fdl.yml:3:1: not valid YAML" in session.err
    assert "indent with spaces" in session.err


def test_bare_config_and_show_help_are_help(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": MANIFEST})
    bare = fdl("config")
    assert (bare.exit, bare.err) == (0, "")
    assert "Usage: fdl config" in bare.out
    assert "show" in bare.out
    page = fdl("config", "show", "--help")
    assert (page.exit, page.err) == (0, "")
    assert "Usage: fdl config show" in page.out
    assert "--json" in page.out


def test_unreachable_commands_and_rival_manifests_are_warned_about(
    project: Project, fdl: Fdl
) -> None:
    project({"fdl.yml": "commands: {init: {run: x}, version: {run: y}, ok: }", "fdl.json": "{}"})
    session = fdl("config", "show")
    assert session.exit == 0
    assert yaml.safe_load(session.out)["commands"]["init"] == {"run": "x"}
    warnings = session.err.splitlines()
    assert len(warnings) == 3
    assert "fdl.yml is read, not fdl.json" in warnings[0]
    assert "command `init` cannot be reached" in warnings[1]
    assert "command `version` cannot be reached" in warnings[2]


def test_a_terminal_that_cannot_say_a_character_gets_an_escape(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": "description: é😀\n"})
    session = fdl("config", "show", env={"PYTHONIOENCODING": "ascii"})
    assert (session.exit, session.err) == (0, "")
    assert "\\xe9" in session.out
