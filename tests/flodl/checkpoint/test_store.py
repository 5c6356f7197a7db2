"""Saving a model and loading it: what is kept, what is cast, what is refused."""

from __future__ import annotations

import gzip
import io
import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from packaging.version import Version
from torch import nn

from flodl.checkpoint import (
    LoadReport,
    checkpoint_keys,
    checkpoint_metadata,
    checkpoint_version,
    load_checkpoint,
    load_checkpoint_file,
    save_checkpoint,
    save_checkpoint_file,
)
from flodl.checkpoint.files import config_sidecar
from flodl.checkpoint.sharded import has_memory
from flodl.errors import ArchitectureMismatch, CheckpointError, ShapeMismatch
from flodl.graph import FlowBuilder
from tests.rows import each_row

with_complex = pytest.mark.skipif(
    Version(safetensors.__version__) < Version("0.7"),
    reason="safetensors reads complex numbers from version 0.7 on",
)


def network(hidden=8, label="net"):
    builder = FlowBuilder.from_(nn.Linear(4, hidden)).tag("enc").through(nn.Tanh())
    return builder.through(nn.Linear(hidden, 2)).tag("dec").label(label).build()


def equal(first, second):
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.case("runtime", 33)
@each_row("name", ["model.fdl", "model.fdl.gz"])
def test_a_model_comes_back_bit_equal_and_two_saves_are_byte_equal(tmp_path, name):
    graph, other = network(), network()
    path, again = tmp_path / name, tmp_path / "again" / name
    graph.save_checkpoint(path)
    graph.save_checkpoint(again)
    assert path.read_bytes() == again.read_bytes()

    report = other.load_checkpoint(path)
    assert report == LoadReport(
        loaded=["enc/weight", "enc/bias", "dec/weight", "dec/bias"], skipped=[], missing=[]
    )
    assert equal(other, graph)

    plain = tmp_path / "plain.fdl"
    graph.save_checkpoint(plain)
    stored = safetensors.torch.load_file(plain)
    assert {key: value.tolist() for key, value in stored.items()} == {
        key: value.tolist() for key, value in graph.state_dict().items()
    }


def test_a_stream_holds_the_same_bytes_as_a_file_and_stays_open(tmp_path):
    graph, other = network(), network()
    stream = io.BytesIO()
    save_checkpoint(stream, graph.named_parameters(), [], graph.structural_hash(), label="net")
    graph.save_checkpoint(tmp_path / "model.fdl")
    assert stream.getvalue() == (tmp_path / "model.fdl").read_bytes()

    stream.seek(0)
    load_checkpoint(stream, other.qualified_parameters(), [], other.structural_hash())
    assert equal(other, graph)
    assert not stream.closed

    graph.save_checkpoint(tmp_path / "model.fdl.gz")
    third = network()
    with (tmp_path / "model.fdl.gz").open("rb") as packed:
        load_checkpoint(packed, third.named_parameters(), [])
        assert not packed.closed
    assert equal(third, graph)


def test_names_metadata_and_version_are_read_from_the_header(tmp_path):
    for name in ("model.fdl", "model.fdl.gz"):
        path = tmp_path / name
        graph = network()
        save_checkpoint_file(
            path,
            graph.named_parameters(),
            [("bn.running_mean", torch.zeros(3))],
            "ab12",
            label="net",
            metadata={"epoch": "7"},
        )
        assert checkpoint_keys(path) == [
            "enc/weight", "enc/bias", "dec/weight", "dec/bias", "bn/running_mean",
        ]  # fmt: skip
        assert checkpoint_version(path) == 3
        metadata = checkpoint_metadata(path)
        assert metadata.pop("flodl")
        assert metadata.pop("digest").startswith("crc32:")
        assert metadata == {
            "format": "fdl",
            "fdl_version": "3",
            "structural_hash": "ab12",
            "label": "net",
            "epoch": "7",
        }


