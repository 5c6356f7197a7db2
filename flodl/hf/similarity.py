"""Compare vectors of texts: cosine, dot product, and negative distances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

Similarity: TypeAlias = Literal["cosine", "dot", "euclidean", "manhattan"]
"""How similar two vectors are; larger is more similar, so distances are negative."""

SIMILARITIES: Final[tuple[Similarity, ...]] = get_args(Similarity)

Compare = Callable[[Tensor, Tensor], Tensor]


def similarity(kind: Similarity, first: Any, second: Any) -> Tensor:
    """Compare every vector of one set with every vector of another.

    Args:
        kind: The function.
        first: ``[N, H]`` or ``[H]``: a tensor, an array of numpy, or a list of either.
        second: ``[M, H]`` or ``[H]``.

    Returns:
        ``[N, M]``.

    Raises:
        ValueError: There is no such function.
    """
    return _ALL[checked(kind)](_as_rows(first), _as_rows(second))


def checked(kind: Any) -> Similarity:
    """The name of a function.

    Raises:
        ValueError: There is no such function.
    """
    if kind not in SIMILARITIES:
        raise ValueError(f"similarity {kind!r} is not one of {', '.join(SIMILARITIES)}")
    found: Similarity = kind
    return found


def _as_rows(vectors: Any) -> Tensor:
    if isinstance(vectors, Sequence) and vectors and not isinstance(vectors[0], float | int):
        vectors = torch.stack([torch.as_tensor(one) for one in vectors])
    rows = torch.as_tensor(vectors)
    return rows[None] if rows.dim() == 1 else rows


def _scaled(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=1)


_ALL: Mapping[Similarity, Compare] = {
    "cosine": lambda first, second: _scaled(first) @ _scaled(second).T,
    "dot": lambda first, second: first @ second.T,
    "euclidean": lambda first, second: -torch.cdist(first, second, p=2.0),
    "manhattan": lambda first, second: -torch.cdist(first, second, p=1.0),
}
