"""No change of what is promised without a line in the changelog."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from scripts import public_surface
from scripts.public_surface import changes, unnamed, unreleased

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/reference/stability.md").read_text(encoding="utf-8")
RELEASED = json.loads(public_surface.FILE.read_text(encoding="utf-8"))


def test_the_changelog_names_every_change_of_what_is_public():
    found = list(changes(RELEASED, public_surface.surface()))
    missing = unnamed(found, unreleased())
    assert not missing, (
        "CHANGELOG.md does not name these changes under 'Unreleased' (python "
        f"scripts/public_surface.py lists all): {missing}"
    )


@pytest.fixture
def changed():
    """The surface of the release after one change of each kind."""
    after = copy.deepcopy(RELEASED)
    del after["names"]["flodl.Trainer.builder"]
    after["names"]["flodl.Novelty"] = "class()"
    after["names"]["flodl.Novelty.run"] = "run() -> None"
    after["names"]["flodl.Rng"] = "class(Other)"
    after["manifest"]["Training.epochs"] = "string"
    after["commands"]["fdl runs list --fresh"] = "bool"
    after["formats"]["steps.trace"] = "flodl steps 2"
    del after["fields"]["run.json: state"]
    after["exit codes"]["exit code 2"] = "another meaning"
    return after


def test_every_kind_of_change_is_found_and_has_to_be_named(changed):
    found = list(changes(RELEASED, changed))
    assert {(name, what.partition(":")[0]) for _, name, what in found} == {
        ("flodl.Trainer.builder", "removed"),
        ("flodl.Novelty", "added"),
        ("flodl.Novelty.run", "added"),
        ("flodl.Rng", "changed"),
        ("Training.epochs", "changed"),
        ("fdl runs list --fresh", "added"),
        ("steps.trace", "changed"),
        ("run.json: state", "removed"),
        ("exit code 2", "changed"),
    }
    assert unnamed(found, "- Faster.\n- `other` is new, builder and epochs are words.") == found


def test_names_in_code_are_enough_and_a_class_names_its_members(changed):
    line = (
        "- `Trainer.builder()` and `state` are gone; `Novelty`, `Rng(Other)`, `training.epochs: x`,"
        " `fdl runs list --fresh`, `steps.trace` and `exit code 2` are new."
    )
    assert unnamed(list(changes(RELEASED, changed)), line) == []


def test_a_longer_word_does_not_name_a_shorter_one():
    found = [("commands", "fdl runs list --best", "added")]
    assert unnamed(found, "- `--best-of` is new.") == found
    assert unnamed(found, "- `--best METRIC` is new.") == []


def test_the_command_fails_and_says_what_to_write(monkeypatch, tmp_path, capsys, changed):
    monkeypatch.setattr(public_surface, "FILE", tmp_path / "public.json")
    monkeypatch.setattr(public_surface, "surface", lambda: changed)
    monkeypatch.setattr("sys.argv", ["public_surface.py"])
    shutil.copy(ROOT / "docs/reference/public.json", tmp_path)
    monkeypatch.setattr(public_surface, "unreleased", lambda: "- Nothing.")
    assert public_surface.main() == 1
    said = capsys.readouterr().err
    assert "error: CHANGELOG.md does not name `Novelty` (names: flodl.Novelty)\n" in said
    monkeypatch.setattr("sys.argv", ["public_surface.py", "--release"])
    assert public_surface.main() == 0
    monkeypatch.setattr("sys.argv", ["public_surface.py"])
    assert public_surface.main() == 0


def test_the_surface_has_what_the_page_promises():
    assert {"fdl.FdlArgs.parse_or_schema", "flodl.Trainer.builder", "flodl.hf.AutoModel"} <= set(
        RELEASED["names"]
    )
    assert all(RELEASED[kind] for kind in RELEASED)
    for kind in RELEASED:
        assert f"| `{kind}` |" in PAGE, kind
