"""``fdl why`` as typed in a terminal."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Fdl, Project

PROJECT = {
    "fdl.yml": """
        env: {HF_HOME: /data, GONE: x}
        env_file: .env
        training: {lr: 0.1, epochs: 5}
        commands:
          t: {run: pytest -x, append: -- --slow}
          train:
            env: {GONE: null}
        entry: python tool.py
        """,
    "fdl.cloud.yml": "training: {lr: 0.2}\n",
    "fdl.ci.yml": """
        inherit-from: fdl.cloud.yml
        env: {HF_HOME: /ci}
        training: {lr: 0.3, epochs: null}
        commands: {t: {append: null}}
        """,
    ".env": "API_URL=http://localhost\n",
    "train/fdl.yml": """
        entry: python main.py
        training: {lr: 0.01, epochs: 5}
        ddp: {mode: sync}
        schema:
          options:
            lr: {type: float, default: 0.001, env: LR}
            batches: {type: int, default: 100}
            tags: {type: "list[string]", default: [z]}
        commands:
          quick:
            training: {lr: 0.02}
            ddp: {policy: sync}
            options: {model: linear, tags: [a, b]}
        """,
    "train/fdl.ci.yml": """
        training: {lr: 0.05}
        commands: {quick: {options: {tags: !append [c]}}}
        """,
}


def rows(text: str) -> list[list[str]]:
    """The statements below the heading, split where columns are."""
    return [[cell.strip() for cell in line.split("  ") if cell] for line in text.splitlines()[1:]]


def test_the_whole_stack_of_a_manifest_value_strongest_first(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    session = fdl("--env", "ci", "why", "training.lr")
    assert (session.exit, session.err) == (0, "")
    assert session.out == (
        "training.lr = 0.3\n"
        "  wins        0.3  fdl.ci.yml:3:16     overlay\n"
        "  overridden  0.2  fdl.cloud.yml:1:16  overlay\n"
        "  overridden  0.1  fdl.yml:3:16        manifest\n"
    )


def test_a_removed_value_names_what_removed_it(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    session = fdl("--env", "ci", "why", "commands.t.append")
    assert session.exit == 0
    assert session.out == (
        "commands.t.append is removed\n"
        "  removed     null         fdl.ci.yml:4:24  overlay\n"
        '  overridden  "-- --slow"  fdl.yml:5:31     manifest\n'
    )


def test_a_key_below_a_removed_mapping_is_removed_with_it(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": "training: {lr: 1}\n", "fdl.ci.yml": "training: null\n"})
    out = fdl("--env", "ci", "why", "training.lr").out
    assert rows(out) == [
        ["removed", "null", "fdl.ci.yml:1:11", "overlay"],
        ["overridden", "1", "fdl.yml:1:16", "manifest"],
    ]


def test_a_mapping_explains_every_value_below_it(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    out = fdl("why", "training").out
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [
        "training.lr = 0.1",
        "",
        "training.epochs = 5",
    ]


def test_json_holds_the_same_stack(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    document = json.loads(fdl("--env", "ci", "why", "training.epochs", "--json").out)
    assert document == {
        "schema_version": 1,
        "fields": [
            {
                "path": "training.epochs",
                "value": None,
                "removed": True,
                "stack": [
                    {
                        "role": "removed",
                        "value": None,
                        "file": "fdl.ci.yml",
                        "line": 3,
                        "column": 29,
                        "source": "overlay",
                    },
                    {
                        "role": "overridden",
                        "value": 5,
                        "file": "fdl.yml",
                        "line": 3,
                        "column": 29,
                        "source": "manifest",
                    },
                ],
            }
        ],
    }


@pytest.mark.parametrize(
    ("asked", "guess"),
    [
        ("training.lrr", "fdl why training.lr"),
        ("lr", "fdl why training.lr"),
        ("command.t.run", "fdl why commands.t.run"),
    ],
)
def test_an_unset_field_suggests_the_nearest_one(
    project: Project, fdl: Fdl, asked: str, guess: str
) -> None:
    project(PROJECT)
    session = fdl("why", asked)
    assert (session.exit, session.out) == (2, "")
    assert f"nothing in fdl.yml sets `{asked}`" in session.err
    assert f"did you mean `{guess}`?" in session.err


@pytest.mark.parametrize("asked", ["", "a..b", "a.", 'a."b', "a[x]"])
def test_what_is_no_path_is_refused(project: Project, fdl: Fdl, asked: str) -> None:
    project(PROJECT)
    session = fdl("why", asked)
    assert session.exit == 2
    assert "is not a path of a manifest" in session.err


@pytest.mark.parametrize("asked", [["training.lr"], ["lr"], ["--lr"], ["--", "--lr"]])
def test_a_field_of_a_command_down_to_the_programs_default(
    project: Project, fdl: Fdl, asked: list[str]
) -> None:
    project(PROJECT)
    line = ("train", "quick", "--lr", "9")
    session = fdl("--env", "ci", "why", *asked, *line, env={"LR": "7"})
    assert (session.exit, session.err) == (0, "")
    assert session.out.startswith("training.lr = 9.0\n")
    assert rows(session.out) == [
        ["wins", "9.0", "command line"],
        ["overridden", "7.0", "environment variable LR"],
        ["overridden", "0.02", "train/fdl.yml:11:20", "preset quick"],
        ["overridden", "0.05", "train/fdl.ci.yml:1:16", "overlay"],
        ["overridden", "0.01", "train/fdl.yml:2:16", "manifest"],
        ["overridden", "0.001", "schema default"],
    ]


def test_the_programs_variable_beats_the_manifest(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    out = fdl("why", "lr", "train", "quick", env={"LR": "7"}).out
    assert out.startswith("training.lr = 7.0\n")
    assert rows(out)[0] == ["wins", "7.0", "environment variable LR"]


def test_items_that_are_added_up_are_part_of_the_value(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    ask = ("--env", "ci", "why", "options.tags", "train", "quick")
    out = fdl(*ask).out
    assert out.startswith("options.tags = [a, b, c]\n")
    assert rows(out) == [
        ["wins", "[c]", "train/fdl.ci.yml:2:36", "preset quick"],
        ["part of it", "[a, b]", "train/fdl.yml:13:36", "preset quick"],
        ["overridden", "[z]", "schema default"],
    ]
    out = fdl(*ask, "--tags", "d", "--tags", "e").out
    assert out.startswith("options.tags = [d, e]\n")
    assert [row[0] for row in rows(out)] == ["wins", *["overridden"] * 3]


def test_a_preset_that_says_it_the_other_way_removes_the_mode(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    out = fdl("why", "ddp.mode", "train", "quick").out
    assert out.startswith("ddp.mode is removed\n")
    assert rows(out) == [
        ["removed", "null", "train/fdl.yml:12:19", "preset quick"],
        ["overridden", "sync", "train/fdl.yml:3:13", "manifest"],
    ]


def test_variables_of_a_command(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    ask = ("--env", "ci", "why")
    out = fdl(*ask, "env.HF_HOME", "train", env={"HF_HOME": "/mine"}).out
    assert rows(out) == [
        ["wins", "/mine", "environment"],
        ["overridden", "/ci", "fdl.ci.yml:2:16", "manifest"],
        ["overridden", "/data", "fdl.yml:1:16", "manifest"],
    ]
    out = fdl(*ask, "env.API_URL", "train").out
    assert rows(out) == [["wins", "<secret>", ".env:1", "env file"]]
    out = fdl(*ask, "env.GONE", "train").out
    assert rows(out) == [
        ["removed", "null", "fdl.yml:7:17", "manifest"],
        ["overridden", "x", "fdl.yml:1:29", "manifest"],
    ]


@pytest.mark.parametrize(
    ("asked", "row"),
    [
        ("run", ["wins", "pytest -x", "fdl.yml:5:12", "manifest"]),
        ("append", ["wins", '"-- --slow"', "fdl.yml:5:31", "manifest"]),
        ("env_file", ["wins", ".env", "fdl.yml:2:11", "manifest"]),
    ],
)
def test_fields_of_a_run_command(project: Project, fdl: Fdl, asked: str, row: list[str]) -> None:
    project(PROJECT)
    assert rows(fdl("why", asked, "t", "--", "-k", "x").out) == [row]


def test_an_append_that_a_layer_removed(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    session = fdl("--env", "ci", "why", "append", "t")
    assert session.exit == 0
    assert session.out.startswith("append is removed\n")


def test_an_unset_field_of_a_command(project: Project, fdl: Fdl) -> None:
    project(PROJECT)
    session = fdl("why", "modell", "train", "quick", "--api-key", "sesame-open")
    assert (session.exit, session.out) == (2, "")
    assert "nothing sets `modell` for `fdl train quick`" in session.err
    typed = "train quick --api-key <secret>"
    assert f"did you mean `fdl why options.model {typed}`?" in session.err


def test_an_entry_that_the_parent_replaces(project: Project, fdl: Fdl) -> None:
    project(
        {
            "fdl.yml": "commands: {sub: {entry: python b.py}}\n",
            "sub/fdl.yml": "entry: python a.py\n",
        }
    )
    assert rows(fdl("why", "entry", "sub").out) == [
        ["wins", "python b.py", "fdl.yml:1:25", "manifest"],
        ["overridden", "python a.py", "sub/fdl.yml:1:8", "manifest"],
    ]


STRUCTURED = {
    "fdl.yml": """\
