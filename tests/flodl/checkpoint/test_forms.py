"""Every type and layout that torch has is saved exactly, or refused with the tensor's name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from flodl.checkpoint import (
    checkpoint_keys,
    load_checkpoint_file,
    migrate_checkpoint_file,
    save_checkpoint_file,
)
from flodl.checkpoint.files import read_file
from flodl.checkpoint.snapshot import snapshot
from flodl.errors import CheckpointError
from tests.rows import each_row

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("ComplexHalf", "Sparse ", "torch.quantize_per_tensor", ".*nested tensors")
]

DTYPES = sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)
REFUSED = re.compile(r"torch\.(u?int[1-7]|q?u?int\dx\d|quint8|quint\dx\d|qint8|qint32)$")


def filled(dtype: torch.dtype) -> Tensor:
    """A tensor of 2 x 3 elements whose bytes differ."""
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(1, 6 * size + 1, dtype=torch.uint8)
    return (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(2, 3)


def dense() -> Tensor:
    return torch.tensor([[0.0, 1.5, 0, 0], [0, 0, 2.5, 0], [0, 0, 0, 0], [3.5, 0, 0, 4.5]])


SPARSE: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda t: t.to_sparse(),
    "uncoalesced": lambda t: torch.sparse_coo_tensor([[0, 0], [1, 1]], t[0, :2], (4, 4)),
    "hybrid": lambda t: t.to_sparse(1),
    "no elements": lambda t: torch.zeros_like(t).to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
}


def raw(tensor: Tensor) -> Any:
    """All that makes a tensor, comparable."""
    if tensor.layout is torch.sparse_coo:
        parts = (tensor._indices(), tensor._values())
        return ("coo", tensor.shape, tensor.is_coalesced(), *map(raw, parts))
    if tensor.layout is not torch.strided:
        lower = str(tensor.layout)
        rows = tensor.crow_indices() if lower.endswith("r") else tensor.ccol_indices()
        columns = tensor.col_indices() if lower.endswith("r") else tensor.row_indices()
        return (lower, tensor.shape, raw(rows), raw(columns), raw(tensor.values()))
    plain = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return tensor.dtype, tensor.shape, plain.view(torch.uint8).tolist()


def round_trip(saved: dict[str, Tensor], into: dict[str, Tensor], folder: Path) -> None:
    file = folder / "x.fdl"
    save_checkpoint_file(file, [], saved.items())
    first = file.read_bytes()
    save_checkpoint_file(file, [], saved.items())
    assert file.read_bytes() == first
    report = load_checkpoint_file(file, [], into.items())
    assert sorted(report.loaded) == sorted(saved)
    assert report.missing == report.skipped == []
    assert set(checkpoint_keys(file)) == {n for n in saved if n != "again"}
    load_file(file)  # it is still a file that safetensors reads
    copies = snapshot(saved)
    assert copies is not None
    for name, tensor in saved.items():
        assert raw(into[name]) == raw(tensor), name
        assert raw(copies[name]) == raw(tensor), name


@each_row("dtype", [one for one in DTYPES if not REFUSED.match(str(one))], ids=str)
def test_every_type_keeps_its_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = filled(dtype)
    saved = {
        "plain": tensor,
        "scalar": tensor[0, 0].clone(),
        "empty": tensor[:0],
        "across": tensor.t(),
        "every second": torch.cat([tensor, tensor])[::2] if dtype.itemsize > 1 else tensor[:, ::2],
        "again": tensor,
    }
    into = {
        name: torch.empty_like(one, memory_format=torch.contiguous_format)
        .view(torch.uint8)
        .zero_()
        .view(dtype)
        if one.dim()
        else torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(())
        for name, one in saved.items()
    }
    round_trip(saved, into, tmp_path)


@each_row("dtype", [torch.float32, torch.complex128, torch.int64, torch.bool])
@each_row("form", list(SPARSE))
def test_sparse_tensors_keep_their_parts(form: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = SPARSE[form](dense().to(dtype))
    other = SPARSE[form]((dense().flip(0) + torch.eye(4)).to(dtype))
    round_trip({"x": tensor, "again": tensor}, {"x": other, "again": other}, tmp_path)


def test_names_that_look_like_parts_do_not_mix(tmp_path: Path) -> None:
    saved = {"a/x": dense().to_sparse(), "a/x.values": torch.ones(2), "a/x.indices": torch.zeros(1)}
    into = {name: torch.ones(2) if "." in name else dense().to_sparse() for name in saved}
    into["a/x.indices"] = torch.ones(1)
    round_trip(saved, into, tmp_path)


class Logs(torch.Tensor):
    """A subclass that only renames."""


def wrapped() -> Tensor:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.ones(2), torch.ones(2))


UNSAVED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "meta": (lambda: torch.empty(2, device="meta"), "meta device"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        "NestedTensor",
    ),
    "mkldnn": (lambda: torch.ones(2, 2).to_mkldnn(), "to_dense()"),
    "wrapper": (wrapped, "TwoTensor"),
}


@pytest.mark.parametrize("kind", list(UNSAVED))
def test_tensors_that_cannot_be_saved_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    make, told = UNSAVED[kind]
    with pytest.raises(ValueError, match=rf"^part/odd is .*{re.escape(told)}"):
        save_checkpoint_file(tmp_path / "x.fdl", [], [("part.odd", make())])
    assert not list(tmp_path.iterdir())


@each_row("dtype", [one for one in DTYPES if REFUSED.match(str(one))], ids=str)
def test_types_that_torch_cannot_copy_are_refused_by_name(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"^odd is .*{dtype}"):
        save_checkpoint_file(tmp_path / "x.fdl", [], [("odd", torch.empty(4, dtype=dtype))])


def test_quantized_tensors_are_refused_by_name(tmp_path: Path) -> None:
    tensor = torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)
    with pytest.raises(ValueError, match=r"^odd is quantized \(torch.qint8\)"):
        save_checkpoint_file(tmp_path / "x.fdl", [], [("odd", tensor)])


def test_subclasses_of_parameters_are_saved_as_their_values(tmp_path: Path) -> None:
    class Own(nn.Parameter):
        pass

    saved = {"own": Own(torch.ones(2)), "logs": torch.ones(3).as_subclass(Logs)}
    round_trip(saved, {"own": Own(torch.zeros(2)), "logs": torch.zeros(3)}, tmp_path)


def test_another_layout_or_type_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.fdl"
    save_checkpoint_file(file, [], [("a", torch.ones(4, 4)), ("x", dense().to_sparse())])
    first, target = torch.zeros(4, 4), torch.zeros(4, 4)
    with pytest.raises(CheckpointError, match=r"x is torch.sparse_coo in the checkpoint and"):
        load_checkpoint_file(file, [], [("a", first), ("x", target)])
    assert not first.any()
    save_checkpoint_file(file, [], [("x", filled(torch.bits8))])
    with pytest.raises(CheckpointError, match=r"x is torch.bits8 in .* torch.float32 in the model"):
        load_checkpoint_file(file, [], [("x", torch.zeros(2, 3))])


def test_a_migration_keeps_sparse_tensors(tmp_path: Path) -> None:
    save_checkpoint_file(tmp_path / "a.fdl", [], [("old.x", dense().to_sparse())])
    target = torch.zeros(4, 4).to_sparse()
    new = [("new.x", target)]
    report = migrate_checkpoint_file(tmp_path / "a.fdl", tmp_path / "b.fdl", [], new)
    assert report.remapped == [("old/x", "new/x")]
    load_checkpoint_file(tmp_path / "b.fdl", [], new)
    assert torch.equal(target.to_dense(), dense())


def read_all(file: Path) -> None:
    container = read_file(file)
    for entry in container.header.entries:
        container.tensor(entry)


@each_row(
    "forms",
    [
        [],
        {"x": 1},
        {"x": {"kind": "coo", "shape": [4, 4], "parts": ["x.indices"], "coalesced": True}},
        {"x": {"kind": "coo", "shape": [-4], "parts": ["x.indices", "x.values"], "coalesced": 1}},
        {"x": {"kind": "odd", "shape": [4, 4], "parts": ["x.indices", "x.values"]}},
        {"x": {"kind": "coo", "shape": [4, 4], "parts": ["x.indices", "y"], "coalesced": True}},
        {
            "x": {
                "kind": "coo",
                "shape": [2, 2],
                "parts": ["x.indices", "x.values"],
                "coalesced": True,
            }
        },
        {"x": {"kind": "csr", "shape": [4, 4], "parts": ["x.indices", "x.indices", "x.values"]}},
        {"x": {"kind": "complex128", "shape": [4], "parts": ["x.values"]}},
        {"x.values": {"kind": "complex128", "shape": [2], "parts": ["x.values"]}},
    ],
)
def test_damaged_forms_are_refused(forms: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.fdl"
    save_checkpoint_file(file, [], [("x", dense().to_sparse())])
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["forms"] = json.dumps(forms)
    del header["__metadata__"]["digest"]
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(CheckpointError):
        read_all(file)