def test_any_module_can_be_saved_by_its_named_parameters(tmp_path):
    model, other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), None
    model(torch.randn(8, 2))
    path = tmp_path / "model.fdl"
    save_checkpoint_file(path, model.named_parameters(), model.named_buffers())
    other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    report = load_checkpoint_file(path, other.named_parameters(), other.named_buffers())
    assert report.loaded == [
        "0/weight", "0/bias", "1/weight", "1/bias",
        "1/running_mean", "1/running_var", "1/num_batches_tracked",
    ]  # fmt: skip
    assert equal(other, model)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
        torch.float8_e5m2, pytest.param(torch.complex64, marks=with_complex),
        torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool,
    ],
)  # fmt: skip
def test_every_dtype_comes_back_and_is_readable_by_safetensors(tmp_path, dtype):
    values = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    empty, scalar = torch.empty(0, 3, dtype=dtype), values[0, 1]
    path = tmp_path / "x.fdl"
    tensors = {"v": values, "t": values.t(), "e": empty, "s": scalar}
    save_checkpoint_file(path, tensors.items(), [])
    model = {name: torch.zeros_like(value) for name, value in tensors.items()}
    load_checkpoint_file(path, model.items(), [])
    stored = safetensors.torch.load_file(path)
    for name, value in tensors.items():
        for read in (model[name], stored[name]):
            assert read.dtype == dtype
            assert read.shape == value.shape
            assert read.to(torch.complex128).tolist() == value.to(torch.complex128).tolist()


def test_narrow_tensors_stand_behind_wide_ones_so_that_all_are_aligned(tmp_path):
    path = tmp_path / "x.fdl"
    tensors = [("a", torch.ones(3, dtype=torch.int8)), ("b", torch.ones(2)), ("c", torch.ones(1))]
    save_checkpoint_file(path, tensors, [("n", torch.tensor(1))])
    assert checkpoint_keys(path) == ["n", "b", "c", "a"]
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert header % 64 == 0


@with_complex
def test_conjugate_and_sliced_tensors_are_stored_as_they_read(tmp_path):
    path = tmp_path / "x.fdl"
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    sliced = torch.arange(12.0).reshape(3, 4)[:, 1:3]
    save_checkpoint_file(path, [("c", conjugate), ("s", sliced)], [])
    stored = safetensors.torch.load_file(path)
    assert torch.equal(stored["c"], conjugate.resolve_conj())
    assert torch.equal(stored["s"], sliced)


@pytest.mark.case("runtime", 35)
def test_one_wrong_shape_leaves_the_whole_model_unchanged(tmp_path):
    path = tmp_path / "x.fdl"
    save_checkpoint_file(
        path, [("a/w", torch.ones(2)), ("b/w", torch.ones(3, 2)), ("c/w", torch.ones(2))], []
    )
    model = {"a/w": torch.zeros(2), "b/w": torch.zeros(2, 2), "c/w": torch.zeros(2)}
    with pytest.raises(ShapeMismatch, match=r"b/w: file \[3, 2\], model \[2, 2\]"):
        load_checkpoint_file(path, model.items(), [])
    assert all(torch.equal(value, torch.zeros_like(value)) for value in model.values())


def test_every_wrong_shape_is_listed(tmp_path):
    path = tmp_path / "x.fdl"
    save_checkpoint_file(path, [("a/w", torch.ones(2)), ("b/w", torch.ones(3))], [])
    with pytest.raises(ShapeMismatch) as caught:
        load_checkpoint_file(path, [("a/w", torch.zeros(1)), ("b/w", torch.zeros(1))], [])
    assert "a/w: file [2], model [1]" in str(caught.value)
    assert "b/w: file [3], model [1]" in str(caught.value)


