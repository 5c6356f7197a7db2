"""Turn ids into the vectors that an encoder starts with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flodl.graph.modules import NamedInputModule
from flodl.hf.configs.base import EncoderConfig
from flodl.hf.layers.dropout import dropout
from flodl.hf.layers.layout import POSITIONS, TYPES, Layout, Refs, layout_of


class Embeddings(NamedInputModule):
    """The sum of word, position and type vectors, normalised, with dropout.

    Args:
        config: Sizes, dropout and the id of padding.
        width: Width of the tables, E.
        offset_positions: Whether positions are counted as in RoBERTa: from the row after that of
            padding. Padding itself has its own row.
        fixed_positions: Whether a call cannot give positions.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        width: int,
        offset_positions: bool = False,
        fixed_positions: bool = False,
    ) -> None:
        super().__init__()
        self.pad = config.pad_token_id or 0
        self.dropout = config.hidden_dropout_prob
        self.offset_positions = offset_positions
        self.fixed_positions = fixed_positions
        self.word_embeddings = nn.Embedding(
            config.vocab_size, width, padding_idx=config.pad_token_id
        )
        self.position_embeddings = nn.Embedding(
            config.max_position_embeddings,
            width,
            padding_idx=self.pad if offset_positions else None,
        )
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Look up all vectors and add them.

        Args:
            ids: ``[B, S]``.
            refs: ``token_type_ids`` and ``position_ids``, ``[B or 1, S]`` or None, and the layout.

        Returns:
            ``[T, E]`` or ``[B, S, E]``.

        Raises:
            ValueError: Rows are longer than the position table, or positions must not be given.
        """
        layout = layout_of(refs)
        vectors: Tensor = self.word_embeddings(layout.of_rows(ids))
        if "token_type_embeddings" in self._modules:
            vectors = vectors + self._types(refs[TYPES], vectors, layout)
        vectors = vectors + self.position_embeddings(self._positions(ids, refs, layout))
        return dropout(self.LayerNorm(vectors), self.dropout, self.training)

    def _types(self, types: Tensor | None, vectors: Tensor, layout: Layout) -> Tensor:
        table = self.token_type_embeddings
        if types is None and type(table) is nn.Embedding:
            return table.weight[0].expand_as(vectors)
        if types is None:  # an adapted table: its vectors are not rows of the weight
            types = torch.zeros((1, 1), dtype=torch.long, device=vectors.device)
        found: Tensor = table(in_all_rows(types, layout))
        return found

    def _positions(self, ids: Tensor, refs: Refs, layout: Layout) -> Tensor:
        given: Tensor | None = refs[POSITIONS]
        length, rows = ids.shape[1], self.position_embeddings.num_embeddings
        if given is not None:
            if self.fixed_positions:
                raise ValueError(
                    "position_ids cannot be given to this model, whose positions are 0, 1, 2, …"
                )
            if length > rows and not torch.compiler.is_compiling():
                check_length(int(given.max()) + 1, rows)
            return in_all_rows(given, layout)
        if self.offset_positions:
            positions = self._counted(ids)
            # Padding takes no position, so a row that looks too long may still fit.
            if length >= rows - self.pad and not torch.compiler.is_compiling():
                check_length(int(positions.max()) - self.pad, rows - self.pad - 1)
            return layout.of_rows(positions)
        check_length(length, rows)
        positions = torch.arange(length, device=ids.device).expand_as(ids)
        return layout.of_rows(positions)

    def _counted(self, ids: Tensor) -> Tensor:
        counts = ids != self.pad
        return counts.cumsum(1) * counts + self.pad


def check_length(length: int, limit: int) -> None:
    """Refuse rows with more tokens than a model has positions."""
    if length > limit:
        raise ValueError(
            f"rows of {length} tokens are longer than the {limit} positions of the model: "
            "truncate them"
        )


def in_all_rows(given: Tensor, layout: Layout) -> Tensor:
    """Values of one row or of all rows, ``[B or 1, S]``, in the layout of the tokens."""
    return layout.of_rows(given.expand(layout.rows, layout.length))
