"""Join the outputs of all ranks in one exchange, with correct gradients.

Rank r has computed its rows of a batch. All ranks get all rows, but on rank r only its own rows
have autograd history. With L the loss of the whole output and θ the parameters, the backward pass
of rank r gives

    W · ∂L/∂out[r] · ∂out[r]/∂θ  +  ∂L/∂θ

because the gradient of the rank's own rows is multiplied by the number of ranks W. The mean over
the ranks is the gradient of L. This holds also if L uses parameters directly: those terms count
once.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor

from flodl.errors import BatchMismatchError, DistributedError

if TYPE_CHECKING:
    from flodl.ranks.group import Group


_ALIGNMENT = 16
"""Bytes; the size of torch's largest element, so that each part of the buffer can be viewed."""

_LAYOUTS = 1024
"""Limit of remembered kinds of batches; texts of many lengths make many kinds."""


@final
@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a batch that this rank computes."""

    cut: Cut
    rank: int

    @property
    def samples(self) -> int:
        """Number of samples of the whole batch."""
        return sum(self.cut)

    @property
    def start(self) -> int:
        """First row of this rank."""
        return sum(self.cut[: self.rank])

    @property
    def stop(self) -> int:
        """Row after the last one of this rank."""
        return self.start + self.cut[self.rank]

    @property
    def computed(self) -> slice:
        """Rows to compute; a rank without rows computes the first two to get the output's form."""
        return slice(self.start, self.stop) if self.cut[self.rank] else slice(0, 2)

    @property
    def rows(self) -> int:
        """Number of rows that this rank computes."""
        return self.cut[self.rank] or min(2, self.samples)


@final
@dataclass(frozen=True, slots=True)
class _Form:
    """Shape and dtype of a tensor on every rank."""

    by_rows: bool
    """Whether dimension 0 runs over the rows of the batch."""
    shape: tuple[int, ...]
    """Shape without the dimension of the rows."""
    dtype: torch.dtype

    @property
    def exchanged(self) -> bool:
        """Whether the tensor is exchanged: by rows, or as a floating or complex whole tensor."""
        return self.by_rows or self.dtype.is_floating_point or self.dtype.is_complex

    def bytes_of(self, rows: int) -> int:
        """Return the size in bytes of a number of rows, or of whole tensors."""
        return rows * torch.Size(self.shape).numel() * self.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class _Layout:
    """Which tensors are exchanged, and their forms on every rank."""

    tensors: int
    """Number of outputs and tags together."""
    chosen: tuple[int, ...]
    """Positions of the exchanged tensors."""
    forms: tuple[_Form, ...]
    """Forms of the exchanged tensors."""

    def fits(self, forms: Sequence[_Form]) -> bool:
        """Whether the tensors of a call have this layout."""
        return len(forms) == self.tensors and all(
            forms[place] == form for place, form in zip(self.chosen, self.forms, strict=True)
        )


@final
class Rejoiner:
    """Joins the outputs of all ranks.

    - A tensor with one entry of dimension 0 per computed row is joined row by row.
    - Any other floating or complex tensor is averaged over the ranks, weighted by their rows. This
      is exact for means over the batch and for values that do not depend on the batch.
    - Any other tensor stays as it is on each rank.

    Args:
        group: The ranks.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._layouts: dict[tuple[float, Cut], _Layout] = {}

    def join(
        self, outputs: Sequence[Tensor], tags: Sequence[Tensor], part: Slice, batch: WholeBatch
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return outputs and tags of the whole batch; collective.

        Args:
            outputs: Outputs of the model for this rank's rows.
            tags: Tagged values of the model. A tag whose form differs between the ranks stays
                unchanged.
            part: The rows of this rank.
            batch: The batch that all ranks should have got.

        Raises:
            BatchMismatchError: The ranks got different batches.
            DistributedError: An output has another form on another rank.
        """
        # Compare first: Gloo ends the process if the ranks' buffers differ in size.
        batch.compare()
        tensors = [*outputs, *tags]
        forms = [_form_of(tensor, part.rows) for tensor in tensors]
        kind = (batch.shape_digest, part.cut)
        # Every rank knows the same layouts because all ranks got the same batches.
        layout = self._layouts.get(kind)
        joined = None if layout is None else self._exchange(tensors, forms, part, layout)
        if joined is None:
            layout = self._agree(forms, len(outputs))
            self._remember(kind, layout)
            joined = self._exchange(tensors, forms, part, layout)
        found = [(joined or {}).get(place, tensor) for place, tensor in enumerate(tensors)]
        return found[: len(outputs)], found[len(outputs) :]

    def _remember(self, kind: tuple[float, Cut], layout: _Layout) -> None:
        if self._group.device.type != "cpu":
            return  # reading the flags of an exchange would make the host wait for the GPU
        if len(self._layouts) == _LAYOUTS:
            self._layouts.clear()
        self._layouts[kind] = layout

    def _agree(self, forms: list[_Form], outputs: int) -> _Layout:
        """Find out which tensors have the same form on all ranks."""
        digests = self._group.gather([zlib.crc32(repr(forms).encode())])
        different: set[int] = set()
        if len({row[0] for row in digests}) > 1:
            different = _differences(self._group.gather_objects(forms), outputs)
        chosen = tuple(
            place
            for place, form in enumerate(forms)
            if form.exchanged and place not in different and form.bytes_of(1)
        )
        return _Layout(len(forms), chosen, tuple(forms[place] for place in chosen))

    def _exchange(
        self, tensors: list[Tensor], forms: list[_Form], part: Slice, layout: _Layout
    ) -> dict[int, Tensor] | None:
        """Sum buffers in which each rank has filled in its bytes; this is exact for any dtype.

        Returns:
            The joined tensors by position; None if a rank had tensors of another form.
        """
        world = len(part.cut)
        copies = [part.samples if form.by_rows else world for form in layout.forms]
        starts, size = [], _aligned(8 * world)
        for form, rows in zip(layout.forms, copies, strict=True):
            starts.append(size)
            size += _aligned(form.bytes_of(rows))
        buffer = torch.zeros(size, dtype=torch.uint8, device=self._group.device)
        fitting = buffer.view(torch.int64)[:world]
        own: list[Tensor] = []
        if layout.fits(forms):
            fitting[part.rank] = 1
            for place, form, start in zip(layout.chosen, layout.forms, starts, strict=True):
                mine = tensors[place]
                mine = mine[: part.cut[part.rank]] if form.by_rows else mine
                own.append(mine)
                begin = start + form.bytes_of(part.start if form.by_rows else part.rank)
                data = mine.detach().contiguous().reshape(-1).view(torch.uint8)
                buffer[begin : begin + data.numel()] = data
        self._group.all_reduce_(buffer.view(torch.int64))
        if self._layouts and not fitting.all():
            return None
        return {
            place: _assembled(mine, _read(buffer, start, form, rows), form, part)
            for place, mine, form, start, rows in zip(
                layout.chosen, own, layout.forms, starts, copies, strict=True
            )
        }


