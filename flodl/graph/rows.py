"""Rows of a batch that part: each gets its own module, or its own number of iterations.

A row is a slice of the first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from flodl.errors import StateError

Run = Callable[[int, Tensor], Tensor]
"""Runs the module with this index on some rows."""


def dispatch(run: Run, count: int, choice: Tensor, x: Tensor, node_id: str) -> Tensor:
    """Run every chosen module once, on the rows that chose it, and put the results in place.

    Modules that no row chose do not run. An empty batch runs the first, for the shape of its
    output.

    Args:
        run: Runs one of the modules.
        count: Number of modules.
        choice: ``[rows]``, integers.
        x: ``[rows, ...]``.
        node_id: The node, for messages.

    Returns:
        ``[rows, ...]``, in the order of ``x``.

    Raises:
        ValueError: An index is negative, or modules return different shapes or other rows.
        IndexError: There is no module with an index.
        StateError: A CUDA graph is being captured.
    """
    refuse_capture(x, node_id)
    # A single read of the device, however many modules there are.
    host = choice.cpu()
    rows = [(host == index).nonzero().squeeze(1) for index in range(count)]
    if sum(map(len, rows)) < len(host):
        _refuse_choices(host.tolist(), count, node_id)
    used = [index for index in range(count) if len(rows[index])] or [0]
    if len(used) == 1:
        return checked_rows(run(used[0], x), len(x), None, node_id, used[0])
    taken = [rows[index].to(x.device) for index in used]
    if torch.is_grad_enabled():
        return _gathered(run, used, taken, x, node_id)
    outputs = (run(index, x.index_select(0, own)) for index, own in zip(used, taken, strict=True))
    return _scattered(outputs, used, taken, node_id)


def _scattered(
    outputs: Iterator[Tensor], used: Sequence[int], taken: Sequence[Tensor], node_id: str
) -> Tensor:
    """Write each output to its rows at once, which needs the least memory."""
    first = checked_rows(next(outputs), len(taken[0]), None, node_id, used[0])
    total = first.new_empty((sum(map(len, taken)), *first.shape[1:]))
    total.index_copy_(0, taken[0], first)
    for index, own, output in zip(used[1:], taken[1:], outputs, strict=True):
        total.index_copy_(0, own, checked_rows(output, len(own), first, node_id, index))
    return total


def _gathered(
    run: Run, used: Sequence[int], taken: Sequence[Tensor], x: Tensor, node_id: str
) -> Tensor:
    """The same with one gather and one scatter, whose gradients do not grow with the modules."""
    order = torch.cat(list(taken))
    parts = torch.split(x.index_select(0, order), [len(own) for own in taken])
    outputs: list[Tensor] = []
    for index, part in zip(used, parts, strict=True):
        first = outputs[0] if outputs else None
        outputs.append(checked_rows(run(index, part), len(part), first, node_id, index))
    joined = torch.cat(outputs)
    return joined.new_empty(joined.shape).index_copy_(0, order, joined)


def checked_rows(
    output: Tensor, rows: int, first: Tensor | None, node_id: str, index: int
) -> Tensor:
    """Return an output that has as many rows as its input, shaped like those of ``first``.

    Raises:
        ValueError: The numbers of rows or their shapes differ.
    """
    if not output.dim() or output.shape[0] != rows:
        raise ValueError(
            f"{node_id}: choice {index} returned {list(output.shape)} for {rows} rows; each row "
            "needs an output of its own"
        )
    if first is not None and output.shape[1:] != first.shape[1:]:
        raise ValueError(
            f"{node_id}: the chosen modules return rows of different shapes: "
            f"{list(first.shape[1:])} and {list(output.shape[1:])}"
        )
    return output


def _refuse_choices(choices: Sequence[int], count: int, node_id: str) -> None:
    row, choice = next((r, c) for r, c in enumerate(choices) if not 0 <= c < count)
    refuse_choice(choice, count, f"{node_id}: the router chose {choice} for row {row}")


def refuse_choice(choice: int, count: int, told: str) -> None:
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
    if choice.is_floating_point() or choice.is_complex():
        shown = (
            f" ({choice.item()})"
            if choice.numel() == 1 and not torch.compiler.is_compiling()
            else ""
        )
        raise ValueError(
            f"{node_id}: the router returned {str(choice.dtype).removeprefix('torch.')}{shown}; "
            "an index is an integer, as argmax returns it"
        )
    return choice.long()


def select_rows(outputs: Sequence[Tensor], choice: Tensor) -> Tensor:
    """Take each row from the output that it chose."""
    total = outputs[0]
    for index, output in enumerate(outputs[1:], 1):
        total = torch.where(spread(choice == index, output), output, total)
    return total


def strongest(weights: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k`` largest weights of the last dimension and their indices.

    Among equal weights the lowest index wins. NaN counts as largest, so none is overlooked.
    """
    values, indices = weights.sort(dim=-1, descending=True, stable=True)
    return values[..., :k], indices[..., :k]


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
        self._some = False
        self._seen: Tensor | None = None

    def all_done(self, signal: Tensor, x: Tensor) -> bool:
        """Take in what the condition says of the states; a row that is done stays so."""
        done = done_rows(signal, x, self._node_id)
        self._done = done if self._done is None else self._done | done
        count = int(self._done.sum())
        self._some = count > 0
        return count == len(x)

    def seen(self, x: Tensor) -> Tensor:
        """Return what the body gets in place of the states."""
        if self._some and self._done is not None:
            last = first_row(~self._done, x) if self._seen is None else self._seen
            x = torch.where(spread(self._done, x), last, x)
        self._seen = x
        return x

    def advanced(self, x: Tensor, after: Tensor) -> Tensor:
        """Return the next states: rows that are done keep theirs.

        Raises:
            ValueError: The body changes the shape.
        """
        if not self._some or self._done is None:
            return after
        if after.shape != x.shape:
            raise ValueError(
                f"{self._node_id}: the body returned {list(after.shape)} for {list(x.shape)}; rows "
                "that are done keep their value, so the body must keep the shape"
            )
        return torch.where(spread(self._done, x), x, after)


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
