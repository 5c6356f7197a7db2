"""The parts that most families share: embeddings, layers, poolers and decoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from flodl.graph.modules import ModuleLike, NamedInputModule
from flodl.hf.config import EncoderConfig
from flodl.hf.layers.activations import ACTIVATIONS, dropout
from flodl.hf.layers.attention import attend_tokens
from flodl.hf.layers.layout import MASK, POSITIONS, TYPES, Layout, Refs, layout_of


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


# --- Layers ----------------------------------------------------------------------------------


class RecomputedLayer(nn.Module):
    """A layer whose inner values need not stay in memory until the backward.

    Attributes:
        recomputed: True keeps only the inputs of a call in training mode. The backward runs the
            layer a second time, with the same random numbers (Chen et al., 2016).
    """

    recomputed: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        if not (self.recomputed and self.training and torch.is_grad_enabled()):
            return super().__call__(*args, **kwargs)
        # Imported here, because models that are only used must not wait for it.
        from torch.utils.checkpoint import checkpoint

        return checkpoint(super().__call__, *args, use_reentrant=False, **kwargs)


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The places of the parts of a layer, as dotted names of a checkpoint.

    Attributes:
        query: Projection to queries.
        key: Projection to keys.
        value: Projection to values.
        out: Projection after attention.
        attention_norm: LayerNorm after attention.
        up: Projection to the intermediate width.
        down: Projection back.
        output_norm: LayerNorm at the end.
    """

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    out: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    output_norm: str = "output.LayerNorm"


BERT_NAMES = LayerNames()


def place(root: nn.Module, path: str, module: nn.Module) -> None:
    """Register a module under a dotted name, with empty modules in between."""
    *way, name = path.split(".")
    for step in way:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root.get_submodule(step)
    root.add_module(name, module)


def at(root: nn.Module, path: str) -> Any:
    """The module under a dotted name.

    It is looked up at each call, because a part may be replaced, for instance by an adapter.
    """
    for step in path.split("."):
        root = root._modules[step]  # type: ignore[assignment]  # it was placed there
    return root


class TransformerLayer(RecomputedLayer):
    """Attention and a feed-forward network, each added to its input and normalised.

    Post-norm, as in Vaswani et al. (2017) and Devlin et al. (2019).

    Args:
        config: Widths, heads, activation and dropout.
        names: The places of the parts.
        output_dropout: Whether the output of the feed-forward network has dropout.
    """

    def __init__(
        self,
        config: EncoderConfig,
        names: LayerNames,
        *,
        output_dropout: bool = True,
    ) -> None:
        super().__init__()
        width, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.names = names
        self._place_attention(config)
        place(self, names.out, nn.Linear(width, width))
        place(self, names.attention_norm, nn.LayerNorm(width, eps=eps))
        place(self, names.up, nn.Linear(width, inner))
        place(self, names.down, nn.Linear(inner, width))
        place(self, names.output_norm, nn.LayerNorm(width, eps=eps))
        self.heads = config.num_attention_heads
        self.attention_dropout = config.attention_probs_dropout_prob
        self.dropout = config.hidden_dropout_prob
        self.output_dropout = self.dropout if output_dropout else 0.0
        self.activation = ACTIVATIONS[config.hidden_act]

    def _place_attention(self, config: EncoderConfig) -> None:
        width = config.hidden_size
        for path in (self.names.query, self.names.key, self.names.value):
            place(self, path, nn.Linear(width, width))

    def forward(self, tokens: Tensor, layout: Layout, positions: Any = None) -> Tensor:
        """Run the layer.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            layout: Their layout.
            positions: What attention knows of positions, if it uses them.

        Returns:
            Like ``tokens``; ``[B, H]``, the first token of every row, if only that is used.
        """
        names = self.names
        tokens, attended = self._attended(tokens, layout, positions)
        attended = dropout(at(self, names.out)(attended), self.dropout, self.training)
        tokens = at(self, names.attention_norm)(tokens + attended)
        changed = at(self, names.down)(self.activation(at(self, names.up)(tokens)))
        changed = dropout(changed, self.output_dropout, self.training)
        normed: Tensor = at(self, names.output_norm)(tokens + changed)
        return normed

    def _attended(
        self,
        tokens: Tensor,
        layout: Layout,
        positions: Any,  # noqa: ARG002 - other families use them
    ) -> tuple[Tensor, Tensor]:
        """The tokens whose results are used, and what they get from attention."""
        names = self.names
        asking = layout.firsts(tokens) if layout.ends_first else tokens
        query, key, value = at(self, names.query), at(self, names.key), at(self, names.value)
        p = self.attention_dropout if self.training else 0.0
        return asking, attend_tokens(
            query(asking), key(tokens), value(tokens), self.heads, layout, p
        )