def _differences(on_ranks: Sequence[list[_Form]], outputs: int) -> set[int]:
    """Return the positions at which the forms differ between the ranks.

    Raises:
        DistributedError: An output differs, or the number of tensors differs.
    """
    if len({len(found) for found in on_ranks}) > 1:
        raise DistributedError(
            "the model returned another number of tensors on some ranks: "
            f"{', '.join(str(len(found)) for found in on_ranks)}, tags included; it has to "
            "return the same structure for every part of a batch"
        )
    places = {p for p, found in enumerate(zip(*on_ranks, strict=True)) if len(set(found)) > 1}
    if wrong := sorted(place for place in places if place < outputs):
        shown = "; ".join(
            f"rank {rank}: {'rows of ' if found[wrong[0]].by_rows else ''}"
            f"{list(found[wrong[0]].shape)} {found[wrong[0]].dtype}"
            for rank, found in enumerate(on_ranks)
        )
        raise DistributedError(
            f"output {wrong[0]} of the model cannot be put together from the ranks ({shown}): "
            "dimension 0 has to run over the samples, and the others have to be equal"
        )
    return places


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _form_of(tensor: Tensor, rows: int) -> _Form:
    by_rows = tensor.dim() > 0 and tensor.shape[0] == rows
    return _Form(by_rows, tuple(tensor.shape[1:] if by_rows else tensor.shape), tensor.dtype)


def _read(buffer: Tensor, start: int, form: _Form, rows: int) -> Tensor:
    return buffer[start : start + form.bytes_of(rows)].view(form.dtype).view(rows, *form.shape)


def _assembled(mine: Tensor, found: Tensor, form: _Form, part: Slice) -> Tensor:
    """Join this rank's part, which has autograd history, with the parts of the others."""
    linked = _amplified(mine, len(part.cut)) if mine.requires_grad else mine
    if form.by_rows:
        if not mine.requires_grad:
            return found
        return torch.cat([found[: part.start], linked, found[part.stop :]])
    total = torch.zeros_like(mine)
    for rank, samples in enumerate(part.cut):
        value = linked if rank == part.rank else found[rank]
        total = total + value * (samples / part.samples)
    return total


def _amplified(tensor: Tensor, factor: int) -> Tensor:
    linked: Tensor = _Amplified.apply(tensor, factor)  # type: ignore[no-untyped-call]
    return linked


class _Amplified(torch.autograd.Function):
    """Returns a tensor unchanged and multiplies its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: int) -> Tensor:
        """Return the tensor."""
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Multiply the gradient by the factor."""
        return grad * ctx.factor, None


class _Taken(torch.autograd.Function):
    """Takes this rank's rows of an input that requires a gradient.

    The incoming gradient was multiplied by the number of ranks (see the module's docstring). The
    outgoing gradient is that of the whole input, summed over the ranks, the same on every rank.
    """

    @staticmethod
    def forward(ctx: Any, whole: Tensor, part: Slice, group: Group) -> Tensor:
        """Return the rows."""
        ctx.part, ctx.group, ctx.shape = part, group, whole.shape
        rows = part.computed
        return whole[rows].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Sum the gradient's parts over the ranks."""
        part = ctx.part
        whole = grad.new_zeros(ctx.shape)
        whole[part.start : part.stop] = grad[: part.cut[part.rank]] / len(part.cut)
        ctx.group.all_reduce_(whole)
        return whole, None, None


