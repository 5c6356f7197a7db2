"""Encode nested Python values as JSON data and named tensors, so that a container can hold them.

A tensor becomes ``{"tensor": name}``, a tuple ``{"tuple": […]}``, a mapping
``{"dict": [[key, value], …]}``, a float that JSON lacks ``{"float": "inf"}``, a complex number
``{"complex": [real, imaginary]}``. Only these, numbers, strings, booleans, None and lists can be
kept. A number of NumPy comes back as one of Python. No pickle is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor


def encode(value: object, path: str, tensors: dict[str, Tensor]) -> object:
    """Return a value as JSON data; its tensors are collected, each under its path in the value.

    Raises:
        ValueError: The value contains another kind of object.
    """
    if isinstance(value, Tensor):
        # Keys may contain slashes, and 1 differs from "1": different paths may be spelt alike.
        while path in tensors and tensors[path] is not value:
            path += "'"
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, complex):
        return {"complex": [encode(part, path, tensors) for part in (value.real, value.imag)]}
    if isinstance(value, list | tuple):
        items = [encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, Mapping):
        pairs = [
            [_encode_key(key, path), encode(item, f"{path}/{key}", tensors)]
            for key, item in value.items()
        ]
        return {"dict": pairs}
    raise ValueError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot keep: "
        "it takes tensors, numbers, strings, and lists, tuples and mappings of them"
    )


def _encode_key(key: object, path: str) -> object:
    tensors: dict[str, Tensor] = {}
    with suppress(ValueError):
        form = encode(key, path, tensors)
        if not tensors:
            return form
    raise ValueError(
        f"{path} has a key that is a {type(key).__name__}: a checkpoint keeps numbers, strings and "
        "tuples of them as keys"
    )


def decode(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """Return the value that was given to :func:`encode`.

    Args:
        value: JSON data.
        tensor: Finds a tensor by the name it was collected under.

    Raises:
        ValueError: The data do not come from :func:`encode`.
    """
    if isinstance(value, list):
        return [decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"tensor": str(name), **rest} if not rest:
            return tensor(name)
        case {"tuple": list(items), **rest} if not rest:
            return tuple(decode(item, tensor) for item in items)
        case {"float": "inf" | "-inf" | "nan" as text, **rest} if not rest:
            return float(text)
        case {"complex": [real, imaginary], **rest} if not rest:
            return complex(decode(real, tensor), decode(imaginary, tensor))
        case {"dict": list(pairs), **rest} if not rest:
            return dict(_decode_pair(pair, tensor) for pair in pairs)
    raise ValueError(f"{str(value)[:80]} is not a value")


def _decode_pair(pair: Any, tensor: Callable[[str], Tensor]) -> tuple[Any, Any]:
    match pair:
        case [key, value]:
            decoded = decode(key, tensor)
            with suppress(TypeError):  # a list, which no mapping has as a key
                hash(decoded)
                return decoded, decode(value, tensor)
    raise ValueError(f"{str(pair)[:80]} is not a key with a value")
