"""The modules behind gates and switches.

They are registered like other modules (``gate_3.experts.0``) and run through ``__call__``. Children
are looked up at each call, so a replaced child takes effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn, cast

import torch
from torch import Tensor, nn

from flodl.graph.nodes import Refs, call_with, first_tensor
from flodl.graph.rows import (
    checked_rows,
    chosen_rows,
    counted,
    dispatch,
    refuse_capture,
    refuse_choice,
    select_rows,
    whole_numbers,
)
from flodl.graph.topology import Gate, Switch


class _Routed(nn.Module):
    """A router, and modules between which it decides.

    Args:
        router: Decides by the stream and perhaps by references.
        operation: Number of modules, and how the router takes references.
        node_id: The node, for messages.
    """

    _key: ClassVar[str]
    """Where the modules are registered."""

    _what: ClassVar[str]
    """What one of them is called."""

    def __init__(self, router: nn.Module, operation: Gate | Switch, node_id: str) -> None:
        super().__init__()
        self.router = router
        self.operation = operation
        self.node_id = node_id

    def _decision(self, x: Tensor, refs: Refs | None) -> Tensor:
        try:
            decision = call_with(self.router, x, refs, self.operation.style)
        except Exception as error:
            error.add_note(f"in {self.node_id}, router ({type(self.router).__name__})")
            raise
        return first_tensor(decision, f"{self.node_id}.router")

    def _run(self, index: int, x: Tensor) -> Tensor:
        # Faster than an index into a ModuleList.
        module = cast("Any", self._modules[self._key])._modules[str(index)]
        try:
            output = module(x)
            if type(output) is Tensor:
                return output
            return first_tensor(output, f"{self.node_id}.{self._key}.{index}")
        except Exception as error:
            error.add_note(f"in {self.node_id}, {self._what} {index} ({type(module).__name__})")
            raise


class GateNode(_Routed):
    """Adds the outputs of experts, weighted by a router (Jacobs et al. 1991).

    With ``top_k``, each expert runs on those rows for which it is among the largest weights
    (Shazeer et al. 2017).

    Args:
        router: Computes weights ``[..., N]`` from the stream; they are not normalised here.
        experts: N modules whose outputs have the same shape.
        operation: Number of experts, how many of them a row uses, and how the router takes
            references.
        node_id: The node, for messages.
    """

    _key, _what = "experts", "expert"
    operation: Gate

    def __init__(
        self, router: nn.Module, experts: Iterable[nn.Module], operation: Gate, node_id: str
    ) -> None:
        super().__init__(router, operation, node_id)
        self.experts = nn.ModuleList(experts)

    def forward(self, x: Tensor, refs: Refs | None = None) -> Tensor:
        """Compute the weighted sum of the experts' outputs.

        Args:
            x: The stream, for the router and the experts.
            refs: Tag -> tagged value, for the router.

        Raises:
            ValueError: The shapes of weights and expert outputs do not match, or ``top_k`` cannot
                choose by NaN.
        """
        weights = self._decision(x, refs)
        top_k = self.operation.top_k
        if top_k is None:
            return weigh(weights, self._outputs(x))
        lead = self._leading(weights, x)
        values, experts = weights.topk(top_k)
        if torch.compiler.is_compiling():
            # While a compiler traces, the indices have no values yet: every expert runs.
            kept = torch.zeros_like(weights).scatter(-1, experts, values)
            return weigh(kept, self._outputs(x))
        refuse_capture(x, self.node_id)
        count = len(self.experts)
        # NaN is among the largest. Its index becomes none of the experts: one read for both.
        choice = experts.masked_fill(values.isnan(), count).flatten()
        sizes = counted(choice, count, self._refuse_nan)
        rows = x.flatten(0, len(lead) - 1)
        outputs = dispatch(self._run, choice, sizes, rows, self.node_id, top_k)
        several = outputs.reshape(-1, top_k, *outputs.shape[1:]).unbind(1)
        total = weigh(values.reshape(-1, top_k), several)
        return total.reshape(*lead, *total.shape[1:])

    def _refuse_nan(self, choices: list[int]) -> NoReturn:
        row = choices.index(len(self.experts)) // cast("int", self.operation.top_k)
        raise ValueError(
            f"{self.node_id}: the router returned NaN for row {row}, which has no largest weights"
        )

    def _outputs(self, x: Tensor) -> list[Tensor]:
        return [self._run(index, x) for index in range(len(self.experts))]

    def _leading(self, weights: Tensor, x: Tensor) -> torch.Size:
        lead, count = weights.shape[:-1], len(self.experts)
        if not lead or weights.shape[-1] != count or lead != x.shape[: len(lead)]:
            raise ValueError(
                f"{self.node_id}: a gate with top_k needs weights [rows, ..., {count}] that begin "
                f"like its stream {list(x.shape)}; its router returned {list(weights.shape)}"
            )
        return lead


def weigh(weights: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """Return ``sum_i weights[..., i] * outputs[i]``.

    Args:
        weights: ``[lead..., N]``, where ``lead`` are the first dimensions of an output: none, some
            or all of them.
        outputs: N tensors of one shape.

    Raises:
        ValueError: The number of outputs is not N, ``lead`` differs, or the output shapes differ.
    """
    shape, lead = outputs[0].shape, weights.shape[:-1]
    if any(output.shape != shape for output in outputs):
        shapes = ", ".join(str(list(output.shape)) for output in outputs)
        raise ValueError(f"the experts of a gate return different shapes: {shapes}")
    if weights.dim() == 0 or weights.shape[-1] != len(outputs):
        raise ValueError(
            f"a gate of {len(outputs)} experts needs weights [..., {len(outputs)}], its router "
            f"returned {list(weights.shape)}"
        )
    if lead != shape[: len(lead)]:
        raise ValueError(
            f"the weights {list(weights.shape)} of a gate must begin like the experts' outputs "
            f"{list(shape)}: one weight per expert for each of the leading dimensions"
        )
    weights = weights.reshape(*lead, *(1 for _ in shape[len(lead) :]), len(outputs))
    # One split and fused multiply-adds need fewer operators than N slices, products and sums.
    first, *others = weights.unbind(-1)
    total = first * outputs[0]
    for weight, output in zip(others, outputs[1:], strict=True):
        total = torch.addcmul(total, weight, output)
    return total


class SwitchNode(_Routed):
    """Sends each row to the branch that a router chooses for it, or the whole batch to one.

    Args:
        router: Computes the index of the branch from the stream: ``[rows]``, or one element for the
            whole batch.
        branches: Two or more modules.
        operation: Number of branches, whether one serves the batch, and how the router takes
            references.
        node_id: The node, for messages.
    """

    _key, _what = "branches", "branch"
    operation: Switch

    def __init__(
        self, router: nn.Module, branches: Iterable[nn.Module], operation: Switch, node_id: str
    ) -> None:
        super().__init__(router, operation, node_id)
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor, refs: Refs | None = None) -> Tensor:
        """Choose branches and run them.

        Args:
            x: The stream, for the router and the branches.
            refs: Tag -> tagged value, for the router.

        Raises:
            ValueError: The router returned another number of indices, or one that is negative or
                not an integer.
            IndexError: There is no such branch.
        """
        choice = whole_numbers(self._decision(x, refs), self.node_id)
        if not self.operation.batch:
            choice = chosen_rows(choice, x, self.node_id)
        elif choice.numel() != 1:
            raise ValueError(
                f"{self.node_id}: the router returned {list(choice.shape)}; a batch_switch needs "
                "one index for the whole batch; switch takes one for each row"
            )
        count = len(self.branches)
        if torch.compiler.is_compiling():
            torch._assert_async(
                ((choice >= 0) & (choice < count)).all(),
                f"{self.node_id}: the router named no branch",
            )
            return self._captured(choice, x)
        refuse_capture(x, self.node_id)
        if not self.operation.batch:
            sizes = counted(choice, count, self._refuse_rows)
            return dispatch(self._run, choice, sizes, x, self.node_id)
        index = int(choice)
        if not 0 <= index < count:
            refuse_choice(index, count, f"{self.node_id}: the router chose {index}")
        return self._run(index, x)

    def _refuse_rows(self, choices: list[int]) -> NoReturn:
        count = len(self.branches)
        row, choice = next((r, c) for r, c in enumerate(choices) if not 0 <= c < count)
        refuse_choice(choice, count, f"{self.node_id}: the router chose {choice} for row {row}")

    def _captured(self, choice: Tensor, x: Tensor) -> Tensor:
        """The switch for a compiler: while it traces, the indices have no values yet."""
        indices = range(len(self.branches))
        if self.operation.batch:
            return self._one_of(indices, choice.reshape(()), x)
        outputs: list[Tensor] = []
        for index in indices:
            first, output = outputs[0] if outputs else None, self._run(index, x)
            # len(x) would fix the number of rows of an exported program.
            outputs.append(checked_rows(output, x.shape[0], first, self.node_id, index))
        return select_rows(outputs, choice)

    def _one_of(self, indices: Sequence[int], choice: Tensor, x: Tensor) -> Tensor:
        if len(indices) == 1:
            # The operator refuses outputs that share memory with its inputs.
            return self._run(indices[0], x).clone()
        half = len(indices) // 2
        return cast(
            "Tensor",
            torch.cond(
                choice < indices[half],
                lambda x: self._one_of(indices[:half], choice, x),
                lambda x: self._one_of(indices[half:], choice, x),
                (x,),
            ),
        )
