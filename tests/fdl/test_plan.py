"""``--dry-run``: the plan as text and as JSON, and nothing else happening."""

import json
import shlex

from fdl.base.secrets import REDACTED
from fdl.manifest.node import Variable
from fdl.plan.value import SCHEMA_VERSION, Flag, Plan

# What the started program does not learn about itself.
OUTER = (
    *("confirm", "env", "environment", "launch", "notes", "stop_timeout", "subcommand", "grace"),
    *("ranks", "depends", "elastic", "record", "slurm"),
)

FILES = {
    "fdl.yml": "commands:\n  t: {run: touch made, append: -- b}\n  train:\n",
    "train/fdl.yml": """
        entry: python main.py
        training: {epochs: 5}
        commands:
          quick:
            training: {epochs: 1}
            options: {name: "a b"}
        """,
}


def test_an_entry_as_text(project, fdl):
    folder = project(FILES)
    done = fdl("--dry-run", "train", "quick", "--lr", "x y", env={"NO_COLOR": "1"})
    assert (done.exit, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:5] == [
        "command   fdl train quick",
        "kind      entry, preset quick",
        "defined   train/fdl.yml:1:8",
        f"cwd       {folder / 'train'}",
        "argv      python main.py --epochs 1 --name 'a b' --lr 'x y'",
    ]
    assert f"FDL_PROJECT_ROOT={shlex.quote(str(folder))}" in done.out
    assert lines[5].startswith("env       ")
    [root] = [line for line in lines if "FDL_PROJECT_ROOT=" in line]
    assert root.endswith("  fdl")
    assert lines[-3:] == [
        "flags     --epochs 1    training.epochs  train/fdl.yml:5:24",
        "          --name 'a b'  options.name     train/fdl.yml:6:21",
        "          --lr 'x y'                     command line, wins",
    ]


def test_a_run_command_as_text_runs_nothing(project, fdl):
    folder = project(FILES)
    done = fdl("--dry-run", "-v", "t", "--", "a")
    assert done.exit == 0
    assert "argv      sh -c 'touch made a -- b'\n" in done.out
    [verbosity] = [line for line in done.out.splitlines() if "FLODL_VERBOSITY" in line]
    assert verbosity.split() == ["env", "FLODL_VERBOSITY=2", "command", "line"]
    assert "flags" not in done.out
    assert not (folder / "made").exists()
    assert not (folder / ".fdl").exists()


def test_as_one_json_document(project, fdl):
    folder = project(FILES)
    plan = json.loads(fdl("--dry-run", "--json", "train", "quick").out)
    assert plan["schema_version"] == SCHEMA_VERSION == 1
    assert plan["kind"] == "entry"
    assert plan["argv"] == plan["launch"]
    assert (plan["service"], plan["origin"]) == (None, "train/fdl.yml:1:8")
    assert plan["record"] == {"runs": f"{folder}/runs/train/quick"}
    assert plan["env"]["FDL_PROJECT_ROOT"] == str(folder)
    known = {one["name"]: one for one in plan["variables"]}
    assert known["FDL_PROJECT_ROOT"] == {
        "name": "FDL_PROJECT_ROOT",
        "value": str(folder),
        "origin": "fdl",
        "secret": False,
        "losers": [],
    }
    epochs, name = plan["flags"]
    assert epochs["losers"] == [{"value": "5", "origin": "train/fdl.yml:2:20"}]
    assert (epochs["secret"], name["losers"]) == (False, [])
    inner = json.loads(plan["env"]["FDL_PLAN"])
    rest = {key: value for key, value in plan.items() if key not in OUTER}
    for variable in rest["variables"]:
        del variable["value"], variable["losers"]
    assert inner == {**rest, "env": None}


def test_a_dry_run_reports_the_same_errors(project, fdl):
    project(FILES)
    assert "fdl t -- x" in fdl("--dry-run", "t", "x").err
    assert fdl("--dry-run", "nope").exit == 1


def test_a_dry_run_of_nothing_is_help(project, fdl):
    project(FILES)
    assert fdl("--dry-run").out == fdl("--help").out
    assert fdl("--dry-run", "train", "--help").out == fdl("train", "--help").out


def test_a_plan_is_plain_data():
    flag = Flag(1, 2, "--token", "options.token", "fdl.yml:3:4", secret=True, losers=[("x", "y")])
    plan = Plan(
        kind="entry",
        command=["p"],
        argv=["main", "--token", "1"],
        cwd="/p",
        root="/p",
        service=None,
        flags=[flag],
        preset=None,
        origin="fdl.yml:1:1",
    )
    plan.set(Variable("A", "b", "fdl.yml:7:8"))
    plan.set(Variable("A", "c", "fdl.yml:9:8", losers=[("b", "fdl.yml:7:8")]))
    data = json.loads(json.dumps(plan.as_dict()))
    assert data["launch"] == data["argv"]
    assert data["flags"] == [
        {
            "index": 1,
            "count": 2,
            "name": "--token",
            "field": "options.token",
            "origin": "fdl.yml:3:4",
            "secret": True,
            "losers": [{"value": REDACTED, "origin": "y"}],
            "reference": "",
        }
    ]
    assert data["env"] == {"A": "c"}
    assert data["variables"] == [
        {
            "name": "A",
            "value": "c",
            "origin": "fdl.yml:9:8",
            "secret": False,
            "losers": [{"value": "b", "origin": "fdl.yml:7:8"}],
        }
    ]
    assert set(data) == {*Plan.field_names, "schema_version"} - {"secrets", "given"}


def test_a_word_of_an_env_file_is_hidden_elsewhere_if_it_is_long_enough(project, fdl):
    project(
        {
            "fdl.yml": "env_file: .env\ncommands: {say: {run: echo twelve-chars eleven-char}}\n",
            ".env": "LONG=twelve-chars\nSHORT=eleven-char\n",
        }
    )
    shown = fdl("-n", "say").out
    assert f"echo {REDACTED} eleven-char" in shown
    assert "twelve-chars" not in shown
