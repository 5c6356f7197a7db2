"""``guards:`` of a training: checked in the manifest, handed to the program in a variable."""

from __future__ import annotations

import json

MANIFEST = """
entry: python main.py
training:
  epochs: 2
  guards: {spike: 20, lower_lr: 0.25, window: null}
commands:
  quick: {training: {epochs: 1}}
  plain: {training: {guards: false}}
"""
MAIN = "import os, sys\nprint(os.environ.get('FLODL_GUARDS'), *sys.argv[1:])\n"


def test_guards_reach_the_program_in_a_variable_and_not_as_a_flag(project, fdl):
    project({"fdl.yml": MANIFEST, "main.py": MAIN})
    assert fdl("quick").out == '{"spike":20,"lower_lr":0.25} --epochs 1\n'
    assert fdl("plain").out == "false --epochs 2\n"
    shown = json.loads(fdl("--dry-run", "--json", "quick").out)
    (variable,) = (one for one in shown["variables"] if one["name"] == "FLODL_GUARDS")
    assert variable["origin"].startswith("fdl.yml:4:")


def test_guards_are_checked_with_file_and_line(project, fdl):
    project({"fdl.yml": MANIFEST.replace("0.25", "2").replace("window", "often"), "main.py": MAIN})
    told = fdl("quick")
    assert told.exit == 1
    assert "`training.guards.lower_lr` must be a number above 0 and at most 1, not 2" in told.err
    assert "unknown key `training.guards.often`" in told.err
    project({"fdl.yml": "entry: python main.py\ntraining: {guards: often}\n"})
    assert "`training.guards` must be true, false or a mapping" in fdl("--dry-run").err


def test_without_guards_there_is_no_variable(project, fdl):
    project(
        {
            "fdl.yml": "entry: python main.py\ncommands: {quick: {training: {epochs: 1}}}\n",
            "main.py": MAIN,
        }
    )
    assert fdl("quick").out == "None --epochs 1\n"
