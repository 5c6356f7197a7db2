"""Ready-made routers, selectors, halting conditions and modules that read references."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from flodl.graph.modules import NamedInputModule


class _ProjectedRouter(NamedInputModule):
    """Adds the references to the stream and projects the sum to one logit per choice."""

    def __init__(self, in_features: int, choices: int) -> None:
        super().__init__()
        _require_size("in_features", in_features)
        _require_size("choices", choices)
        self.in_features = in_features
        self.choices = choices
        self.projection = nn.Linear(in_features, choices)

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        """Route by the stream and the references.

        Args:
            x: ``[..., in_features]``.
            refs: Tag -> value of the shape of ``x``; all are added to it.
        """
        return self._decide(self.projection(_sum_with(x, refs)))

    @abstractmethod
    def _decide(self, logits: Tensor) -> Tensor:
        """Turn logits ``[..., choices]`` into the value for the gate or switch."""

    def extra_repr(self) -> str:
        """Return the sizes of the projection."""
        return f"in_features={self.in_features}, choices={self.choices}"


class SoftmaxRouter(_ProjectedRouter):
    """Gate weights that sum to one: a linear layer, then a softmax over the last dimension.

    Args:
        in_features: Width D of the stream ``[..., D]``.
        choices: Number N of experts; the weights are ``[..., N]``.

    Raises:
        ValueError: A size is not a positive integer.
    """

    def _decide(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=-1)


class SigmoidRouter(_ProjectedRouter):
    """Independent gate weights between 0 and 1: a linear layer, then a sigmoid.

    Args:
        in_features: Width D of the stream ``[..., D]``.
        choices: Number N of experts; the weights are ``[..., N]``.

    Raises:
        ValueError: A size is not a positive integer.
    """

    def _decide(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()


class ArgmaxSelector(_ProjectedRouter):
    """Selects a switch's branch for each row: the largest logit of a linear layer.

    Logits of dimensions between the first and the last are averaged for each row.
    Among equal logits the lowest index wins. The choice has no gradient.

    Args:
        in_features: Width D of the stream ``[rows, ..., D]``.
        choices: Number of branches.

    Raises:
        ValueError: A size is not a positive integer.
    """

    def _decide(self, logits: Tensor) -> Tensor:
        return (logits.flatten(1, -2).mean(dim=1) if logits.dim() > 2 else logits).argmax(dim=-1)


class BatchArgmaxSelector(_ProjectedRouter):
    """Selects the branch of a ``batch_switch``, one for all rows: the largest mean logit.

    The logits of a linear layer are averaged over all leading dimensions first.
    Among equal logits the lowest index wins. The choice has no gradient.

    Args:
        in_features: Width D of the stream ``[..., D]``.
        choices: Number of branches.

    Raises:
        ValueError: A size is not a positive integer.
    """

    def _decide(self, logits: Tensor) -> Tensor:
        return logits.reshape(-1, self.choices).mean(dim=0).argmax()


class FixedSelector(nn.Module):
    """Always selects the same branch of a switch, for each row.

    Args:
        index: The branch, counted from 0.

    Raises:
        ValueError: The index is negative or not an integer.
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        if not _is_integer(index) or index < 0:
            raise ValueError(f"index must be an integer of at least 0, got {index!r}")
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        """Return the index once for each row, on the device of the stream."""
        return torch.full(x.shape[:1], self.index, dtype=torch.int64, device=x.device)

    def extra_repr(self) -> str:
        """Return the index."""
        return f"index={self.index}"


class ThresholdHalt(nn.Module):
    """Halts each row of a loop when one of its elements is above a threshold.

    It returns ``max(row) - threshold`` for each row; a row is done when the value is > 0.

    Args:
        threshold: In the unit of the state's elements. The largest element counts, not a norm.

    Raises:
        ValueError: The threshold is not a number.
    """

    def __init__(self, threshold: float) -> None:
        super().__init__()
        if not isinstance(threshold, int | float) or math.isnan(threshold):
            raise ValueError(f"threshold must be a number, got {threshold!r}")
        self.threshold = float(threshold)

    def forward(self, x: Tensor) -> Tensor:
        """Return how far the largest element of each row is above the threshold: ``[rows]``."""
        return (x.flatten(1).amax(dim=1) if x.dim() > 1 else x) - self.threshold

    def extra_repr(self) -> str:
        """Return the threshold."""
        return f"threshold={self.threshold:g}"


class LearnedHalt(nn.Module):
    """Halts each row of a loop by a linear layer on its state.

    The layer computes one value per row, or several. A row is done when all of its values are > 0.

    The number of iterations has no gradient. The layer learns only from a loss on its outputs,
    which the loop keeps as trace ``"<node id>/halt"``.

    Args:
        dim: Width D of the state ``[rows, ..., D]``.

    Raises:
        ValueError: The width is not a positive integer.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        _require_size("dim", dim)
        self.dim = dim
        self.projection = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Project ``[..., D]`` to ``[..., 1]``."""
        return self.projection(x)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the width."""
        return f"dim={self.dim}"


class StateAdd(NamedInputModule):
    """Adds the references to the stream; a reference to its own tag makes it a memory.

    Example:
        >>> memory = FlowBuilder().through(StateAdd()).using("memory").tag("memory")
    """

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        """Return ``x`` plus all references, which must have its shape or broadcast to it."""
        return _sum_with(x, refs)


class Reshape(nn.Module):
    """Changes the shape of the stream; the elements and their order stay.

    Args:
        shape: All dimensions, including the batch. One may be -1; it is computed from the others.

    Raises:
        ValueError: There are no dimensions, one is neither positive nor -1, or two are -1.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        if not shape:
            raise ValueError("shape must have at least one dimension: Reshape(-1, 8)")
        if not all(_is_integer(size) and (size > 0 or size == -1) for size in shape):
            raise ValueError(f"every dimension must be a positive integer or -1, got {shape}")
        if shape.count(-1) > 1:
            raise ValueError(f"only one dimension can follow from the others (-1), got {shape}")
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Return the elements of ``x`` in the new shape, as a view if strides allow it."""
        return x.reshape(self.shape)

    def extra_repr(self) -> str:
        """Return the shape."""
        return f"shape={self.shape}"


def _sum_with(x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
    for value in refs.values():
        x = x + value
    return x


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_size(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
