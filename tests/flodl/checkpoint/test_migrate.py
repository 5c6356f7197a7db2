"""Migration: the tensors of a file under the names of another model, with an account of each."""

from __future__ import annotations

import gzip
import io
import os

import pytest
import torch
from torch import nn

from flodl.checkpoint import (
    MigrateReport,
    checkpoint_keys,
    checkpoint_metadata,
    checkpoint_version,
    load_checkpoint,
    load_checkpoint_file,
    migrate_checkpoint,
    migrate_checkpoint_file,
    save_checkpoint,
    save_checkpoint_file,
)
from flodl.errors import CheckpointError
from tests.flodl.checkpoint.rust_files import rust_checkpoint
from tests.rows import each_row

OLD = {"linear_0/w": torch.full((2, 2), 1.0), "linear_1/w": torch.full((2, 2), 2.0)}


def target():
    return {"encoder/w": torch.zeros(2, 2), "decoder/w": torch.zeros(2, 2)}


def check_renamed(report, path):
    assert report == MigrateReport(
        unchanged=[],
        remapped=[("linear_0/w", "encoder/w"), ("linear_1/w", "decoder/w")],
        dropped=[],
        missing=[],
        ambiguous=["encoder/w", "decoder/w"],
    )
    assert report.is_complete
    model = target()
    assert load_checkpoint_file(path, model.items(), [], "ab" * 32).missing == []
    assert model["encoder/w"].tolist() == [[1, 1], [1, 1]]
    assert model["decoder/w"].tolist() == [[2, 2], [2, 2]]


@pytest.mark.case("runtime", 39)
@each_row("suffix", ["", ".gz"])
def test_two_renamed_tensors_of_one_shape_go_over_in_file_order_and_are_called_ambiguous(
    tmp_path, suffix
):
    old, new = tmp_path / f"old.fdl{suffix}", tmp_path / "deep" / f"new.fdl{suffix}"
    save_checkpoint_file(old, OLD.items(), [], "cd" * 32, label="net")
    report = migrate_checkpoint_file(old, new, target().items(), [])
    check_renamed(report, new)
    # The hash of the old architecture is gone, the label is not.
    assert checkpoint_metadata(new)["structural_hash"] == ""
    assert checkpoint_metadata(new)["label"] == "net"


@pytest.mark.case("runtime", 39)
@each_row("packed", [False, True], ids=["plain", "gz"])
@each_row("version", [1, 2])
def test_a_binary_file_of_the_rust_flodl_becomes_one_of_ours(tmp_path, version, packed):
    data = rust_checkpoint(OLD, version, digest=b"\x11" * 32)
    old, new = tmp_path / "old.fdl", tmp_path / "new.fdl"
    old.write_bytes(gzip.compress(data) if packed else data)
    check_renamed(migrate_checkpoint_file(old, new, target().items(), []), new)
    assert checkpoint_version(new) == 3
    assert checkpoint_metadata(new)["structural_hash"] == ""


def test_streams_give_the_same_bytes_as_files_and_need_no_more_than_write(tmp_path):
    class Wire:
        def __init__(self):
            self.data = b""

        def write(self, piece):
            self.data += bytes(piece)

    old, new, wire = tmp_path / "old.fdl", tmp_path / "new.fdl", Wire()
    save_checkpoint_file(old, OLD.items(), [])
    migrate_checkpoint_file(old, new, target().items(), [])
    with old.open("rb") as source:
        report = migrate_checkpoint(source, wire, target().items(), [])
        assert not source.closed
    assert report.is_complete
    assert wire.data == new.read_bytes()


def test_every_tensor_is_accounted_for_once(tmp_path):
    file = {
        "a/weight": torch.ones(2, 2),  # same name, same shape
        "b/weight": torch.ones(3),  # same name, another shape: free for another name
        "old/gain": torch.ones(5),  # its only candidate has another dtype
        "old/bias": torch.ones(4),  # one candidate
    }
    model = {
        "new/bias": torch.zeros(4),
        "b/weight": torch.zeros(2, 3),
        "c/weight": torch.zeros(3),
        "a.weight": torch.zeros(2, 2),
        "new/gain": torch.zeros(5, dtype=torch.float64),
    }
    save_checkpoint_file(tmp_path / "old.fdl", file.items(), [])
    report = migrate_checkpoint_file(
        tmp_path / "old.fdl", tmp_path / "new.fdl", list(model.items())[:2], list(model.items())[2:]
    )
    assert report == MigrateReport(
        unchanged=["a/weight"],
        remapped=[("old/bias", "new/bias"), ("b/weight", "c/weight")],
        dropped=["old/gain"],
        missing=["b/weight", "new/gain"],
        ambiguous=[],
    )
    assert not report.is_complete
    assert checkpoint_keys(tmp_path / "new.fdl") == ["new/bias", "c/weight", "a/weight"]
    assert str(report) == (
        "unchanged (1):\n  a/weight\n"
        "remapped (2):\n  old/bias -> new/bias\n  b/weight -> c/weight\n"
        "dropped (1):\n  old/gain\n"
        "missing (2):\n  b/weight\n  new/gain"
    )


@each_row(
    ("stored", "wanted", "complete"),
    [(["a", "b"], ["a"], False), (["a"], ["a", "b"], False), (["a"], ["a"], True)],
)
def test_a_migration_is_complete_when_nothing_is_dropped_or_missing(
    tmp_path, stored, wanted, complete
):
    shapes = {"a": (2,), "b": (3,)}
    save_checkpoint_file(tmp_path / "old", [(n, torch.ones(shapes[n])) for n in stored], [])
    model = [(name, torch.zeros(shapes[name])) for name in wanted]
    report = migrate_checkpoint_file(tmp_path / "old", tmp_path / "new", model, [])
    assert report.is_complete is complete


