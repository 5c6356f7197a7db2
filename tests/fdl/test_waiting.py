"""How threads of an entry's program wait: what fdl sets, and whose choice stays."""

from __future__ import annotations

import json

import pytest

from flodl_shared.waiting import SPIN_COUNT, SPIN_VARIABLE, VARIABLES

PROJECT = {
    "fdl.yml": "commands: {train: , other: , shell: {run: 'echo [$GOMP_SPINCOUNT]'}}",
    "train/fdl.yml": "entry: python main.py\n",
    "train/main.py": "import os  # flodl\nprint(os.environ.get('GOMP_SPINCOUNT'))",
    "other/fdl.yml": "entry: python main.py\n",
    "other/main.py": "import os\nprint(os.environ.get('GOMP_SPINCOUNT'))",
}
UNSET = dict.fromkeys(VARIABLES, "")


def test_a_program_of_flodl_gets_a_short_spin_and_the_plan_says_from_whom(project, fdl):
    project(PROJECT)
    told = json.loads(fdl("--dry-run", "--json", "train", env=UNSET).out)
    [variable] = [one for one in told["variables"] if one["name"] == SPIN_VARIABLE]
    assert (variable["value"], variable["origin"]) == (SPIN_COUNT, "fdl")
    assert fdl("train", env=UNSET).out == f"{SPIN_COUNT}\n"


def test_other_programs_and_scripts_get_nothing(project, fdl):
    project(PROJECT)
    assert (
        SPIN_VARIABLE not in json.loads(fdl("--dry-run", "--json", "other", env=UNSET).out)["env"]
    )
    assert fdl("shell", env=UNSET).out == "[]\n"


@pytest.mark.parametrize("name", VARIABLES)
def test_a_choice_of_the_user_stays(project, fdl, name):
    project(PROJECT)
    plan = json.loads(fdl("--dry-run", "--json", "train", env={**UNSET, name: "7"}).out)
    assert plan["env"].get(SPIN_VARIABLE) is None


def test_a_choice_in_the_manifest_stays(project, fdl):
    entry = "entry: python main.py\nenv: {KMP_BLOCKTIME: 3}\n"
    project({**PROJECT, "train/fdl.yml": entry})
    unset = {name: "" for name in UNSET if name != "KMP_BLOCKTIME"}
    plan = json.loads(fdl("--dry-run", "--json", "train", env=unset).out)
    assert plan["env"]["KMP_BLOCKTIME"] == "3"
    assert SPIN_VARIABLE not in plan["env"]
