"""Qualified names, ``<module of the graph>/<path below it>``, and the names in a file.

A file has the names of ``module.state_dict()``, so that every reader of safetensors can use it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def qualify(name: str) -> str:
    """Turn a state-dict key into a qualified name: its first dot becomes a slash.

    ``encoder.weight`` becomes ``encoder/weight``. A name with a slash, and a name without a dot,
    are returned unchanged.
    """
    return name if "/" in name else name.replace(".", "/", 1)


def filed(name: str) -> str:
    """Turn a qualified name into the name in a file, which :func:`qualify` turns back.

    ``encoder/weight`` becomes ``encoder.weight``.
    """
    dotted = name.replace("/", ".", 1)
    return dotted if qualify(dotted) == name else name


def persistent_buffers(module: nn.Module, *, tied: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of ``module.state_dict()`` with their dotted names.

    Args:
        module: The module to walk.
        tied: Also yield further names of a shared buffer.

    Yields:
        ``(name, buffer)`` in registration order.
    """
    excluded = {
        f"{path}.{name}" if path else name
        for path, owner in module.named_modules(remove_duplicate=False)
        for name in owner._non_persistent_buffers_set
    }
    for name, buffer in module.named_buffers(remove_duplicate=not tied):
        if name not in excluded:
            yield name, buffer
