"""Initial values of weights, as new float32 tensors.

Layers start with torch's own defaults. Use these functions for your own weights, or to start a
layer differently::

    layer.weight = nn.Parameter(xavier_normal((64, 128), fan_in=128, fan_out=64))

``fan_in`` is the number of inputs that reach one output; ``fan_out`` is the number of outputs that
one input reaches. Every function also takes:

- ``device``, by position or keyword: create the tensor there (default: the generator's device, else
  torch's default).
- ``generator``, a keyword: draw from this generator instead of torch's global one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn


def kaiming_uniform(
    shape: Sequence[int],
    fan_in: int,
    a: float = 0.0,
    device: torch.device | str | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Uniform within ±√3·√(2/(1+a²))/√fan_in (He et al., 2015), for ReLU layers.

    Args:
        shape: Shape of the tensor.
        fan_in: Inputs per output, at least 1.
        a: Slope of the leaky ReLU below zero; √5 gives ±1/√fan_in, torch's default for layers.
        device: Where the tensor is made.
        generator: Source of the numbers.

    Raises:
        ValueError: ``fan_in`` is below 1.
    """
    bound = math.sqrt(3) * _kaiming_std(fan_in, a)
    return uniform(shape, -bound, bound, generator=generator, device=device)


def kaiming_normal(
    shape: Sequence[int],
    fan_in: int,
    a: float = 0.0,
    device: torch.device | str | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Normal around 0 with standard deviation √(2/(1+a²))/√fan_in (He et al., 2015).

    Args:
        shape: Shape of the tensor.
        fan_in: Inputs per output, at least 1.
        a: Slope of the leaky ReLU below zero.
        device: Where the tensor is made.
        generator: Source of the numbers.

    Raises:
        ValueError: ``fan_in`` is below 1.
    """
    return normal(shape, 0.0, _kaiming_std(fan_in, a), generator=generator, device=device)


def xavier_uniform(
    shape: Sequence[int],
    fan_in: int,
    fan_out: int,
    device: torch.device | str | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Uniform within ±√(6/(fan_in+fan_out)) (Glorot and Bengio, 2010), for tanh and sigmoid.

    Args:
        shape: Shape of the tensor.
        fan_in: Inputs per output, at least 1.
        fan_out: Outputs per input, at least 1.
        device: Where the tensor is made.
        generator: Source of the numbers.

    Raises:
        ValueError: ``fan_in`` or ``fan_out`` is below 1.
    """
    bound = math.sqrt(3) * _xavier_std(fan_in, fan_out)
    return uniform(shape, -bound, bound, generator=generator, device=device)


def xavier_normal(
    shape: Sequence[int],
    fan_in: int,
    fan_out: int,
    device: torch.device | str | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Normal around 0 with standard deviation √(2/(fan_in+fan_out)) (Glorot and Bengio, 2010).

    Args:
        shape: Shape of the tensor.
        fan_in: Inputs per output, at least 1.
        fan_out: Outputs per input, at least 1.
        device: Where the tensor is made.
        generator: Source of the numbers.

    Raises:
        ValueError: ``fan_in`` or ``fan_out`` is below 1.
    """
    return normal(shape, 0.0, _xavier_std(fan_in, fan_out), generator=generator, device=device)


def uniform(
    shape: Sequence[int],
    low: float,
    high: float,
    device: torch.device | str | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Uniform within [low, high).

    Raises:
        ValueError: The bounds are not finite, or ``high`` is below ``low``.
    """
    if not -math.inf < low <= high < math.inf:
        raise ValueError(f"low and high must be finite and in this order, got {low!r} and {high!r}")
    return _empty(shape, device, generator).uniform_(low, high, generator=generator)


def normal(
    shape: Sequence[int],
    mean: float,
    std: float,
    device: torch.device | str | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Normal around ``mean`` with standard deviation ``std``.

    Raises:
        ValueError: ``mean`` is not finite, or ``std`` is negative or not finite.
    """
    _check_normal(mean, std)
    return _empty(shape, device, generator).normal_(mean, std, generator=generator)


def uniform_bias(
    fan_in: int,
    shape: Sequence[int],
    device: torch.device | str | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Uniform within ±1/√fan_in, torch's default for the biases of linear layers.

    Raises:
        ValueError: ``fan_in`` is below 1.
    """
    _check_fan("fan_in", fan_in)
    bound = 1 / math.sqrt(fan_in)
    return uniform(shape, -bound, bound, generator=generator, device=device)


def orthogonal(
    shape: Sequence[int],
    gain: float = 1.0,
    device: torch.device | str | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """A matrix with orthonormal rows, or columns if there are fewer columns (Saxe et al., 2013).

    Args:
        shape: Rows and columns.
        gain: Factor on the whole matrix.
        device: Where the tensor is made.
        generator: Source of the numbers.

    Raises:
        ValueError: ``shape`` does not have two dimensions.
    """
    if len(shape) != 2:
        raise ValueError(
            f"orthogonal makes matrices: shape must have two dimensions, got {list(shape)}; "
            "reshape a matrix for more"
        )
    return nn.init.orthogonal_(_empty(shape, device, generator), gain, generator=generator)


def trunc_normal(
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    device: torch.device | str | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Normal, restricted to between ``a`` and ``b`` standard deviations from the mean.

    The distribution is cut, not clamped: values do not pile up at the bounds, so they spread less
    than ``std``. Bounds are in standard deviations; those of torch's ``trunc_normal_`` are values.

    Args:
        shape: Shape of the tensor.
        mean: Mean of the normal distribution before the cut.
        std: Standard deviation before the cut.
        a: Lower bound in standard deviations from the mean.
        b: Upper bound in standard deviations from the mean.
        device: Where the tensor is made.
        generator: Source of the numbers.

    Raises:
        ValueError: ``a`` is not below ``b``, the probability of the interval rounds to zero in
            double precision, or ``mean`` or ``std`` are impossible.
    """
    _check_normal(mean, std)
    if not -math.inf < a < b < math.inf:
        raise ValueError(f"a and b must be finite and in this order, got {a!r} and {b!r}")
    # The quantile function of a uniform number is exact and needs a fixed number of draws. Far in
    # the right tail, probabilities are too close to 1 to differ, so the left tail is used.
    mirrored = a > 0
    lower, upper = (-b, -a) if mirrored else (a, b)
    low, high = (0.5 * math.erfc(-bound / math.sqrt(2)) for bound in (lower, upper))
    if not low < high:
        raise ValueError(f"no probability lies between {a!r} and {b!r} standard deviations")
    target = _empty(shape, device, generator)
    share = torch.empty_like(target, dtype=torch.float64).uniform_(low, high, generator=generator)
    deviations = torch.special.ndtri(share).clamp_(lower, upper)  # rounding only
    return target.copy_(deviations.mul_(-std if mirrored else std).add_(mean))


def _kaiming_std(fan_in: int, a: float) -> float:
    _check_fan("fan_in", fan_in)
    return math.sqrt(2 / (1 + a**2)) / math.sqrt(fan_in)


def _xavier_std(fan_in: int, fan_out: int) -> float:
    _check_fan("fan_in", fan_in)
    _check_fan("fan_out", fan_out)
    return math.sqrt(2 / (fan_in + fan_out))


def _check_fan(name: str, fan: int) -> None:
    if not fan >= 1:
        raise ValueError(f"{name} must be at least 1, got {fan!r}")


def _check_normal(mean: float, std: float) -> None:
    if not (math.isfinite(mean) and 0 <= std < math.inf):
        raise ValueError(
            f"mean must be finite and std finite and at least 0, got {mean!r} and {std!r}"
        )


def _empty(
    shape: Sequence[int], device: torch.device | str | None, generator: Generator | None
) -> Tensor:
    if device is None and generator is not None:
        device = generator.device
    return torch.empty(tuple(shape), dtype=torch.float32, device=device)
