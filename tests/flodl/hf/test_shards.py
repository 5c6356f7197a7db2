"""Checkpoints in several files: read like one, and written as the reference writes them."""

from __future__ import annotations

import errno
import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.hf.build import build
from flodl.hf.errors import CheckpointFormatError
from flodl.hf.head_kind import HeadKind
from flodl.hf.hub import locate
from flodl.hf.source import WeightFiles
from flodl.hf.weights.fill import fill
from flodl.hf.weights.stored import StoredFiles
from flodl.hf.weights.writing import save_safetensors_file_from_graph, shard_bytes, write_shards
from tests import fork_server
from tests.flodl.hf.reference_files import config_of, fill_exactly, save_reference
from tests.rows import each_row

INDEX = "model.safetensors.index.json"
LIMIT = "4KB"


def load(folder, weights=None):
    config = config_of(folder)
    graph = build(config, HeadKind.BASE)
    report = fill(graph, StoredFiles(weights or locate(folder).weight_files()), config)
    return graph, report


@pytest.fixture
def single(tmp_path):
    folder = tmp_path / "single"
    save_reference(folder, "Bert", HeadKind.BASE)
    return folder


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "sharded"
    save_reference(folder, "Bert", HeadKind.BASE, shards=LIMIT)
    return folder


def change_index(folder, change):
    path = folder / INDEX
    fields = json.loads(path.read_text())
    change(fields["weight_map"])
    path.write_text(json.dumps(fields))


@pytest.mark.case("hf", 21)
def test_a_sharded_checkpoint_equals_the_single_file(single, sharded):
    assert len(list(sharded.glob("model-0*.safetensors"))) > 2
    whole, _ = load(single)
    parts, report = load(sharded)
    assert whole.state_dict().keys() == parts.state_dict().keys()
    for key, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[key])
    assert report.files == tuple(sorted(sharded.glob("model-0*.safetensors")))
    direct = build(config_of(sharded), HeadKind.BASE)
    fill_exactly(direct, sharded / INDEX)
    assert torch.equal(
        direct.get_parameter("pooler.dense.weight"), whole.get_parameter("pooler.dense.weight")
    )


@pytest.mark.case("hf", 21)
@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/x.safetensors", "a/b.safetensors"])
def test_an_index_that_leads_elsewhere_is_refused(sharded, name):
    change_index(sharded, lambda weight_map: weight_map.update({"pooler.dense.weight": name}))
    with pytest.raises(CheckpointFormatError, match=re.escape(INDEX)):
        load(sharded)
    with pytest.raises(CheckpointFormatError, match=re.escape(INDEX)):
        load(sharded, WeightFiles(tuple(sharded.glob("model-0*")), sharded / INDEX))


def test_a_missing_shard_is_named(sharded):
    weights = locate(sharded).weight_files()
    weights.files[1].unlink()
    with pytest.raises(CheckpointFormatError, match=f"{weights.files[1].name}, which is missing"):
        load(sharded, weights)
    with pytest.raises(CheckpointFormatError, match=weights.files[1].name):
        load(sharded)


def test_a_key_in_two_shards_is_refused_with_both(sharded):
    weights = locate(sharded).weight_files()
    first, second = (load_file(path) for path in weights.files[:2])
    key = next(iter(first))
    save_file({**second, key: first[key]}, weights.files[1])
    with pytest.raises(CheckpointFormatError) as caught:
        load(sharded)
    message = str(caught.value)
    assert message.startswith(f"{key} is in two files")
    assert all(str(path) in message for path in weights.files[:2])


def test_an_index_that_does_not_know_its_shards_is_refused(sharded):
    change_index(
        sharded, lambda weight_map: weight_map.update(extra=weight_map["pooler.dense.bias"])
    )
    with pytest.raises(CheckpointFormatError, match=r"extra is in .* no shard has it"):
        load(sharded)


def test_an_index_that_names_another_shard_is_refused(sharded):
    def turn(weight_map):
        names = sorted(set(weight_map.values()))
        key = "pooler.dense.bias"
        weight_map[key] = next(name for name in names if name != weight_map[key])

    change_index(sharded, turn)
    with pytest.raises(CheckpointFormatError, match=r"pooler\.dense\.bias is in .*, but it is in"):
        load(sharded)