def test_an_exact_name_keeps_its_tensor_even_when_another_comes_first(tmp_path):
    file = {"x/w": torch.full((2,), 1.0), "b/w": torch.full((2,), 2.0)}
    model = {"a/w": torch.zeros(2), "b/w": torch.zeros(2)}
    save_checkpoint_file(tmp_path / "old.fdl", file.items(), [])
    report = migrate_checkpoint_file(tmp_path / "old.fdl", tmp_path / "new.fdl", model.items(), [])
    assert report.unchanged == ["b/w"]
    assert report.remapped == [("x/w", "a/w")]
    assert report.ambiguous == []
    load_checkpoint_file(tmp_path / "new.fdl", model.items(), [])
    assert (model["a/w"][0], model["b/w"][0]) == (1, 2)


def test_a_name_match_keeps_the_stored_dtype_which_loading_casts(tmp_path):
    save_checkpoint_file(tmp_path / "old.fdl", [("w", torch.ones(2, dtype=torch.float16))], [])
    model = {"w": torch.zeros(2, dtype=torch.float64)}
    report = migrate_checkpoint_file(tmp_path / "old.fdl", tmp_path / "new.fdl", model.items(), [])
    assert report.unchanged == ["w"]
    assert (tmp_path / "new.fdl").stat().st_size == (tmp_path / "old.fdl").stat().st_size
    load_checkpoint_file(tmp_path / "new.fdl", model.items(), [])
    assert model["w"].tolist() == [1, 1]


def test_tied_tensors_stay_tied_and_take_one_stored_tensor(tmp_path):
    tied = nn.Linear(2, 2, bias=False)
    old = nn.ModuleDict({"x": nn.Linear(2, 2, bias=False), "y": nn.Linear(2, 2, bias=False)})
    new = nn.ModuleDict({"a": tied, "b": tied, "c": nn.Linear(2, 2, bias=False)})
    save_checkpoint_file(tmp_path / "old.fdl", old.named_parameters(), [])
    names = new.named_parameters(remove_duplicate=False)
    report = migrate_checkpoint_file(tmp_path / "old.fdl", tmp_path / "new.fdl", names, [])
    assert report.remapped == [
        ("x/weight", "a/weight"), ("x/weight", "b/weight"), ("y/weight", "c/weight"),
    ]  # fmt: skip
    assert report.is_complete
    assert checkpoint_keys(tmp_path / "new.fdl") == ["a/weight", "c/weight"]

    untied = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "abc"})
    load_checkpoint_file(tmp_path / "new.fdl", untied.named_parameters(), [])
    assert torch.equal(untied["b"].weight, old["x"].weight)
    # Both names of a tied source are found again, too.
    again = migrate_checkpoint_file(
        tmp_path / "new.fdl", tmp_path / "third.fdl", untied.named_parameters(), []
    )
    assert again.unchanged == ["a/weight", "b/weight", "c/weight"]


def test_what_the_old_file_says_about_itself_goes_over(tmp_path):
    old, new = tmp_path / "old.fdl", tmp_path / "new.fdl"
    save_checkpoint_file(
        old, OLD.items(), [], "ef" * 32, config={"lr": 1}, epoch=3, metrics={"loss": 0.5},
        source_config="{}", metadata={"note": "hello"},
    )  # fmt: skip
    migrate_checkpoint_file(old, new, target().items(), [])
    before, after = checkpoint_metadata(old), checkpoint_metadata(new)
    assert before.pop("digest") != after.pop("digest")  # it covers the hash as well
    assert after == before | {"structural_hash": ""}


def test_source_and_destination_must_differ(tmp_path):
    path = tmp_path / "model.fdl"
    save_checkpoint_file(path, OLD.items(), [])
    before = path.read_bytes()
    (tmp_path / "link.fdl").symlink_to(path)
    for other in (path, os.path.relpath(path), tmp_path / "link.fdl"):
        with pytest.raises(ValueError, match="src and dst are the same file"):
            migrate_checkpoint_file(path, other, target().items(), [])
    with pytest.raises(ValueError, match="are the same file"):
        migrate_checkpoint_file(tmp_path / "no.fdl", tmp_path / "no.fdl", target().items(), [])
    stream = io.BytesIO(before)
    with pytest.raises(ValueError, match="are the same stream"):
        migrate_checkpoint(stream, stream, target().items(), [])
    assert path.read_bytes() == before == stream.getvalue()


def test_a_failure_leaves_what_stood_at_the_destination(tmp_path):
    old, new = tmp_path / "old.fdl", tmp_path / "new.fdl"
    save_checkpoint_file(old, OLD.items(), [])
    new.write_text("kept")
    with pytest.raises(ValueError, match="two tensors are named w"):
        migrate_checkpoint_file(old, new, [("w", torch.zeros(1))], [("w", torch.zeros(1))])
    old.write_bytes(old.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is truncated"):
        migrate_checkpoint_file(old, new, target().items(), [])
    with pytest.raises(CheckpointError, match="cannot open checkpoint"):
        migrate_checkpoint_file(tmp_path / "nowhere.fdl", new, target().items(), [])
    assert new.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.fdl", "old.fdl"]


def test_the_model_is_only_looked_at():
    model, source, result = target(), io.BytesIO(), io.BytesIO()
    save_checkpoint(source, OLD.items(), [])
    source.seek(0)
    migrate_checkpoint(source, result, model.items(), [])
    assert all(value.count_nonzero() == 0 for value in model.values())
    result.seek(0)
    assert load_checkpoint(result, model.items(), []).loaded == ["encoder/w", "decoder/w"]
