"""Any module and a safetensors file: what is compared, loaded, written and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import load, load_file, save
from torch import nn

from flodl.hf.errors import CheckpointFormatError, CheckpointMismatchError, MissingDependencyError
from flodl.hf.weights.writing import expected_from_graph, save_safetensors_file_from_graph
from tests import fork_server
from tests.flodl.hf.reference_files import fill_exactly, stored_bytes
from tests.rows import each_row


class Toy(nn.Module):
    """Two parameters that are shared, a norm, a counter and a buffer that is not kept."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(5, 3)
        self.dense = nn.Linear(3, 3)
        self.LayerNorm = nn.LayerNorm(3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.words.weight
        self.register_buffer("steps", torch.tensor(seed))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def on_meta():
    with torch.device("meta"):
        return Toy()


def values(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def filled(module, data, folder):
    """Fill a module from the bytes of a file."""
    path = folder / "given.safetensors"
    path.write_bytes(data)
    fill_exactly(module, path)
    return module


def test_a_module_expects_each_shared_parameter_once_and_no_scratch_buffers():
    assert expected_from_graph(on_meta()) == {
        "steps": (),
        "words.weight": (5, 3),
        "dense.weight": (3, 3),
        "dense.bias": (3,),
        "LayerNorm.weight": (3,),
        "LayerNorm.bias": (3,),
    }


# Loading


@pytest.mark.parametrize("make", [on_meta, lambda: Toy(7)])
def test_a_module_is_filled_from_a_file(make, tmp_path):
    source = Toy(1)
    path = tmp_path / "x.safetensors"
    path.write_bytes(stored_bytes(source))
    module = make()
    fill_exactly(module, path)
    assert same(values(module), values(source))
    assert module.out.weight is module.words.weight
    assert len(module.load_report.loaded) == 6


def test_a_shared_parameter_may_be_under_any_of_its_names(tmp_path):
    tensors = load(stored_bytes(Toy(1)))
    tensors["out.weight"] = tensors.pop("words.weight")
    module = filled(on_meta(), save(tensors), tmp_path)
    assert torch.equal(module.words.weight, tensors["out.weight"])
    assert module.out.weight is module.words.weight


def test_a_counter_has_to_be_of_its_own_type(tmp_path):
    tensors = load(stored_bytes(Toy(1)))
    tensors["steps"] = tensors["steps"].float()
    with pytest.raises(CheckpointMismatchError) as caught:
        filled(on_meta(), save(tensors), tmp_path)
    assert caught.value.bad_dtypes == [("steps", "F32")]


def test_all_differences_are_reported_together(tmp_path):
    tensors = load(stored_bytes(Toy(1)))
    tensors["dense.wieght"] = tensors.pop("dense.weight")
    tensors |= {"dense.bias": torch.zeros(4), "z": torch.zeros(1)}
    with pytest.raises(CheckpointMismatchError) as caught:
        filled(on_meta(), save(tensors), tmp_path)
    assert caught.value.missing == ["dense.weight"]
    assert caught.value.unused == ["dense.wieght", "z"]
    assert caught.value.shape_mismatches == [("dense.bias", (3,), (4,))]
    assert "dense.weight (unused and nearly the same: dense.wieght)" in str(caught.value)


def test_a_lazy_parameter_is_named():
    module = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        expected_from_graph(module)


def test_a_missing_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        fill_exactly(on_meta(), tmp_path / "none.safetensors")


# Saving


def test_the_file_is_what_the_library_writes_with_the_mark_of_the_reference(tmp_path):
    path = tmp_path / "model.safetensors"
    save_safetensors_file_from_graph(Toy(1), path)
    expected = {key: value for key, value in values(Toy(1)).items() if key != "out.weight"}
    assert path.read_bytes() == save(expected, metadata={"format": "pt"})
    assert path.read_bytes() == stored_bytes(Toy(1))


def test_old_names_are_saved_as_new_ones_unless_they_meet():
    module = nn.Module()
    module.LayerNorm = nn.Module()
    module.LayerNorm.gamma = nn.Parameter(torch.ones(2))
    assert list(load(stored_bytes(module))) == ["LayerNorm.weight"]
    module.LayerNorm.weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"saved as LayerNorm\.weight"):
        stored_bytes(module)


def test_a_tied_table_is_saved_by_its_first_name_wherever_it_stands():
    module = nn.Module()
    module.vocab_projector = nn.Linear(3, 5, bias=False)
    module.distilbert = nn.Module()
    module.distilbert.embeddings = nn.Module()
    module.distilbert.embeddings.word_embeddings = nn.Embedding(5, 3)
    module.distilbert.embeddings.word_embeddings.weight = module.vocab_projector.weight
    words = "distilbert.embeddings.word_embeddings.weight"
    assert list(load(stored_bytes(module))) == [words]


def test_views_and_parameters_over_one_memory_are_saved_whole():
    module = nn.Module()
    module.turned = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    module.first = nn.Parameter(torch.ones(3))
    module.second = nn.Parameter(module.first.data)
    stored = load(stored_bytes(module))
    assert same(stored, values(module))


def test_a_module_without_values_cannot_be_saved():
    with pytest.raises(ValueError, match="meta device"):
        stored_bytes(on_meta())


def test_a_saved_file_has_the_permissions_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        save_safetensors_file_from_graph(Toy(1), tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_the_file_a_module_was_loaded_from_can_be_replaced(tmp_path):
    path = tmp_path / "model.safetensors"
    save_safetensors_file_from_graph(Toy(1), path)
    module = on_meta()
    fill_exactly(module, path)
    with torch.no_grad():
        module.dense.bias.add_(1)
    expected = values(module)
    save_safetensors_file_from_graph(module, path)
    assert same(values(module), expected)
    stored = load_file(path)
    assert torch.equal(stored["dense.bias"], expected["dense.bias"])
    assert torch.equal(stored["words.weight"], expected["words.weight"])


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "model.safetensors"
    save_safetensors_file_from_graph(Toy(1), path)
    before = path.read_bytes()
    module = Toy(2)
    module.odd = nn.Parameter(torch.zeros(2).to_sparse())
    with pytest.raises((ValueError, RuntimeError, NotImplementedError)):
        save_safetensors_file_from_graph(module, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path):
    program = textwrap.dedent(
        """
        import sys
        from tests.flodl.hf.test_safetensors_io import Toy
        from flodl.hf.weights.writing import save_safetensors_file_from_graph
        save_safetensors_file_from_graph(Toy(1), sys.argv[1])
        """
    )
    here = os.environ.get("PYTHONHASHSEED")
    environment = {**os.environ, "PYTHONHASHSEED": "1" if here != "1" else "2"}
    subprocess.run([sys.executable, "-c", program, tmp_path / "a"], check=True, env=environment)
    save_safetensors_file_from_graph(Toy(1), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingDependencyError, match="hf-offline"):
        stored_bytes(Toy(1))


def test_nothing_of_the_library_is_imported_before_it_is_needed():
    program = (
        "import sys, flodl.hf.weights.writing, flodl.hf.weights.fill; "
        "sys.exit('safetensors' in sys.modules)"
    )
    done = fork_server.python("-c", program, torch=True, abrupt=True)
    assert done.returncode == 0, done.stderr


# Headers


def raw(fields, body=b"", *, text=None):
    header = (text or json.dumps(fields)).encode()
    return len(header).to_bytes(8, "little") + header + body


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@each_row(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"abc", "not a safetensors file"),
        (b"\xff" * 16, "not a safetensors file"),
        ((99_999_999).to_bytes(8, "little") + b"{}", "claims 99,999,999"),
        (raw({}, text="[]"), "begin with a brace"),
        (raw({}, text=" {}"), "begin with a brace"),
        (raw({}, text="{nothing"), "not a sound"),
        (raw({}, text='{"a":' * 100_000), "not a s"),
        (raw({"__metadata__": {"a": 1}}), "metadata are not strings"),
        (raw({"__metadata__": []}), "metadata are not strings"),
        (raw({}, text='{"a": 1, "a": 2}'), "one field twice"),
        (raw({"a": [1]}), "'a' is not described"),
        (raw({"a": {**entry(), "more": 1}}, bytes(4)), "'a' is not described"),
        (raw({"a": entry("F31")}, bytes(4)), "unknown dtype 'F31'"),
        (raw({"a": entry(["F32"])}, bytes(4)), "unknown dtype"),
        (raw({"a": entry(shape=(-1,))}, bytes(4)), "malformed shape"),
        (raw({"a": entry(shape=(True,))}, bytes(4)), "malformed shape"),
        (raw({"a": entry(shape=(1.0,))}, bytes(4)), "malformed shape"),
        (raw({"a": entry(shape=(1 << 62, 4))}, bytes(4)), "malformed shape"),
        (raw({"a": entry(offsets=(0,))}, bytes(4)), "malformed shape"),
        (raw({"a": entry(offsets=(4, 0))}, bytes(4)), "does not fit its shape"),
        (raw({"a": entry(shape=(2,))}, bytes(4)), "does not fit its shape"),
        (raw({"a": entry("F4", (1,), (0, 1))}, bytes(1)), "does not fit its shape"),
        (raw({"a": entry(offsets=(4, 8))}, bytes(8)), "overlap others or leave a gap"),
        (raw({"a": entry(), "b": entry()}, bytes(4)), "overlap others or leave a gap"),
        (raw({"a": entry()}, bytes(3)), "truncated, 1 of 4 bytes"),
        (raw({"a": entry()}, bytes(6)), "2 bytes follow"),
        (raw({}, text='{"\\ud800": 1}'), "not a sound"),
    ],
)
def test_a_malformed_header_is_explained_and_the_file_named(tmp_path, data, message):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointFormatError, match=message) as caught:
        fill_exactly(on_meta(), path)
    assert str(path) in str(caught.value)


