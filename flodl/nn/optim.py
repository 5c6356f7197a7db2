"""Torch's optimizers with learning rates that are easy to read and to set.

Each class inherits from torch's: same signature, same results, same ``state_dict``. Schedulers,
hooks, pickling and ``torch.compile`` work as before. New are the methods of :class:`RateControl`
and parameter groups built step by step. They do not import torch's compiler::

    optimizer = AdamW.with_groups(weight_decay=0.05).group(body, 1e-5).group(head, 1e-3).build()
    optimizer.set_group_lr(1, 5e-4)

The functions :func:`set_lr`, :func:`set_group_lr` and :func:`scale_lr` do the same for any torch
optimizer.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar, cast, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from flodl.nn.without_compiler import without_compiler

O = TypeVar("O", bound=Optimizer)  # noqa: E741 - it stands for an optimizer
Group = dict[str, Any]

# Settings that choose one of torch's implementations of the same update rule.
_IMPLEMENTATIONS = ("fused", "foreach", "differentiable")


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups.

    A rate stored as a tensor, as compiled and captured steps need it, stays the same tensor; only
    its value changes.

    Raises:
        ValueError: ``lr`` is negative or not finite.
    """
    rate = _checked("lr", lr)
    for group in optimizer.param_groups:
        _assign(group, rate)


def set_group_lr(optimizer: Optimizer, index: int, lr: float) -> None:
    """Set the learning rate of one parameter group.

    Args:
        optimizer: Any torch optimizer.
        index: Position of the group, counted from 0.
        lr: The new rate.

    Raises:
        IndexError: There is no such group.
        ValueError: ``lr`` is negative or not finite.
    """
    groups = optimizer.param_groups
    if not 0 <= index < len(groups):
        raise IndexError(
            f"there is no parameter group {index}: the optimizer has {len(groups)}, counted from 0"
        )
    _assign(groups[index], _checked("lr", lr))


def scale_lr(optimizer: Optimizer, factor: float) -> None:
    """Multiply the learning rates of all parameter groups; their ratios stay.

    Raises:
        ValueError: ``factor`` is negative or not finite.
    """
    scale = _checked("factor", factor)
    for group in optimizer.param_groups:
        rate = group["lr"]
        if isinstance(rate, Tensor):
            rate.mul_(scale)
        else:
            group["lr"] = rate * scale