def take_rows(whole: Tensor, part: Slice, group: Group) -> Tensor:
    """Return the rows of an input that this rank computes."""
    if whole.requires_grad:
        taken: Tensor = _Taken.apply(whole, part, group)  # type: ignore[no-untyped-call]
        return taken
    return whole[part.computed]


@final
class WholeBatch:
    """Checksums of a batch; they are exchanged with the other ranks while this rank computes.

    Args:
        tensors: The whole inputs of the model.
        number: Number of the call.
        group: The ranks.
        deep: Whether to compare all values, not only the shapes.
    """

    def __init__(self, tensors: Sequence[Tensor], number: int, group: Group, *, deep: bool) -> None:
        described = repr([(tuple(tensor.shape), tensor.dtype) for tensor in tensors])
        self._number = number
        self.shape_digest = float(zlib.crc32(described.encode()))
        content = float(_checksum(tensors)) if deep else -1.0
        self._others = group.gather_later([self.shape_digest, content])

    def compare(self) -> None:
        """Compare the batch with those of the other ranks.

        Raises:
            BatchMismatchError: A rank got another batch.
        """
        rows: list[list[float]] = self._others.wait()
        for column, what in enumerate(("shape", "values")):
            wrong = [rank for rank, row in enumerate(rows) if row[column] != rows[0][column]]
            if wrong:
                named = f"rank{'s' if wrong[1:] else ''} {', '.join(map(str, wrong))}"
                raise BatchMismatchError(
                    f"{named} got another batch than rank 0 in call {self._number} of the model "
                    f"(the {what} differ): in your own loop, every rank iterates over the "
                    "same batches in the same order; give every loader the same seed, and "
                    "no sampler that divides the data"
                )


def _checksum(tensors: Sequence[Tensor]) -> int:
    total = 0
    for tensor in tensors:
        values = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        total = zlib.crc32(values.numpy().data, total)
    return total


Cut: TypeAlias = tuple[int, ...]
"""Samples of each rank, in rank order."""

FLOOR = 0.05
"""The smallest part of a rank; a rank without rows could not be measured any more."""

_FIRST_BALANCE = 10
_BALANCE_EVERY = 50
_NEWEST = 0.3
"""Weight of the latest step in the running mean of a rank's speed."""


@final
class Shares:
    """The part and the measured speed of each rank.

    Args:
        world_size: Number of ranks.
        balanced: Whether the parts follow the measured speeds; otherwise they stay equal.
    """

    def __init__(self, world_size: int, *, balanced: bool = True) -> None:
        self._balanced = balanced
        self._steps = 0
        self.ratios: tuple[float, ...] = (1 / world_size,) * world_size
        self.throughput: tuple[float, ...] = (0.0,) * world_size
        """Samples per millisecond of each rank; 0 before the first measurement."""

    def cut(self, samples: int) -> Cut:
        """Divide a batch among the ranks."""
        return divide(samples, self.ratios)

    def learn(self, samples: Sequence[float], ms: Sequence[float]) -> None:
        """Update the speeds, and at some steps the parts, after one step.

        Args:
            samples: Samples that each rank computed.
            ms: Time of each rank; 0 if it was not measured.
        """
        self._steps += 1
        self.throughput = tuple(
            _mean(known, count / time) if count > 0 and time > 0 else known
            for known, count, time in zip(self.throughput, samples, ms, strict=True)
        )
        due = self._steps == _FIRST_BALANCE or self._steps % _BALANCE_EVERY == 0
        if due and self._balanced and all(self.throughput):
            self.ratios = proportional(self.throughput)


def _mean(known: float, new: float) -> float:
    return _NEWEST * new + (1 - _NEWEST) * known if known else new


def proportional(speeds: Sequence[float]) -> tuple[float, ...]:
    """Return parts in proportion to speeds, each at least :data:`FLOOR`; their sum is 1.

    With 20 or more ranks, all parts are equal.
    """
    floor = min(FLOOR, 1 / len(speeds))
    held: set[int] = set()
    while True:
        free = 1 - floor * len(held)
        total = sum(speed for rank, speed in enumerate(speeds) if rank not in held)
        parts = tuple(
            floor if rank in held else free * speed / total for rank, speed in enumerate(speeds)
        )
        below = {rank for rank, part in enumerate(parts) if part < floor} - held
        if not below:
            return parts
        held |= below


def divide(samples: int, ratios: Sequence[float]) -> Cut:
    """Divide whole samples by ratios; a rank gets 0 only if there are fewer samples than ranks.

    The largest remainders are rounded up; ties go to the lowest rank.
    """
    exact = [samples * ratio for ratio in ratios]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(ratios)), key=lambda rank: (counts[rank] - exact[rank], rank))
    for rank in by_remainder[: samples - sum(counts)]:
        counts[rank] += 1
    while samples >= len(counts) and 0 in counts:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    return tuple(counts)
