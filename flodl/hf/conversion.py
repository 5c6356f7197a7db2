"""Convert pickled weights into one safetensors file, without running code in the pickle.

Only torch's reader for weights is used. It knows tensors and a few plain types and refuses
everything else. Tensors are memory-mapped from the file if its format allows that.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flodl.errors import FlodlError
from flodl.hf.errors import CheckpointFormatError, first_of
from flodl.hf.hub import converted_file, locate
from flodl.hf.sentence_settings import COMPANIONS, companions_of
from flodl.hf.source import (
    CONFIG,
    INDEX,
    PICKLES,
    WEIGHTS,
    Access,
    Checkpoint,
    Directory,
    copy_files,
    new_directory,
    shard_names,
)
from flodl.hf.weights.keys import is_alias, other_names
from flodl.hf.weights.stored import TORCH_DTYPES, read_header, same_bytes
from flodl.hf.weights.writing import apart, write_file

_SINGLE, _INDEX = PICKLES
_NESTED = "state_dict"
_RESERVED = "__metadata__"  # reserved by the format


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of a conversion.

    Attributes:
        path: The safetensors file.
        written: False if the file existed already.
        tensors: Number of tensors in it.
        notes: What was left out, one line each.
    """

    path: Path
    written: bool
    tensors: int
    notes: tuple[str, ...] = ()


def convert(
    src: str | Path,
    *,
    out: Path | None = None,
    force: bool = False,
    access: Access | None = None,
) -> Converted:
    """Convert the pickled weights of a checkpoint, whole or in shards.

    Args:
        src: A repository, a directory, a ``.bin`` file, or the index of several such files.
        out: Folder that gets ``model.safetensors`` and copies of the configuration and the
            tokenizer's files, so that the model can be opened. By default the result for a
            repository goes below ``HF_HOME/flodl-converted``, where loading finds it. Other
            results go beside the pickle file.
        force: Convert again even if the result exists, and replace other files of ``out``.
        access: How to reach a repository.

    Raises:
        CheckpointFormatError: A file is broken, or holds more than plain data and tensors.
        FileNotFoundError: There is nothing to convert.
        FlodlError: ``out`` holds the configuration or tokenizer of another model, or safetensors
            in shards that the result would replace.
        HubError: The repository cannot be downloaded.
        OSError: The result cannot be written.
    """
    access = access or Access()
    path = Path(src)
    one_file = path.is_file()
    checkpoint: Checkpoint = Directory(path.parent) if one_file else locate(src, access)
    target = _target(checkpoint, out, access)
    if target.is_file() and not force:
        return Converted(target, written=False, tensors=len(read_header(target)))
    beside = {} if out is None else companions_of(checkpoint, (CONFIG, *COMPANIONS))
    if not force:
        _refuse_to_replace(target)
        _refuse_to_mix(beside, target.parent)
    notes: list[str] = []
    tensors: dict[str, Tensor] = {}
    for file in _files(checkpoint, path.name if one_file else None):
        _add(tensors, file, notes)
    if not tensors:
        raise CheckpointFormatError(f"{checkpoint.name}: its pickles hold no tensors")
    if _may_be_tied(checkpoint):
        notes += _without_aliases(tensors)
    with new_directory(target.parent):
        copy_files(beside, target.parent)
        # Write the weights last: if they are there, all other files are there too.
        write_file(apart(tensors), target)
    return Converted(target, written=True, tensors=len(tensors), notes=tuple(notes))


def _target(checkpoint: Checkpoint, out: Path | None, access: Access) -> Path:
    if out is not None:
        return out / WEIGHTS
    if checkpoint.is_local:
        return Path(checkpoint.name) / WEIGHTS
    return converted_file(checkpoint.name, checkpoint.commit, access.subfolder)


def _refuse_to_replace(target: Path) -> None:
    """Refuse to write a single file beside shards, because that would remove them."""
    shards = sorted(file.name for file in target.parent.glob("model-*-of-*.safetensors"))
    there = [INDEX] * (target.parent / INDEX).exists() + shards
    if there:
        raise FlodlError(
            f"{target.parent} holds safetensors already: {first_of(there)}; they "
            "load as they are. --force puts the converted pickle in their place, and --out "
            "somewhere else"
        )


def _refuse_to_mix(files: Mapping[str, Path], out: Path) -> None:
    """Refuse to write weights beside files of another model, or to replace those files."""
    for name, path in files.items():
        there = out / name
        if there.exists() and there.read_bytes() != path.read_bytes():
            raise FlodlError(
                f"{out} holds another {name}: --force replaces it, or name another --out"
            )


# Choosing the files


