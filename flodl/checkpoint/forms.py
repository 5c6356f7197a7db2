"""Tensors that safetensors has no type for, as several dense tensors that it has one for.

- complex64 is stored as it is, complex128 and complex32 as pairs of real numbers.
- Other types of one or two bytes are stored as these bytes.
- Sparse tensors are stored as their indices and their values.

The metadata string ``forms`` is a JSON object: it says for each such tensor how its parts make it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from flodl.checkpoint.header import DTYPES
from flodl.checkpoint.names import filed
from flodl.checkpoint.sharded import has_memory, is_sharded, local_part

FORMS = "forms"
"""Key of the metadata string."""

_PAIRS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
_BYTES = {
    getattr(torch, name): kind
    for name, kind in {
        "float4_e2m1fn_x2": torch.uint8,
        "bits8": torch.uint8,
        "bits1x8": torch.uint8,
        "bits2x4": torch.uint8,
        "bits4x2": torch.uint8,
        "bits16": torch.uint16,
    }.items()
}
_VIEWED = {str(dtype).removeprefix("torch."): dtype for dtype in (*_PAIRS, *_BYTES)}
CASTABLE = {*DTYPES.values(), *_PAIRS}
"""Types that torch converts into each other."""
_COMPRESSED = {
    "csr": (torch.sparse_csr, Tensor.crow_indices, Tensor.col_indices),
    "csc": (torch.sparse_csc, Tensor.ccol_indices, Tensor.row_indices),
    "bsr": (torch.sparse_bsr, Tensor.crow_indices, Tensor.col_indices),
    "bsc": (torch.sparse_bsc, Tensor.ccol_indices, Tensor.row_indices),
}


@final
@dataclass(frozen=True, slots=True)
class Parted:
    """Named tensors, each of which safetensors has a type for.

    Attributes:
        tensors: By name, without further names of shared tensors.
        aliases: Further names of shared tensors, each with the first.
        forms: How tensors that were taken apart are put together, by name.
    """

    tensors: dict[str, Tensor]
    aliases: dict[str, str]
    forms: dict[str, Mapping[str, Any]]

    @classmethod
    def of(cls, named: Mapping[str, Tensor]) -> Parted:
        """Take tensors apart; the parts share their memory where they can.

        Raises:
            ValueError: A tensor cannot be stored; the message has its name.
        """
        for name, tensor in named.items():
            check_storable(name, tensor)
        stored, aliases = untie(named)
        parted = cls({}, aliases, {})
        for name, tensor in stored.items():
            parted._add(name, tensor.detach() if tensor.requires_grad else tensor, named)
        return parted

    def strings(self) -> dict[str, str]:
        """Return the metadata strings that say how the tensors are put together."""
        found = {
            "aliases": {filed(alias): filed(name) for alias, name in self.aliases.items()},
            FORMS: {
                filed(name): {**form, "parts": [filed(part) for part in form["parts"]]}
                for name, form in self.forms.items()
            },
        }
        return {
            key: json.dumps(value, sort_keys=True, separators=(",", ":"))
            for key, value in found.items()
            if value
        }

    def together(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all named tensors from (copies of) the parts."""
        made = dict(tensors)
        for name, form in self.forms.items():
            parts = [made.pop(part) for part in form["parts"]]
            made[name] = assembled(form, parts)
        return made | {alias: made[name] for alias, name in self.aliases.items()}

    def _add(self, name: str, tensor: Tensor, taken: Mapping[str, Tensor]) -> None:
        """Add a tensor, or its parts before the description of how they make it."""
        form, parts = _apart(tensor)
        if form is None:
            self.tensors[name] = tensor
            return
        names = []
        for key, part in parts.items():
            place = f"{name}.{key}"
            while place in taken or place in self.tensors:
                place += "'"
            names.append(place)
            self._add(place, part, taken)
        self.forms[name] = {**form, "parts": names}


def _apart(tensor: Tensor) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """Return the form of a tensor and its parts; no form for one that is stored as it is."""
    shape = list(tensor.shape)
    if tensor.layout is torch.sparse_coo:
        form = {"kind": "coo", "shape": shape, "coalesced": tensor.is_coalesced()}
        return form, {"indices": tensor._indices(), "values": tensor._values()}
    for kind, (layout, compressed, plain) in _COMPRESSED.items():
        if tensor.layout is layout:
            parts = {"compressed": compressed(tensor), "plain": plain(tensor)}
            # A copy, because torch makes no view of a view of a compressed tensor.
            values = tensor.values().clone() if tensor.is_complex() else tensor.values()
            return {"kind": kind, "shape": shape}, {**parts, "values": values}
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype in _PAIRS:
        dense = tensor.resolve_conj().resolve_neg()
        return {"kind": dtype, "shape": shape}, {"pairs": torch.view_as_real(dense)}
    if tensor.dtype in _BYTES:
        return {"kind": dtype, "shape": shape}, {"bytes": tensor.view(_BYTES[tensor.dtype])}
    return None, {}


