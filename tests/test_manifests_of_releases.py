"""An ``fdl.yml`` that was written for a release stays valid and means the same.

``manifests/VERSION`` holds projects as that version reads them. ``expected.json`` has what they
meant then. Nothing there is edited but for keys that a release drops, which its notes name; a new
release adds a folder:

    UPDATE_MANIFESTS=0.2 pytest tests/test_manifests_of_releases.py
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from fdl.manifest.discover import find_in
from fdl.manifest.json_schema import document
from fdl.manifest.load import load
from fdl.plan.torchrun import LAUNCHER

FOLDER = Path(__file__).parent / "manifests"
RELEASES = sorted(one.name for one in FOLDER.iterdir())
PUBLIC = json.loads((FOLDER.parent.parent / "docs/reference/public.json").read_text("utf-8"))

CALLS = {
    "whole": [
        ["list"],
        ["ci", "list"],
        ["train"],
        ["ci", "train", "quick", "--lr", "0.1"],
        ["train", "policy"],
        ["train", "simulated"],
        ["other", "quick"],
        ["tools", "short"],
        ["deploy", "--dry-run", "staging"],
    ],
    "vision": [["list"], ["train", "quick"]],
}
"""Project -> what is typed there."""


@pytest.fixture
def meaning(fdl, tmp_path):
    """What the projects of a release mean today: the rows of lists, and what would be started."""

    def ask(release):
        shutil.copytree(FOLDER / release, tmp_path / release)
        return {
            f"{name}: fdl {' '.join(words)}": answer(fdl, tmp_path / release / name, words)
            for name, calls in CALLS.items()
            for words in calls
        }

    return ask


def started(argv):
    """A command line; fdl's own file that starts ranks stands for torchrun, whose rules it has."""
    if argv[1:2] == [LAUNCHER]:
        return [argv[0], "-m", "torch.distributed.run", *argv[2:]]
    return argv


def answer(fdl, folder, words):
    if words[-1] == "list":
        done = fdl(*words, "--json", cwd=folder)
        assert done.exit == 0, done.err
        keys = ("command", "kind", "description", "needs", "origin")
        return [[row[key] for key in keys] for row in json.loads(done.out)["commands"]]
    done = fdl("--dry-run", "--json", *words, cwd=folder)
    assert done.exit == 0, done.err
    document = json.loads(done.out)
    steps = document.get("jobs", [document])
    return [
        [started(one["argv"]), [flag["origin"] for flag in one.get("flags", [])]] for one in steps
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_projects_of_a_release_mean_what_they_meant(release, meaning):
    file = FOLDER / release / "expected.json"
    now = meaning(release)
    if os.environ.get("UPDATE_MANIFESTS") == release:
        file.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    assert now == json.loads(file.read_text(encoding="utf-8"))


def keys(node):
    """The keys of a mapping and of all below it."""
    below = node.value
    if isinstance(below, dict):
        for key, one in below.items():
            yield str(key)
            yield from keys(one)
    elif isinstance(below, list):
        for one in below:
            yield from keys(one)


def promised_keys():
    """The keys that a release promised and that the schema of today still names."""
    schema = document()
    for home, model in {"": schema, **schema["$defs"]}.items():
        for key in model.get("properties", {}):
            if f"{home}.{key}".lstrip(".") in PUBLIC["manifest"]:
                yield key


@pytest.mark.parametrize("release", RELEASES)
def test_every_file_is_read_and_together_they_use_every_key(release, monkeypatch):
    used = set()
    for file in sorted((FOLDER / release).rglob("fdl.yml")):
        monkeypatch.chdir(file.parent)
        for env in (None, "ci"):
            manifest = load(find_in("."), env, write_cache=False)
            used |= set(keys(manifest.node))
            assert manifest.warnings == (), file
    # The key that shared files have.
    used |= {"inherit-from"}
    left = set(promised_keys()) - used
    assert left == {"collapsed"}, "a program alone writes it: its answer to fdl"