# Writing


@pytest.mark.parametrize("limit", ["1KB", "2KB", LIMIT, "1GB"])
def test_shards_and_index_are_those_of_the_reference(tmp_path, single, limit):
    expected = tmp_path / "expected"
    save_reference(expected, "Bert", HeadKind.BASE, shards=limit)
    graph, _ = load(single)
    (tmp_path / "ours").mkdir()
    save_safetensors_file_from_graph(
        graph, tmp_path / "ours" / "model.safetensors", max_shard_size=limit
    )
    (expected / "config.json").unlink()
    theirs = {path.name: path.read_bytes() for path in expected.iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "ours").iterdir()} == theirs


def test_every_save_replaces_the_one_before(single):
    graph, _ = load(single)
    original = (single / "model.safetensors").read_bytes()
    save_safetensors_file_from_graph(graph, single / "model.safetensors", max_shard_size="2KB")
    many = {path.name for path in single.iterdir()}
    assert "model.safetensors" not in many
    save_safetensors_file_from_graph(graph, single / "model.safetensors", max_shard_size=LIMIT)
    fewer = {path.name for path in single.iterdir()}
    assert fewer & many == {INDEX, "config.json"}
    again, _ = load(single)
    save_safetensors_file_from_graph(again, single / "model.safetensors")
    assert {path.name for path in single.iterdir()} == {"model.safetensors", "config.json"}
    assert (single / "model.safetensors").read_bytes() == original


@each_row(
    ("size", "expected"),
    [
        (1000, 1000),
        ("1000", 1000),
        ("5GB", 5_000_000_000),
        ("1.5 mb", 1_500_000),
        ("2KiB", 2048),
        ("3KB", 3000),
        ("2MiB", 2 << 20),
        ("2GiB", 2 << 30),
        ("7B", 7),
    ],
)
def test_a_size_is_written_as_people_write_it(size, expected):
    assert shard_bytes(size) == expected


@each_row("size", [0, -1, "0GB", "5XB", "GB", "", "1e3", "٣GB", "9" * 400])
def test_anything_else_is_no_size(size):
    with pytest.raises(ValueError, match="is not a file size"):
        shard_bytes(size)


def test_a_file_is_filled_up_to_its_last_byte(tmp_path):
    tensors = {name: torch.zeros(250) for name in "abcdef"}
    write_shards(tensors, tmp_path / "model.safetensors", 2000)
    names = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    assert [names[key][6:20] for key in "abcdef"] == [
        *["00001-of-00003"] * 2, *["00002-of-00003"] * 2, *["00003-of-00003"] * 2
    ]  # fmt: skip


def test_an_index_that_names_the_single_file_does_not_remove_it(tmp_path):
    path = tmp_path / "model.safetensors"
    for _ in range(2):
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"weight": path.name}}))
        save_safetensors_file_from_graph(torch.nn.Linear(2, 2), path)
        assert [file.name for file in tmp_path.iterdir()] == [path.name]


_WITHOUT_ROOM = """
import resource, sys
import torch
from flodl.hf.weights.writing import save_safetensors_file_from_graph
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
shard = sys.argv[2] if len(sys.argv) > 2 else None
try:
    save_safetensors_file_from_graph(torch.nn.Linear(100, 100), sys.argv[1], max_shard_size=shard)
except OSError as error:
    print(error.errno, error.filename)
"""


@pytest.mark.parametrize(("size", "named"), [([], ""), (["30KB"], "-00001-of-00002")])
def test_a_full_disk_is_an_error_of_the_system_and_leaves_what_was_there(tmp_path, size, named):
    path = tmp_path / "model.safetensors"
    save_safetensors_file_from_graph(torch.nn.Linear(2, 2), path)
    before = path.read_bytes()
    done = fork_server.python("-c", _WITHOUT_ROOM, str(path), *size, torch=True, abrupt=True)
    assert done.stdout == f"{errno.EFBIG} {path.with_stem(path.stem + named)}\n", done.stderr
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