def assembled(form: Mapping[str, Any], parts: list[Tensor]) -> Tensor:
    """Return the tensor that parts make, sharing their memory.

    Raises:
        ValueError: The parts do not fit.
        RuntimeError: The parts do not fit, reported by torch.
    """
    kind, shape = form["kind"], form["shape"]
    if kind == "coo":
        indices, values = parts
        return torch.sparse_coo_tensor(
            indices, values, shape, is_coalesced=form["coalesced"], check_invariants=True
        )
    if kind in _COMPRESSED:
        compressed, plain, values = parts
        layout = _COMPRESSED[kind][0]
        return torch.sparse_compressed_tensor(
            compressed, plain, values, shape, layout=layout, check_invariants=True
        )
    (part,), dtype = parts, _VIEWED[kind]
    if part.data_ptr() % dtype.itemsize:  # torch computes with pairs as if they were aligned
        part = part.clone()
    made = torch.view_as_complex(part) if dtype in _PAIRS else part.view(dtype)
    if list(made.shape) != shape:
        raise ValueError(f"the parts make a shape of {list(made.shape)} instead of {shape}")
    return made


def form_dtype(form: Mapping[str, Any], values: torch.dtype) -> torch.dtype:
    """Return the type of the tensor that parts make.

    Args:
        form: How they make it.
        values: The type of the last part.
    """
    found: torch.dtype = _VIEWED.get(form["kind"], values)
    return found


def form_layout(form: Mapping[str, Any]) -> torch.layout:
    """Return the layout of the tensor that parts make."""
    if form["kind"] == "coo":
        return torch.sparse_coo
    return _COMPRESSED[form["kind"]][0] if form["kind"] in _COMPRESSED else torch.strided


def check_form(name: str, form: Any, has: Callable[[str], bool]) -> None:
    """Check a form that was read from a file.

    Raises:
        ValueError: It does not describe a tensor of known parts.
    """
    counts = {"coo": 2, **dict.fromkeys(_COMPRESSED, 3), **dict.fromkeys(_VIEWED, 1)}
    match form:
        case {"kind": str(kind), "shape": list(shape), "parts": list(parts)}:
            sizes = all(type(size) is int and size >= 0 for size in shape)
            known = all(isinstance(part, str) and has(part) for part in parts)
            flag = kind != "coo" or isinstance(form.get("coalesced"), bool)
            if sizes and known and flag and counts.get(kind) == len(parts):
                return
    raise ValueError(f"the form of tensor {name!r} is damaged")


def check_storable(name: str, tensor: Tensor) -> None:
    """Check that a tensor can be saved; reading freed memory would end the process.

    Raises:
        ValueError: It cannot; the message has its name.
    """
    if problem := _problem(tensor):
        raise ValueError(f"{name} {problem}")


def _problem(tensor: Tensor) -> str:
    """Return why a tensor cannot be saved; empty if it can."""
    if is_lazy(tensor):
        return "has no shape yet, because its module is lazy: call the model once before"
    local = local_part(tensor)
    if type(local).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return (
            f"is a {type(local).__name__}, which a checkpoint cannot hold: keep its values in "
            "plain tensors, or register the object that makes it with .state(name, object)"
        )
    if local.is_nested:
        return "is a nested tensor, which a checkpoint cannot hold: pad it with to_padded_tensor()"
    if local.is_quantized:
        return (
            f"is quantized ({local.dtype}), which a checkpoint cannot hold: keep int_repr(), scale "
            "and zero point in buffers of their own"
        )
    if local.layout is torch._mkldnn:  # type: ignore[attr-defined]
        return "is laid out for MKL-DNN, which a checkpoint cannot hold: call to_dense()"
    if local.is_meta:
        return (
            "is on the meta device and has no values: call to_empty(device=…) and load or "
            "initialise the model first"
        )
    if local.dtype not in DTYPES.values() and local.dtype not in (*_PAIRS, *_BYTES):
        return f"is {local.dtype}, and torch cannot copy such a tensor: keep it as torch.uint8"
    if is_sharded(tensor) and (local.dtype not in DTYPES.values() or local.is_sparse):
        return f"is sharded and {local.dtype}, which only whole tensors can be: convert it"
    if not has_memory(tensor):
        return (
            "has no memory: its storage was freed, as FSDP does with parameters it has gathered. "
            "Take the parameters from the model again, after reshard()"
        )
    return ""


def untie(named: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Separate the tensors to store from the further names of shared ones."""
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_names: dict[object, str] = {}
    for name, tensor in named.items():
        first = first_names.setdefault(memory_of(tensor), name)
        if first == name:
            stored[name] = tensor
        else:
            aliases[name] = first
    return stored, aliases


def memory_of(tensor: Tensor) -> object:
    """A key that is equal for tensors with the same numbers in the same memory.

    Comparing objects would miss ``state_dict()``, whose values are detached.
    """
    local = local_part(tensor)  # a DTensor itself has no address
    if local.layout is not torch.strided or local.numel() == 0 or local.is_meta:
        return id(tensor)
    address = local.data_ptr()
    if not address:  # its memory was freed
        return id(tensor)
    flags = (local.is_conj(), local.is_neg())
    layout = (local.dtype, tensor.shape, local.stride())
    return (local.device, address, layout, flags)
