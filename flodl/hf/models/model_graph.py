"""Graphs with named inputs, also for tools that inspect signatures."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from flodl.graph import FlowBuilder, Graph
from flodl.hf.models.layout import RECORD, Record


class ModelGraph(Graph):
    """A model of ``flodl.hf``, with or without a head.

    ``torch.export`` takes ``dynamic_shapes`` by the names of these arguments.
    """

    def forward(  # type: ignore[override]  # a graph takes any inputs, a model these
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        places: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Run the model.

        Args:
            input_ids: ``[B, S]``.
            attention_mask: 0 for padding, ``[B, S]``; see :class:`~flodl.hf.models.layout.Keys`.
            token_type_ids: Segments, ``[B, S]``.
            position_ids: ``[B, S]``, if the family takes positions.
            places: Positions of the tokens to compute, in the flattened ``[B * S]``, int64 ``[T]``;
                empty for all positions, None for the choice of the model.
            **others: Further inputs of the encoder of a model with a head.

        Returns:
            ``last_hidden_state [B, S, H]``, or the logits of the head.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, places)
        record = others.get(RECORD)
        if record is None:
            return super().forward(*inputs, **others)
        return self._recorded(record, self._ordered(inputs, others))

    def _recorded(self, record: Record, inputs: tuple[Tensor | None, ...]) -> Tensor:
        """Run the pure core and record the tagged values; other threads do not see them."""
        core = self._core if self._core.tags else self._core.variant(tags=True, mark=None)
        try:
            output, tags, _, _ = core.run(self._modules, inputs, ())
        except Exception as error:
            core.explain(error)
            raise
        named = zip(self.topology.kept_tags, tags, strict=True)
        record.tags = {name: value for name, value in named if value is not None}
        return output


class ModelFlow(FlowBuilder):
    """Builds a :class:`ModelGraph`."""

    _makes = ModelGraph

    def build(self) -> ModelGraph:
        """Make the graph; see :meth:`FlowBuilder.build`."""
        return cast("ModelGraph", super().build())