def test_skipping_wrong_shapes_transfers_the_rest(tmp_path):
    path = tmp_path / "x.fdl"
    graph, wide = network(), network(hidden=16)
    graph.save_checkpoint(path)
    bias = wide.enc.bias.clone()
    report = wide.load_checkpoint(path, on_shape_mismatch="skip")
    assert report == LoadReport(
        loaded=["dec/bias"],
        skipped=["enc/weight", "enc/bias", "dec/weight"],
        missing=["enc/weight", "enc/bias", "dec/weight"],
    )
    assert torch.equal(wide.dec.bias, graph.dec.bias)
    assert torch.equal(wide.enc.bias, bias)
    with pytest.raises(ValueError, match="'error' or 'skip', not 'ignore'"):
        graph.load_checkpoint(path, on_shape_mismatch="ignore")


def test_the_hash_is_compared_only_when_both_sides_have_one(tmp_path):
    path = tmp_path / "x.fdl"
    model = {"w": torch.zeros(2)}
    save_checkpoint_file(path, [("w", torch.ones(2))], [])
    assert load_checkpoint_file(path, model.items(), [], "ab").loaded == ["w"]
    save_checkpoint_file(path, [("w", torch.ones(2))], [], "cd")
    assert load_checkpoint_file(path, model.items(), []).loaded == ["w"]
    with pytest.raises(ArchitectureMismatch):
        load_checkpoint_file(path, model.items(), [], "ab")


@pytest.mark.case("runtime", 36)
def test_values_are_cast_to_the_models_dtype_and_frozen_stays_frozen(tmp_path):
    path = tmp_path / "x.fdl"
    save_checkpoint_file(path, [("l.weight", torch.ones(2, 2)), ("l.bias", torch.ones(2))], [])
    model = nn.ModuleDict({"l": nn.Linear(2, 2)}).double()
    model["l"].weight.requires_grad_(False)
    load_checkpoint_file(path, model.named_parameters(), [])
    assert model["l"].weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert model["l"].weight.dtype == torch.float64
    assert not model["l"].weight.requires_grad
    assert model["l"].bias.requires_grad


@pytest.mark.case("runtime", 37)
def test_absent_and_extra_tensors_are_reported(tmp_path):
    path = tmp_path / "x.fdl"
    save_checkpoint_file(path, [("a/weight", torch.ones(1)), ("old/weight", torch.ones(1))], [])
    model = {"a/weight": torch.zeros(1), "extra/weight": torch.zeros(1)}
    report = load_checkpoint_file(path, model.items(), [])
    assert report.missing == ["extra/weight"]
    assert report.skipped == ["old/weight"]
    assert report.loaded == ["a/weight"]
    assert [value.item() for value in model.values()] == [1, 0]


def test_a_state_dict_knows_its_shared_tensors_too(tmp_path):
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, shared)
    save_checkpoint_file(tmp_path / "x.fdl", model.state_dict().items(), [])
    assert checkpoint_keys(tmp_path / "x.fdl") == ["0/weight", "0/bias"]


def test_tensors_without_elements_share_no_memory(tmp_path):
    empty = [("a", torch.empty(0)), ("b", torch.empty(0, 3))]
    save_checkpoint_file(tmp_path / "x.fdl", empty, [])
    stored = safetensors.torch.load_file(tmp_path / "x.fdl")
    assert {name: list(tensor.shape) for name, tensor in stored.items()} == {"a": [0], "b": [0, 3]}


@each_row("tensor", [torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.empty(0)])
def test_only_memory_of_dense_tensors_with_elements_can_be_freed(tensor):
    assert has_memory(tensor)


def test_a_buffer_outside_the_state_dict_is_neither_saved_nor_missed(tmp_path):
    class Scratch(nn.Identity):
        def __init__(self):
            super().__init__()
            self.register_buffer("scratch", torch.zeros(1), persistent=False)
            self.register_buffer("kept", torch.zeros(1))

    graph = FlowBuilder.from_(Scratch()).build()
    graph.save_checkpoint(tmp_path / "x.fdl")
    assert checkpoint_keys(tmp_path / "x.fdl") == ["scratch_1/kept"]
    assert graph.load_checkpoint(tmp_path / "x.fdl").missing == []