def test_types_that_a_module_cannot_have_are_read_past(tmp_path):
    tensors = load(stored_bytes(Toy(1)))
    data = save({**tensors, "eighth": torch.zeros(4).to(torch.float8_e5m2)})
    with pytest.raises(CheckpointMismatchError) as caught:
        filled(on_meta(), data, tmp_path)
    assert caught.value.unused == ["eighth"]


def test_an_empty_tensor_has_a_place_too(tmp_path):
    module = nn.Module()
    module.none = nn.Parameter(torch.zeros(0, 3))
    data = stored_bytes(module)
    with torch.device("meta"):
        module.none = nn.Parameter(torch.ones(0, 3))
    filled(module, data, tmp_path)
    assert module.none.shape == (0, 3)
    assert not module.none.is_meta


def test_views_that_overlap_are_each_saved_whole(tmp_path):
    memory = torch.arange(10.0)
    module = nn.Module()
    module.a = nn.Parameter(memory[:6])
    module.b = nn.Parameter(memory[3:9])
    module.c = nn.Parameter(memory[9:])
    save_safetensors_file_from_graph(module, tmp_path / "x.safetensors")
    stored = load_file(tmp_path / "x.safetensors")
    assert {key: tensor.tolist() for key, tensor in stored.items()} == {
        "a": [0, 1, 2, 3, 4, 5],
        "b": [3, 4, 5, 6, 7, 8],
        "c": [9],
    }
