"""Files of the Rust flodl: recognised, listed, and read without trusting a number in them."""

from __future__ import annotations

import gzip
import io
import struct

import pytest
import torch

from flodl.checkpoint import (
    checkpoint_keys,
    checkpoint_metadata,
    checkpoint_version,
    load_checkpoint,
    load_checkpoint_file,
    migrate_checkpoint_file,
)
from flodl.errors import CheckpointError
from tests.flodl.checkpoint.rust_files import CODES, rust_checkpoint, rust_entry, rust_tensor
from tests.rows import each_row

TENSORS = {"enc/weight": torch.arange(6.0).reshape(2, 3), "enc/n": torch.tensor(7)}


def write(path, data, packed=False):
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return path


@each_row("packed", [False, True], ids=["plain", "gz"])
@each_row("version", [1, 2])
def test_names_version_and_hash_of_an_old_file_can_be_read(tmp_path, version, packed):
    data = rust_checkpoint(TENSORS, version, digest=bytes(range(32)))
    # The name says nothing about the compression: the content does.
    path = write(tmp_path / "old.fdl", data, packed)
    assert checkpoint_version(path) == version
    assert checkpoint_keys(path) == ["enc/weight", "enc/n"]
    assert checkpoint_metadata(path)["structural_hash"] == bytes(range(32)).hex()
    write(path, rust_checkpoint(TENSORS, version), packed)
    assert checkpoint_metadata(path)["structural_hash"] == ""


@each_row("packed", [False, True], ids=["plain", "gz"])
def test_loading_an_old_file_names_the_migration_and_changes_nothing(tmp_path, packed):
    path = write(tmp_path / "old.fdl", rust_checkpoint(TENSORS), packed)
    model = {name: torch.zeros_like(value) for name, value in TENSORS.items()}
    with pytest.raises(CheckpointError, match=r"old\.fdl is a binary .*migrate_checkpoint_file"):
        load_checkpoint_file(path, model.items(), [])
    with pytest.raises(CheckpointError, match="migrate_checkpoint_file"):
        load_checkpoint(io.BytesIO(path.read_bytes()), model.items(), [])
    assert all(value.count_nonzero() == 0 for value in model.values())


@each_row("dtype", CODES, ids=str)
def test_every_type_is_read_wherever_it_stands_in_the_file(tmp_path, dtype):
    # The odd name puts the values of the second tensor at an odd place.
    tensors = {
        "odd": torch.tensor([1, 0, 3]).to(dtype),
        "x/values": torch.tensor([[0, 1, 2], [-3, 4, 5]]).to(dtype),
        "x/empty": torch.empty(0, 3, dtype=dtype),
        "x/scalar": torch.tensor(2).to(dtype),
    }
    write(tmp_path / "old.fdl", rust_checkpoint(tensors))
    model = {name: torch.zeros_like(value) for name, value in tensors.items()}
    migrate_checkpoint_file(tmp_path / "old.fdl", tmp_path / "new.fdl", model.items(), [])
    assert load_checkpoint_file(tmp_path / "new.fdl", model.items(), []).missing == []
    for name, value in tensors.items():
        assert model[name].dtype == dtype
        assert torch.equal(model[name], value)


def head(count, version=1):
    return struct.pack("<4sI32sI", b"FDLC", version, bytes(32), count)


FLOATS = bytes(24)
SOUND = rust_entry(b"a", (2, 3), 3, FLOATS)
DAMAGE = {
    "only the mark": b"FDLC",
    "no tensors count": rust_checkpoint(TENSORS)[:40],
    "a tensor too few": head(2) + SOUND,
    "a tensor too many": head(1) + SOUND + SOUND,
    "truncated values": (head(1) + SOUND)[:-1],
    "trailing byte": head(1) + SOUND + b"\0",
    "billions of tensors": head(0xFFFFFFFF) + SOUND,
    "endless name": head(1) + struct.pack("<I", 0xFFFFFFFF) + b"a",
    "name not UTF-8": head(1) + rust_entry(b"\xff\xfe", (2, 3), 3, FLOATS),
    "name twice": head(2) + SOUND + SOUND,
    "billions of dimensions": head(1) + struct.pack("<I1sI", 1, b"a", 0xFFFFFFFF) + FLOATS,
    "65 dimensions": head(1) + rust_entry(b"a", (1,) * 65, 3, bytes(4)),
    "negative size": head(1) + rust_entry(b"a", (-2, -3), 3, FLOATS),
    "overflowing size": head(1) + rust_entry(b"a", (0, 1 << 62, 1 << 62), 3, b""),
    "huge size": head(1) + rust_entry(b"a", (1 << 50,), 3, FLOATS, size=1 << 52),
    "bytes beyond the shape": head(1) + rust_entry(b"a", (2, 2), 3, FLOATS),
    "type 0": head(1) + rust_entry(b"a", (2, 3), 0, FLOATS),
    "type 7": head(1) + rust_entry(b"a", (2, 3), 7, FLOATS),
    "version 0": head(1, version=0) + SOUND,
    "version 3": head(1, version=3) + SOUND,
}


@each_row("packed", [False, True], ids=["plain", "gz"])
@each_row("kind", DAMAGE)
def test_damaged_old_files_are_refused_and_nothing_is_written(tmp_path, kind, packed):
    path = write(tmp_path / "old.fdl", DAMAGE[kind], packed)
    new = tmp_path / "new.fdl"
    new.write_text("what stood there")
    with pytest.raises(CheckpointError, match=r"checkpoint .*old\.fdl"):
        migrate_checkpoint_file(path, new, [("a", torch.zeros(2, 3))], [])
    with pytest.raises(CheckpointError, match=r"checkpoint .*old\.fdl"):
        checkpoint_keys(path)
    assert new.read_text() == "what stood there"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["new.fdl", "old.fdl"]


def test_an_old_file_of_the_writer_of_these_tests_is_sound(tmp_path):
    path = write(tmp_path / "old.fdl", head(1) + rust_tensor("a", torch.zeros(2, 3)))
    assert path.read_bytes() == head(1) + SOUND
    assert checkpoint_keys(path) == ["a"]
