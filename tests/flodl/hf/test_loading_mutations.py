"""Damaged weights: each file loads or raises a typed error, and a refused one changes nothing."""

from __future__ import annotations

import json
import random
import time
import tracemalloc

import pytest
import torch

from flodl.hf.build import build
from flodl.hf.errors import CheckpointFormatError, CheckpointMismatchError
from flodl.hf.head_kind import HeadKind
from flodl.hf.hub import locate
from flodl.hf.source import WeightFiles
from flodl.hf.weights.fill import fill
from flodl.hf.weights.stored import StoredFiles
from tests.flodl.hf.reference_files import config_of, save_reference, weights_of

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PYTHON_ITSELF = 400_000  # exceptions, parsed headers, names of the parameters


@pytest.fixture
def single(tmp_path):
    save_reference(tmp_path, "Bert", HeadKind.BASE)
    return tmp_path


def contents(graph):
    return [(id(p), p.detach().clone()) for p in graph.parameters()]


def unchanged(graph, before):
    return all(
        id(parameter) == identity and torch.equal(parameter, value)
        for parameter, (identity, value) in zip(graph.parameters(), before, strict=True)
    )


# The six ways of the list


def truncated_data(data):
    return data[:-10]


def truncated_header(data):
    return data[:100]


def empty(_data):
    return b""


def giant_header(data):
    return (1 << 62).to_bytes(8, "little") + data[8:]


def large_header(data):
    return (90_000_000).to_bytes(8, "little") + data[8:]


def overlapping_offsets(data):
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    names = [name for name in header if name.endswith("dense.bias")]
    header[names[0]]["data_offsets"] = header[names[1]]["data_offsets"]
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def trailing_bytes(data):
    return data + b"more"


@pytest.mark.case("hf", 17)
@pytest.mark.parametrize(
    "damage",
    [
        truncated_data,
        truncated_header,
        empty,
        giant_header,
        large_header,
        overlapping_offsets,
        trailing_bytes,
    ],
)
def test_a_broken_file_is_named_at_once_and_nothing_is_loaded(single, damage):
    path = single / WEIGHTS
    path.write_bytes(damage(path.read_bytes()))
    config = config_of(single)
    graph = build(config, HeadKind.BASE, device="cpu", seed=0)
    before = contents(graph)
    tracemalloc.start()
    began = time.thread_time()  # what other programs take does not count
    try:
        with pytest.raises(CheckpointFormatError) as caught:
            fill(graph, StoredFiles(weights_of(single)), config)
        assert time.thread_time() - began < 1
        # Whatever size it claims: without that much memory there is nothing that takes long.
        assert tracemalloc.get_traced_memory()[1] < PYTHON_ITSELF
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert unchanged(graph, before)


# Many random ways


def mutate(data, rng, header):
    """Damage bytes in one of the ways files get damaged, mostly where the header is."""
    data = bytearray(data)
    place = rng.randrange(header)
    match rng.randrange(8):
        case 0:
            del data[rng.randrange(len(data)) :]
        case 1:
            data[place : place + 8] = rng.randbytes(8)
        case 2:
            for _ in range(rng.randint(1, 20)):
                data[rng.randrange(header)] = rng.randrange(256)
        case 3:
            del data[place : place + rng.randint(1, 40)]
        case 4:
            data[place:place] = rng.randbytes(rng.randint(1, 40))
        case 5:
            start = rng.randrange(len(data))
            data[start : start + 64] = rng.randbytes(64)
        case 6:
            data[place] ^= 1 << rng.randrange(8)
        case 7:
            digits = [i for i in range(8, header) if chr(data[i]).isdigit()]
            data[rng.choice(digits)] = rng.choice(b"0123456789-.e")
    return bytes(data)


def attempt(graph, weights, config, before):
    """Whether loading was refused; by nothing but the errors meant for it, and without a trace."""
    graph.__dict__.pop("load_report", None)
    try:
        fill(graph, StoredFiles(weights), config)
    except (CheckpointFormatError, CheckpointMismatchError):
        assert unchanged(graph, before)
        assert not hasattr(graph, "load_report")
        return True
    assert not any(parameter.is_meta for parameter in graph.parameters())
    return False


def check_files(folder, number, seed):
    sound = (folder / WEIGHTS).read_bytes()
    header = 8 + int.from_bytes(sound[:8], "little")
    config = config_of(folder)
    rng = random.Random(seed)
    graph = build(config, HeadKind.BASE, device="cpu", seed=0)
    before = contents(graph)
    refused = 0
    for index in range(number):
        path = folder / f"{index}.safetensors"  # a mapped file must not be overwritten
        path.write_bytes(mutate(sound, rng, header))
        if attempt(graph, WeightFiles((path,)), config, before):
            refused += 1
        else:
            graph = build(config, HeadKind.BASE, device="cpu", seed=0)
            before = contents(graph)
        path.unlink()
    return refused


def check_indexes(folder, number, seed):
    sound = (folder / INDEX).read_bytes()
    config = config_of(folder)
    rng = random.Random(seed)
    graph = build(config, HeadKind.BASE, device="cpu", seed=0)
    before = contents(graph)
    files = tuple(sorted(folder.glob("model-0*.safetensors")))
    refused = 0
    for _ in range(number):
        (folder / INDEX).write_bytes(mutate(sound, rng, len(sound)))
        if attempt(graph, WeightFiles(files, folder / INDEX), config, before):
            refused += 1
        else:
            graph = build(config, HeadKind.BASE, device="cpu", seed=0)
            before = contents(graph)
    return refused


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "sharded"
    save_reference(folder, "Bert", HeadKind.BASE, shards="4KB")
    return folder


def test_hundreds_of_damaged_files_load_or_are_refused_and_change_nothing(single):
    # The others hit padding, metadata or values, which carry no checksum.
    assert 190 < check_files(single, 250, seed=1) < 250


def test_damaged_indexes_load_or_are_refused_and_change_nothing(sharded):
    assert locate(sharded).weight_files().index == sharded / INDEX
    assert 30 < check_indexes(sharded, 50, seed=2) <= 50


@pytest.mark.slow
def test_thousands_of_damaged_files_load_or_are_refused_and_change_nothing(single):
    assert check_files(single, 1700, seed=3) > 1300


@pytest.mark.slow
def test_hundreds_of_damaged_indexes_load_or_are_refused_and_change_nothing(sharded):
    assert check_indexes(sharded, 300, seed=4) > 200
