"""Rows of a batch that part: each gets its own module, or its own number of iterations.

A row is a slice of the first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, cast

import torch
from torch import Tensor

from flodl.errors import StateError

Run = Callable[[int, Tensor], Tensor]
"""Runs the module with this index on some rows."""


def counted(choice: Tensor, count: int, refuse: Callable[[list[int]], NoReturn]) -> list[int]:
    """Return how many rows chose each of ``count`` modules; waits for the device.

    Args:
        choice: int64 ``[rows]``.
        count: Number of modules.
        refuse: Raises an error about the choices, where one is none of the modules.
    """
    try:
        sizes = cast("list[int]", choice.bincount(minlength=count).tolist())
    except RuntimeError:  # one is negative, or too large to be counted
        sizes = []
    return sizes if len(sizes) == count else refuse(choice.tolist())


def dispatch(
    run: Run, choice: Tensor, sizes: Sequence[int], x: Tensor, node_id: str, top_k: int = 1
) -> Tensor:
    """Run every chosen module once, on the rows that chose it, and put the results in place.

    Modules that no row chose do not run. An empty batch runs the first, for the shape of its
    output.

    Args:
        run: Runs one of the modules.
        choice: int64 ``[rows * top_k]``: the choices of each row, one after the other.
        sizes: How often each module is chosen.
        x: ``[rows, ...]``.
        node_id: The node, for messages.
        top_k: Choices of each row.

    Returns:
        ``[rows * top_k, ...]``, in the order of the choices.

    Raises:
        ValueError: Modules return different shapes or other rows.
    """
    used = [index for index, size in enumerate(sizes) if size] or [0]
    if len(used) == 1:
        return checked_rows(run(used[0], x), len(x), None, node_id, used[0])
    order = choice.argsort(stable=True)
    rows, sizes = (order if top_k == 1 else order // top_k), [sizes[index] for index in used]
    if not torch.is_grad_enabled():
        parts = zip(used, rows.split_with_sizes(sizes), order.split_with_sizes(sizes), strict=True)
        return _one_by_one(run, parts, x, len(choice), node_id)
    # The gradients of one gather and one scatter do not grow with the number of modules.
    gathered = x.index_select(0, rows).split_with_sizes(sizes)
    outputs: list[Tensor] = []
    for index, part in zip(used, gathered, strict=True):
        first = outputs[0] if outputs else None
        outputs.append(checked_rows(run(index, part), len(part), first, node_id, index))
    joined = torch.cat(outputs)
    return joined.new_empty(joined.shape).index_copy_(0, order, joined)


def _one_by_one(
    run: Run, parts: Iterable[tuple[int, Tensor, Tensor]], x: Tensor, count: int, node_id: str
) -> Tensor:
    """Gather, run and write one module after the other, which needs the least memory."""
    total: Tensor | None = None
    for index, rows, places in parts:
        output = checked_rows(run(index, x.index_select(0, rows)), len(rows), total, node_id, index)
        if total is None:
            total = output.new_empty((count, *output.shape[1:]))
        wide = torch.promote_types(total.dtype, output.dtype)  # they may differ under autocast
        total = total.to(wide).index_copy_(0, places, output.to(wide))
    return cast("Tensor", total)


def checked_rows(
    output: Tensor, rows: int, first: Tensor | None, node_id: str, index: int
) -> Tensor:
    """Return an output that has as many rows as its input, shaped like those of ``first``.

    Raises:
        ValueError: The numbers of rows or their shapes differ.
    """
    shape = output.shape
    if not shape or shape[0] != rows:
        raise ValueError(
            f"{node_id}: choice {index} returned {list(shape)} for {rows} rows; each row "
            "needs an output of its own"
        )
    if first is not None and shape[1:] != first.shape[1:]:
        raise ValueError(
            f"{node_id}: the chosen modules return rows of different shapes: "
            f"{list(first.shape[1:])} and {list(shape[1:])}"
        )
    return output


def refuse_choice(choice: int, count: int, told: str) -> NoReturn:
    """Refuse an index that names none of ``count`` modules.

    Raises:
        ValueError: It is negative.
        IndexError: It is too large.
    """
    kind = IndexError if choice >= count else ValueError
    raise kind(f"{told}; there are {count}, counted from 0")


def chosen_rows(choice: Tensor, x: Tensor, node_id: str) -> Tensor:
    """Return the choices of a router as ``[rows]``.

    Raises:
        ValueError: They are not integers, or not one for each row.
    """
    rows = row_count(x, node_id, "batch_switch")
    if choice.shape == (rows,):
        return choice
    if not choice.dim() or choice.shape[0] != rows or choice.numel() != rows:
        raise ValueError(
            f"{node_id}: the router returned {list(choice.shape)} for {rows} rows; a switch needs "
            f"[{rows}], one index for each row; batch_switch takes one index for the whole batch"
        )
    return choice.reshape(-1)


def whole_numbers(choice: Tensor, node_id: str) -> Tensor:
    """Return choices as int64.

    Raises:
        ValueError: They are not integers.
    """
    if choice.dtype.is_floating_point or choice.dtype.is_complex:
        shown = (
            f" ({choice.item()})"
            if choice.numel() == 1 and not torch.compiler.is_compiling()
            else ""
        )
        raise ValueError(
            f"{node_id}: the router returned {str(choice.dtype).removeprefix('torch.')}{shown}; "
            "an index is an integer, as argmax returns it"
        )
    return choice if choice.dtype is torch.int64 else choice.long()


def select_rows(outputs: Sequence[Tensor], choice: Tensor) -> Tensor:
    """Take each row from the output that it chose."""
    total = outputs[0]
    for index, output in enumerate(outputs[1:], 1):
        total = torch.where(spread(choice == index, output), output, total)
    return total


def done_rows(signal: Tensor, x: Tensor, node_id: str) -> Tensor:
    """Return which rows a condition halts: ``[rows]``, true if all elements of a row are > 0.

    Raises:
        ValueError: The condition did not return something for each row.
    """
    rows = row_count(x, node_id, "batch_while_cond or batch_until_cond")
    if not signal.dim() or signal.shape[0] != rows:
        raise ValueError(
            f"{node_id}: the condition returned {list(signal.shape)} for {rows} rows; it needs "
            f"[{rows}, ...], a value for each row; batch_while_cond and batch_until_cond take one "
            "for the whole batch"
        )
    return (signal > 0).flatten(1).all(1) if signal.dim() > 1 else signal > 0


class HaltingRows:
    """The rows of a loop: which are done, and what the body saw of them last.

    The body runs on all rows, because its memory and its references belong to the whole batch. For
    a row that is done it gets again what it got before, so that no value or gradient arises that
    the row alone would not have. Before its first iteration a row borrows the state of another.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._done: Tensor | None = None
        self._mask: Tensor | None = None
        self._seen: Tensor | None = None

    def all_done(self, signal: Tensor, x: Tensor) -> bool:
        """Take in what the condition says of the states; a row that is done stays so."""
        done = done_rows(signal, x, self._node_id)
        self._done = done if self._done is None else done.logical_or_(self._done)
        if done.all():
            return True
        if self._mask is not None or done.any():
            self._mask = spread(done, x)
        return False

    def seen(self, x: Tensor) -> Tensor:
        """Return what the body gets in place of the states."""
        if self._mask is not None and self._done is not None:
            last = first_row(~self._done, x) if self._seen is None else self._seen
            x = torch.where(self._mask, last, x)
        self._seen = x
        return x

    def advanced(self, x: Tensor, after: Tensor) -> Tensor:
        """Return the next states: rows that are done keep theirs.

        Raises:
            ValueError: The body changes the shape.
        """
        if self._mask is None:
            return after
        if after.shape != x.shape:
            raise ValueError(
                f"{self._node_id}: the body returned {list(after.shape)} for {list(x.shape)}; rows "
                "that are done keep their value, so the body must keep the shape"
            )
        return torch.where(self._mask, x, after)


def row_count(x: Tensor, node_id: str, other: str) -> int:
    """Return the number of rows.

    Raises:
        ValueError: The tensor has no dimensions.
    """
    if not x.dim():
        raise ValueError(f"{node_id} got a tensor without dimensions, so without rows; use {other}")
    return x.shape[0]


def spread(rows: Tensor, like: Tensor) -> Tensor:
    """Append dimensions, so that ``[rows]`` or one element broadcasts over ``[rows, ...]``."""
    return rows.reshape(rows.shape + (1,) * (like.dim() - rows.dim()))


def first_row(of: Tensor, x: Tensor) -> Tensor:
    """Repeat, for every row, the first row of ``x`` for which ``of`` is true."""
    return x.index_select(0, of.to(torch.int8).argmax().reshape(1)).expand_as(x)


def refuse_capture(x: Tensor, node_id: str) -> None:
    """Refuse to decide while a CUDA graph is captured.

    Raises:
        StateError: A CUDA graph is being captured.
    """
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise StateError(
            f"{node_id} reads its decision from the device to choose what runs; a CUDA graph would "
            "repeat the decision of its capture: capture a graph without this node, or compile it"
        )
