"""Thousands of damaged files: each one loads or raises CheckpointError, within its own size."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest
import torch

from flodl.checkpoint import (
    load_checkpoint_file,
    migrate_checkpoint_file,
    save_checkpoint_file,
)
from flodl.errors import CheckpointError
from tests.flodl.checkpoint.rust_files import rust_checkpoint

GENERATOR = torch.Generator().manual_seed(0)
TENSORS = {
    f"block_{index}/weight": torch.rand(64, 64, generator=GENERATOR) for index in range(8)
} | {"head/bias": torch.rand(7, generator=GENERATOR), "head/n": torch.tensor([1, 2])}
PYTHON_ITSELF = 100_000  # exceptions, buffers of the io module, compiled regular expressions


def mutate(data, rng, header_size):
    """Damage bytes in one of the ways files get damaged, mostly where the header is."""
    data = bytearray(data)
    header = min(len(data), header_size)
    match rng.randrange(7):
        case 0:
            del data[rng.randrange(len(data)) :]
        case 1:
            start = rng.randrange(header)
            data[start : start + 8] = rng.randbytes(8)
        case 2:
            for _ in range(rng.randint(1, 20)):
                data[rng.randrange(header)] = rng.randrange(256)
        case 3:
            start = rng.randrange(header)
            del data[start : start + rng.randint(1, 40)]
        case 4:
            start = rng.randrange(header)
            data[start:start] = rng.randbytes(rng.randint(1, 40))
        case 5:
            start = rng.randrange(len(data))
            data[start : start + 64] = rng.randbytes(64)
        case 6:
            data[rng.randrange(header)] ^= 1 << rng.randrange(8)
    return bytes(data)


def damaged_files(plain, header_size, number, seed):
    """Of every three files one is plain, one is damaged inside gzip, one is damaged gzip."""
    rng = random.Random(seed)
    packed = gzip.compress(plain, 1, mtime=0)
    for index in range(number):
        match index % 3:
            case 0:
                yield mutate(plain, rng, header_size)
            case 1:
                yield gzip.compress(mutate(plain, rng, header_size), 1, mtime=0)
            case 2:
                yield mutate(packed, rng, len(packed))


def attempt(path, data, size, action):
    """Whether the file was refused; by nothing but the error meant for it, and in bounded memory.

    Memory is what Python allocates, buffers of the container included; a mapped file and the
    tensors of the model, which are there already, do not count.
    """
    path.write_bytes(data)
    tracemalloc.start()
    try:
        action()
    except CheckpointError:
        return True
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= 2 * size + PYTHON_ITSELF
    return False


def zeros():
    return {name: torch.zeros_like(value) for name, value in TENSORS.items()}


def check_containers(tmp_path, number, seed):
    path = tmp_path / "model.fdl"
    save_checkpoint_file(path, TENSORS.items(), [], "ab" * 32, label="net")
    sound = path.read_bytes()
    header_size = 8 + int.from_bytes(sound[:8], "little")
    refused = 0
    for data in damaged_files(sound, header_size, number, seed):
        model = zeros()
        load = lambda model=model: load_checkpoint_file(path, model.items(), [])  # noqa: E731
        if attempt(path, data, len(sound), load):
            refused += 1
            assert all(value.count_nonzero() == 0 for value in model.values())
        else:
            # What loads has lost nothing but names: every value is a saved one.
            assert all(
                value.count_nonzero() == 0 or torch.equal(value, TENSORS[name])
                for name, value in model.items()
            )
    # The others hit padding, free strings, names or the unchecked fields of gzip's own header.
    assert refused > 0.8 * number


def check_old_files(tmp_path, number, seed):
    old, new = tmp_path / "old.fdl", tmp_path / "new.fdl"
    sound = rust_checkpoint(TENSORS, version=2)
    refused = 0
    for data in damaged_files(sound, 200, number, seed):
        new.unlink(missing_ok=True)
        migrate = lambda: migrate_checkpoint_file(old, new, zeros().items(), [])  # noqa: E731
        if attempt(old, data, len(sound), migrate):
            refused += 1
            assert not new.exists()
        else:
            load_checkpoint_file(new, zeros().items(), [])
    assert refused > 0.3 * number  # most damage to values goes unseen: they carry no checksum


def test_hundreds_of_mutated_containers_load_or_raise_and_change_nothing(tmp_path):
    check_containers(tmp_path, 330, seed=7)


def test_hundreds_of_mutated_old_files_migrate_or_raise_and_write_nothing(tmp_path):
    check_old_files(tmp_path, 180, seed=8)


@pytest.mark.slow
def test_thousands_of_mutated_containers_load_or_raise_and_change_nothing(tmp_path):
    check_containers(tmp_path, 3300, seed=9)


@pytest.mark.slow
def test_thousands_of_mutated_old_files_migrate_or_raise_and_write_nothing(tmp_path):
    check_old_files(tmp_path, 1800, seed=10)