def _assign(group: Group, rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _checked(name: str, number: float) -> float:
    value = float(number)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {number!r}")
    return value


class RateControl(Optimizer):
    """The methods that every optimizer of this module adds to torch's."""

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group.

        Reading a rate that is a tensor on a GPU waits for the GPU.
        """
        return float(self.param_groups[0]["lr"])

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of all groups, see :func:`set_lr`."""
        set_lr(self, lr)

    def set_group_lr(self, index: int, lr: float) -> None:
        """Set the learning rate of one group, see :func:`set_group_lr`."""
        set_group_lr(self, index, lr)

    def scale_lr(self, factor: float) -> None:
        """Multiply all learning rates, see :func:`scale_lr`."""
        scale_lr(self, factor)

    @classmethod
    def with_groups(cls, **defaults: Any) -> GroupBuilder[Self]:
        """Start an optimizer with several parameter groups.

        Args:
            **defaults: Arguments of the constructor for all groups, without the parameters.

        Raises:
            TypeError: The constructor does not have one of these arguments.
        """
        return GroupBuilder(cls, defaults)


@final
class GroupBuilder(Generic[O]):
    """Collects parameter groups; ``with_groups`` of an optimizer class makes it."""

    def __init__(self, optimizer: type[O], defaults: Group) -> None:
        self._optimizer = optimizer
        self._defaults = defaults
        self._groups: list[Group] = []
        self._check_names(defaults)

    def group(
        self, params: Iterable[Tensor], lr: float | Tensor | None = None, **settings: Any
    ) -> Self:
        """Add a parameter group.

        Args:
            params: Its parameters; none may be in another group.
            lr: Its learning rate; default: the learning rate of all groups.
            **settings: Other settings of this group, such as ``weight_decay=0``.

        Raises:
            ValueError: The group is empty.
            TypeError: The constructor does not have one of these settings.
        """
        self._check_names(settings)
        members = list(params)
        if not members:
            raise ValueError(
                f"parameter group {len(self._groups)} is empty; an iterator such as "
                "model.parameters() can be read only once"
            )
        rate = {} if lr is None else {"lr": lr}
        self._groups.append({"params": members, **rate, **settings})
        return self

    def build(self) -> O:
        """Make the optimizer.

        Raises:
            ValueError: No group was added, a parameter is in two groups, or torch refuses a value.
        """
        if not self._groups:
            raise ValueError(
                f"{self._optimizer.__name__} has no parameter groups: call .group(params, lr)"
            )
        make = cast("Callable[..., O]", self._optimizer)
        return make(self._groups, **self._defaults)

    def _check_names(self, settings: Group) -> None:
        known = list(inspect.signature(self._optimizer).parameters)[1:]
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise TypeError(
                f"{self._optimizer.__name__} takes no {', '.join(unknown)}; "
                f"it takes {', '.join(known)}"
            )


def _preparing(*steps: Callable[[Group], None]) -> Callable[[type[O]], type[O]]:
    """Before the constructor runs, let steps check or complete its arguments, by name."""

    def wrapped(optimizer: type[O]) -> type[O]:
        construct: Callable[..., None] = optimizer.__init__
        signature = inspect.signature(construct)

        @functools.wraps(construct)
        def prepared(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            for step in steps:
                step(bound.arguments)
            construct(*bound.args, **bound.kwargs)

        setattr(optimizer, "__init__", prepared)  # noqa: B010 - mypy knows it as torch's
        return optimizer

    return wrapped


def _pair_of_betas(given: Group) -> None:
    """Check ``betas`` first: a weight decay given as third argument would be taken for it."""
    betas = given.get("betas", (0.0, 0.0))
    if not (isinstance(betas, tuple | list) and len(betas) == 2):
        raise ValueError(
            f"{type(given['self']).__name__}: betas must be a pair of numbers, got {betas!r}; they "
            "are the third argument by position, so name those after them: weight_decay=…"
        )


def _fused_on_cuda(given: Group) -> None:
    """Choose ``fused=True`` if torch supports it and the caller has not decided."""
    decided = any(given.get(name) is not None for name in _IMPLEMENTATIONS)
    if not decided and not isinstance(given["params"], Tensor):
        given["params"] = [_with_list(entry) for entry in given["params"]]
        if _can_be_fused(given["params"]):
            given["fused"] = True


def _with_list(entry: Any) -> Any:
    """Make a group's parameters readable twice; a set stays, so that torch refuses it."""
    if isinstance(entry, dict) and isinstance(entry.get("params"), Iterator):
        return {**entry, "params": list(entry["params"])}
    return entry


def _can_be_fused(params: list[Any]) -> bool:
    groups = [entry for entry in params if isinstance(entry, dict)]
    tensors = list(_tensors(params))
    return (
        bool(tensors)
        and all(tensor.is_cuda and tensor.is_floating_point() for tensor in tensors)
        and not any(name in group for group in groups for name in _IMPLEMENTATIONS)
    )


def _tensors(params: Iterable[Any]) -> Iterator[Tensor]:
    """Yield every tensor of parameters, of named parameters, or of groups of either."""
    for entry in params:
        if isinstance(entry, dict):
            members = entry["params"]
            yield from _tensors([members] if isinstance(members, Tensor) else members)
        else:
            yield entry[1] if isinstance(entry, tuple) else entry


@without_compiler
class SGD(RateControl, torch.optim.SGD):
    """:class:`torch.optim.SGD` with :class:`RateControl`."""


@_preparing(_pair_of_betas, _fused_on_cuda)
@without_compiler
class Adam(RateControl, torch.optim.Adam):
    """:class:`torch.optim.Adam` with :class:`RateControl`.

    If all parameters are floating-point tensors on CUDA, ``fused=True`` is chosen. Passing
    ``fused``, ``foreach`` or ``differentiable`` overrides this choice.

    Raises:
        ValueError: ``betas`` is not a pair, for example a weight decay given by position.
    """


@_preparing(_pair_of_betas, _fused_on_cuda)
@without_compiler
class AdamW(RateControl, torch.optim.AdamW):
    """:class:`torch.optim.AdamW` with :class:`RateControl`; ``fused`` and ``betas`` as in Adam."""


@without_compiler
class RMSprop(RateControl, torch.optim.RMSprop):
    """:class:`torch.optim.RMSprop` with :class:`RateControl`."""


@without_compiler
class Adagrad(RateControl, torch.optim.Adagrad):
    """:class:`torch.optim.Adagrad` with :class:`RateControl`."""


@_preparing(_pair_of_betas)
@without_compiler
class RAdam(RateControl, torch.optim.RAdam):
    """:class:`torch.optim.RAdam` with :class:`RateControl`; ``betas`` as in Adam."""


@_preparing(_pair_of_betas)
@without_compiler
class NAdam(RateControl, torch.optim.NAdam):
    """:class:`torch.optim.NAdam`, momentum decay included; ``betas`` as in Adam."""