@each_row(
    ("tensors", "message"),
    [
        ([("a.b", torch.ones(1)), ("a/b", torch.ones(1))], "two tensors are named a/b"),
        ([("w", torch.empty(2, device="meta"))], "meta device and has no values"),
        ([("__metadata__", torch.ones(1))], "cannot be named __metadata__"),
        ([("weight\udc80", torch.ones(1))], r"holds no valid text after .*weight\\udc80"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_no_file_appears(tmp_path, tensors, message):
    with pytest.raises(ValueError, match=message):
        save_checkpoint_file(tmp_path / "x.fdl", tensors, [])
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_is_kept_as_json_and_equal_ones_give_equal_bytes(tmp_path):
    lr = {"value": 0.1, "origin": "train/fdl.yml:9:7", "overrides": [{"value": 0.2}]}
    first, second = tmp_path / "a.fdl", tmp_path / "b.fdl"
    save_checkpoint_file(first, [], [], config={"lr": lr, "note": {"value": "ä"}})
    save_checkpoint_file(second, [], [], config={"note": {"value": "ä"}, "lr": lr})
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(checkpoint_metadata(first)["config"]) == {"lr": lr, "note": {"value": "ä"}}
    for config in ({"lr": torch.ones(1)}, {"lr": float("nan")}):
        with pytest.raises(ValueError, match="config cannot be kept as JSON"):
            save_checkpoint_file(tmp_path / "c.fdl", [], [], config=config)
    assert not (tmp_path / "c.fdl").exists()


def test_epoch_metrics_and_source_configuration_are_kept_as_strings(tmp_path):
    path = tmp_path / "x.fdl"
    metrics = {"loss": 0.5, "accuracy": math.nan}
    save_checkpoint_file(path, [], [], epoch=7, metrics=metrics, source_config='{"a": 1}')
    strings = checkpoint_metadata(path)
    assert strings["epoch"] == "7"
    assert json.loads(strings["metrics"]) == {"loss": 0.5, "accuracy": None}
    assert strings["source_config"] == '{"a": 1}'
    other = {"accuracy": torch.tensor(math.inf), "loss": torch.tensor(0.5)}
    again = tmp_path / "y.fdl"
    save_checkpoint_file(again, [], [], epoch=7, metrics=other, source_config='{"a": 1}')
    assert again.read_bytes() == path.read_bytes()
    # A program may also keep its own epoch and metrics; both at once would be a guess.
    save_checkpoint_file(path, [], [], metadata={"epoch": "of 1848"})
    assert checkpoint_metadata(path)["epoch"] == "of 1848"
    with pytest.raises(ValueError, match="'epoch' is also given as epoch="):
        save_checkpoint_file(path, [], [], epoch=7, metadata={"epoch": "8"})


@pytest.mark.case("runtime", 40)
@each_row(
    ("name", "sidecar"),
    [
        ("model.fdl.gz", "model.config.json"),
        ("model.fdl", "model.config.json"),
        ("model.v2.fdl", "model.v2.config.json"),
        ("model", "model.config.json"),
        ("deep/model.fdl.gz", "deep/model.config.json"),
    ],
)
def test_the_source_configuration_also_stands_beside_the_checkpoint(tmp_path, name, sidecar):
    assert config_sidecar(f"/t/{name}") == Path(f"/t/{sidecar}")
    text = '{"größe": 1}\n'
    save_checkpoint_file(tmp_path / name, [], [], source_config=text)
    assert (tmp_path / sidecar).read_text(encoding="utf-8") == text
    folder = (tmp_path / name).parent
    assert {path.name for path in folder.iterdir()} == {Path(name).name, Path(sidecar).name}


def test_a_companion_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "model.config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write .*model\.config\.json: Is a dir"):
        save_checkpoint_file(tmp_path / "model.fdl", [], [], source_config="{}")
    assert checkpoint_keys(tmp_path / "model.fdl") == []


class Wire:
    """The least a destination can be: it takes bytes and has no way back."""

    def __init__(self, tensor=None):
        self.data = bytearray()
        self.tensor = tensor

    def write(self, piece):
        self.data += piece
        if self.tensor is not None:
            self.tensor.add_(1)


def test_a_destination_that_only_writes_gets_the_same_bytes_as_a_file(tmp_path):
    graph, wire = network(), Wire()
    save_checkpoint(wire, graph.named_parameters(), [], graph.structural_hash(), label="net")
    graph.save_checkpoint(tmp_path / "model.fdl")
    assert wire.data == (tmp_path / "model.fdl").read_bytes()
    graph.save_checkpoint(tmp_path / "model.fdl.gz")
    assert wire.data == gzip.decompress((tmp_path / "model.fdl.gz").read_bytes())


def test_tensors_that_change_while_they_are_sent_are_noticed():
    tensor = torch.zeros(1000)
    with pytest.raises(CheckpointError, match="changed while they were saved; save a snapshot"):
        save_checkpoint(Wire(tensor), [("w", tensor)], [])


@each_row(
    ("metadata", "message"),
    [
        ({"config": "{}"}, "'config' is the container's own"),
        ({"label": "x"}, "'label' is the container's own"),
        ({"digest": "x"}, "'digest' is the container's own"),
        ({"source_config": "x"}, "'source_config' is the container's own"),
        ({"epoch": 3}, "'epoch' must be a string"),
    ],
)
def test_metadata_are_strings_under_free_keys(tmp_path, metadata, message):
    with pytest.raises(ValueError, match=message):
        save_checkpoint_file(tmp_path / "x.fdl", [], [], metadata=metadata)


def test_metadata_too_long_to_be_read_again_leave_the_previous_file(tmp_path):
    save_checkpoint_file(tmp_path / "x.fdl", [("w", torch.ones(1))], [])
    with pytest.raises(ValueError, match="space for 100,000,000; keep large texts in a file"):
        save_checkpoint_file(
            tmp_path / "x.fdl", [("w", torch.zeros(1))], [], metadata={"log": "x" * 100_000_000}
        )
    assert load_checkpoint_file(tmp_path / "x.fdl", [("w", torch.zeros(1))], []).loaded == ["w"]


def test_a_complex_tensor_does_not_lose_its_imaginary_part_silently(tmp_path):
    path = tmp_path / "x.fdl"
    save_checkpoint_file(path, [("v", torch.ones(1)), ("w", torch.ones(1) * 1j)], [])
    model = {"v": torch.zeros(1), "w": torch.zeros(1)}
    with pytest.raises(CheckpointError, match="imaginary part would be lost"):
        load_checkpoint_file(path, model.items(), [])
    assert model["v"].item() == 0


def test_a_model_on_the_meta_device_is_refused(tmp_path):
    save_checkpoint_file(tmp_path / "x.fdl", [("w", torch.ones(1))], [])
    with pytest.raises(ValueError, match="w is on the meta device and has no values: call"):
        load_checkpoint_file(tmp_path / "x.fdl", [("w", torch.empty(1, device="meta"))], [])


def test_loading_keeps_the_optimizer_attached(tmp_path):
    graph, other = network(), network()
    graph.save_checkpoint(tmp_path / "x.fdl")
    other.set_optimizer(lambda params: torch.optim.SGD(params, lr=1.0))
    other.load_checkpoint(tmp_path / "x.fdl")
    other(torch.ones(1, 4)).sum().backward()
    other.step()
    moved = (other.dec.bias - graph.dec.bias).abs().max().item()
    assert math.isclose(moved, 1.0, rel_tol=1e-6)


def test_the_file_can_be_replaced_while_its_tensors_are_in_use(tmp_path):
    path = tmp_path / "x.fdl"
    first, second, model = network(), network(), network()
    first.save_checkpoint(path)
    model.load_checkpoint(path)
    second.save_checkpoint(path)
    assert equal(model, first)
    model.load_checkpoint(path)
    assert equal(model, second)