def _files(checkpoint: Checkpoint, name: str | None) -> tuple[Path, ...]:
    """The pickle files, downloaded if they are on the Hub.

    Args:
        checkpoint: Where they are.
        name: The file that was asked for, or an index; None for the files that every tool looks
            for.
    """
    if name is not None and not name.endswith(".json"):
        return (checkpoint.require(name),)
    single = checkpoint.file(_SINGLE) if name is None else None
    if single is not None:
        return (single,)
    index = checkpoint.file(name or _INDEX)
    if index is None:
        raise FileNotFoundError(
            f"{checkpoint.name} has nothing to convert: neither {_SINGLE} nor {_INDEX}"
        )
    return tuple(checkpoint.require(shard) for shard in shard_names(index, ""))


def _add(tensors: dict[str, Tensor], file: Path, notes: list[str]) -> None:
    """Add the tensors of one file, and note what else was in it."""
    entries = _entries(file)
    nested = entries.get(_NESTED)
    if isinstance(nested, Mapping):
        notes += _dropped(file, [key for key in entries if key != _NESTED])
        entries = nested
    others = []
    for key, value in entries.items():
        if not (isinstance(key, str) and isinstance(value, Tensor)):
            others.append(key)
            continue
        tensor = _storable(key, value, file)
        if key in tensors:
            raise CheckpointFormatError(f"{file}: {key} is in another shard too")
        tensors[key] = tensor
    notes += _dropped(file, others)


def _entries(file: Path) -> Mapping[Any, Any]:
    """Read a pickle file.

    Raises:
        CheckpointFormatError: It is broken, refused, or not a mapping.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle formats, for those who write the file
            # Files older than the zip format cannot be memory-mapped.
            mapped = zipfile.is_zipfile(file)
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        raise _refused(file, str(error)) from None
    except Exception as error:  # the reader can fail anywhere in a broken file
        raise CheckpointFormatError(
            f"{file} cannot be read as weights: {str(error).partition(chr(10))[0]}"
        ) from None
    if not isinstance(loaded, Mapping):
        raise CheckpointFormatError(
            f"{file} holds a {type(loaded).__name__} and not tensors by their names"
        )
    return loaded


def _refused(file: Path, message: str) -> CheckpointFormatError:
    found = re.search(r"GLOBAL ([\w.]+)", message)
    what = f"asks for {found[1]}" if found else "is broken, or asks for code"
    return CheckpointFormatError(
        f"{file} {what}, which weights do not need: it was refused, and nothing of it was run. "
        "Take the weights from somebody who has them as safetensors"
    )


def _dropped(file: Path, keys: list[Any]) -> list[str]:
    if not keys:
        return []
    shown = first_of([_shown(key) for key in keys])
    return [f"{file.name}: left out values that are not tensors: {shown}"]


def _shown(key: Any) -> str:
    return key if isinstance(key, str) and key.isprintable() else repr(key)


def _storable(key: str, tensor: Tensor, file: Path) -> Tensor:
    if key == _RESERVED or key.encode(errors="ignore").decode() != key:
        raise CheckpointFormatError(
            f"{file} calls a tensor {key!r}, which is not a valid name in a safetensors file"
        )
    dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    if not dense or tensor.dtype not in TORCH_DTYPES.values():
        raise CheckpointFormatError(
            f"{file}: {key} is a tensor of {tensor.dtype} ({tensor.layout}), which a safetensors "
            "file of weights cannot hold"
        )
    # A view can present a few bytes as any number of elements.
    size = math.prod(tensor.shape) * tensor.element_size()
    if size > max(tensor.untyped_storage().nbytes(), file.stat().st_size):
        raise CheckpointFormatError(
            f"{file}: {key} is {list(tensor.shape)}, {size} bytes, and the whole file has only "
            f"{file.stat().st_size}: it repeats a few values, so it does not hold weights"
        )
    return tensor.detach()


# Names for the same tensor


def _may_be_tied(checkpoint: Checkpoint) -> bool:
    """Whether an output layer equal to the word table may be left out and tied on loading."""
    text = checkpoint.text(CONFIG)
    try:
        fields = json.loads(text) if text else {}
    except ValueError:
        return True
    return not isinstance(fields, dict) or fields.get("tie_word_embeddings", True) is not False


def _without_aliases(tensors: dict[str, Tensor]) -> list[str]:
    """Remove second names of tensors that also have their own name; return the removed names."""
    removed = []
    for key in [key for key in tensors if is_alias(key)]:
        own = [name for name in tensors if name != key and key in other_names(name, tied=True)]
        if any(not is_alias(name) and same_bytes(tensors[name], tensors[key]) for name in own):
            del tensors[key]
            removed.append(key)
    return [f"left out {key}: it is another name of a tensor that is there" for key in removed]