def run_layers(layers: nn.ModuleList, tokens: Tensor, layout: Layout) -> Tensor:
    """Run layers one after the other; the last one may compute first tokens alone."""
    inner, last = layout.before_the_end, len(layers) - 1
    for number, layer in enumerate(layers):
        layout.note(tokens)
        tokens = layer(tokens, layout if number == last else inner)
    return tokens


class Encoder(NamedInputModule):
    """The layers of BERT, RoBERTa, XLM-R and DistilBERT; each has separate parameters.

    Args:
        config: Number of layers and their settings.
        names: The places of the parts of a layer.
    """

    def __init__(self, config: EncoderConfig, names: LayerNames = BERT_NAMES) -> None:
        super().__init__()
        self.layer = nn.ModuleList(
            TransformerLayer(config, names) for _ in range(config.num_hidden_layers)
        )

    def forward_named(self, tokens: Tensor, refs: Refs) -> Tensor:
        """Run all layers.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            refs: The layout.
        """
        return run_layers(self.layer, tokens, layout_of(refs).in_runs(tokens.dtype))


# --- Heads -----------------------------------------------------------------------------------


def first_token(states: Tensor) -> Tensor:
    """``[B, S, H]`` to ``[B, H]``: the state of the first token of every row."""
    return states[:, 0]


class MeanOfTokens(NamedInputModule):
    """The mean of the states of a row's tokens, without padding."""

    def forward_named(self, states: Tensor, refs: Refs) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``.

        Args:
            states: States.
            refs: ``attention_mask``, ``[B, S]`` or ``[B, 1, 1, S]``: 0 for padding; None for no
                padding.

        Raises:
            ValueError: The mask does not say which tokens count.
        """
        mask: Tensor | None = refs[MASK]
        if mask is None:
            return states.mean(1)
        if mask.dim() == 4 and mask.shape[1:3] == (1, 1) and not mask.is_floating_point():
            mask = mask[:, 0, 0]
        if mask.dim() != 2:
            raise ValueError(
                f"attention_mask has shape {list(mask.shape)}: a classifier that averages tokens "
                "takes [B, S], 0 for padding"
            )
        counts = (mask != 0).to(states.dtype)
        # A row without any token has the mean zero.
        total = counts.sum(1, keepdim=True).clamp(min=1)
        return (states * counts[..., None]).sum(1) / total


class Pooler(nn.Module):
    """``tanh(dense(first token))``, which represents the whole row.

    Args:
        width: H.
        dropout: Dropout of the first token.
        activate: Name of the activation.
    """

    def __init__(self, width: int, dropout: float = 0.0, activate: str = "tanh") -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.dropout = dropout
        self.activation = ACTIVATIONS[activate]

    def forward(self, states: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``."""
        state = dropout(states[:, 0], self.dropout, self.training)
        return self.activation(self.dense(state))


class Part(NamedTuple):
    """One step of a model.

    Attributes:
        module: A module, or a function of a tensor.
        name: Its name in a checkpoint; None for a step without weights.
        using: Further values that it reads.
    """

    module: ModuleLike
    name: str | None = None
    using: tuple[str, ...] = ()


Parts: TypeAlias = tuple[Part, ...]


def classifier(config: EncoderConfig, dropout: float) -> Parts:
    """Dropout and the projection to the classes."""
    last = nn.Linear(config.hidden_size, config.num_labels)
    return Part(nn.Dropout(dropout)), Part(last, "classifier")


class Decoder(nn.Module):
    """Turns states into a score per word, with a table of words, usually that of the encoder.

    Args:
        config: Number of words, width of the states and the LayerNorm.
        table: The width of the table.
        activate: Name of the activation; None for that of the layers.
        dense: Name of the first projection.
        norm: Name of the LayerNorm.

    Attributes:
        decoder: The table and the bias in use. If they are tied, they are the same objects as the
            encoder's table and :attr:`bias`.
        bias: ``[V]``.
    """

    def __init__(
        self,
        config: EncoderConfig,
        table: int,
        *,
        activate: str | None = None,
        dense: str = "dense",
        norm: str = "LayerNorm",
    ) -> None:
        super().__init__()
        place(self, dense, nn.Linear(config.hidden_size, table))
        place(self, norm, nn.LayerNorm(table, eps=config.layer_norm_eps))
        self.decoder = nn.Linear(table, config.vocab_size)
        self.bias = nn.Parameter(self.decoder.bias.detach().clone())
        self.activation = ACTIVATIONS[activate or config.hidden_act]
        self.dense_name, self.norm_name = dense, norm

    def forward(self, states: Tensor) -> Tensor:
        """``[…, H]`` to ``[…, V]``."""
        dense, norm = at(self, self.dense_name), at(self, self.norm_name)
        logits: Tensor = self.decoder(norm(self.activation(dense(states))))
        return logits


class Named(nn.Sequential):
    """A module under one more name, as in checkpoints."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(name, module)