entry: echo main.py
ddp:
  speed_hint:
    slow_rank: 1
    ratio: 2.0
training:
  optim: {lr: 0.1, wd: 5}
commands:
  quick:
    training: {optim: {lr: 0.7}}
  fast:
    ddp:
      speed_hint: {slow_rank: 2, ratio: 3}
""",
    "fdl.ci.yml": "ddp: {speed_hint: {ratio: 4.0}}\n",
}


def test_every_value_inside_a_structured_flag_has_its_own_place(project: Project, fdl: Fdl) -> None:
    project(STRUCTURED)
    assert fdl("why", "ddp.speed_hint", "ci", "quick").out == (
        "ddp.speed_hint.slow_rank = 1\n"
        "  wins  1  fdl.yml:4:16  manifest\n"
        "\n"
        "ddp.speed_hint.ratio = 4.0\n"
        "  wins        4.0  fdl.ci.yml:1:27  overlay\n"
        "  overridden  2.0  fdl.yml:5:12     manifest\n"
    )
    assert fdl("why", "ddp.speed_hint.ratio", "ci", "fast").out == (
        "ddp.speed_hint.ratio = 3\n"
        "  wins        3    fdl.yml:13:41    preset fast\n"
        "  overridden  4.0  fdl.ci.yml:1:27  overlay\n"
        "  overridden  2.0  fdl.yml:5:12     manifest\n"
    )
    assert fdl("why", "training.optim", "quick").out == (
        'training."optim.lr" = 0.7\n'
        "  wins        0.7  fdl.yml:10:28  preset quick\n"
        "  overridden  0.1  fdl.yml:7:15   manifest\n"
        "\n"
        'training."optim.wd" = 5\n'
        "  wins  5  fdl.yml:7:24  manifest\n"
    )
    shown = fdl("config", "show", "ci", "quick").out.splitlines()
    (line,) = [one for one in shown if one.lstrip().startswith("ratio:")]
    assert line.split("# ")[1] == "fdl.ci.yml:1 (overrides fdl.yml:5)"


def test_a_plan_names_the_place_that_changed_a_structured_flag(project: Project, fdl: Fdl) -> None:
    project(STRUCTURED)
    plan = json.loads(fdl("--env", "ci", "--dry-run", "--json", "quick").out)
    (flag,) = [one for one in plan["flags"] if one["name"] == "--speed-hint"]
    assert flag["origin"] == "fdl.ci.yml:1:27"
    assert flag["losers"] == [{"value": "1:2.0", "origin": "fdl.yml:5:12"}]
