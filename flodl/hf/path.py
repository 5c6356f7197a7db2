"""Names of parameters: dotted paths as in the checkpoints of the Hub."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HfPath:
    """A place in a model, such as ``bert.encoder``, extended one segment at a time.

    ``str()`` gives the dotted name.

    Args:
        root: The first segment, not empty and without ``.`` or ``/``.

    Raises:
        ValueError: ``root`` is not such a segment.
    """

    root: str
    _below: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for segment in (self.root, *self._below):
            _check_segment(segment)

    def __str__(self) -> str:
        return ".".join((self.root, *self._below))

    def sub(self, segment: str | int) -> HfPath:
        """The place one segment below.

        Args:
            segment: One name, or the number of a layer.

        Raises:
            ValueError: The segment is empty or contains ``.`` or ``/``.
        """
        return HfPath(self.root, (*self._below, str(segment)))

    def leaf(self, name: str) -> str:
        """The key of a parameter of this module: ``bert.pooler.dense.weight``.

        Raises:
            ValueError: As for :meth:`sub`.
        """
        return str(self.sub(name))

    try_sub = sub
    try_leaf = leaf

    @classmethod
    def try_new(cls, root: str) -> HfPath:
        """The same as ``HfPath(root)``.

        Raises:
            ValueError: ``root`` is not a valid segment.
        """
        return cls(root)


def _check_segment(segment: str) -> None:
    if not segment or "." in segment or "/" in segment:
        raise ValueError(
            f"{segment!r} is not one segment of a path: give one name, without . or /, at a time"
        )


def prefix_params(prefix: str, params: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """Prefix the names of parameters with the place of their module.

    Args:
        prefix: Dotted place of the module; empty leaves the names as they are.
        params: Names inside the module, each with its parameter.

    Returns:
        The same parameters, in the same order, as ``prefix.name``.
    """
    return [(f"{prefix}.{name}" if prefix else name, value) for name, value in params]


def hf_key_from_flodl_key(key: str) -> str:
    """The dotted key of a qualified name: the last ``/`` becomes a dot.

    ``bert.encoder/weight`` becomes ``bert.encoder.weight``; a name without ``/`` stays.
    """
    head, slash, tail = key.rpartition("/")
    return f"{head}.{tail}" if slash else key
