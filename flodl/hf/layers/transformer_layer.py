"""The layer that five of the seven families share; only the names of its parts differ."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from flodl.graph.modules import NamedInputModule
from flodl.hf.configs.base import EncoderConfig
from flodl.hf.layers.activations import activation
from flodl.hf.layers.attention import attend_tokens
from flodl.hf.layers.dropout import dropout
from flodl.hf.layers.layout import Layout, Refs, layout_of


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
        width, inner = config.hidden_size, config.intermediate_size
        parts: dict[str, nn.Module] = {
            "query": nn.Linear(width, width),
            "key": nn.Linear(width, width),
            "value": nn.Linear(width, width),
            "out": nn.Linear(width, width),
            "attention_norm": nn.LayerNorm(width, eps=config.layer_norm_eps),
            "up": nn.Linear(width, inner),
            "down": nn.Linear(inner, width),
            "output_norm": nn.LayerNorm(width, eps=config.layer_norm_eps),
        }
        for field in fields(names):
            place(self, getattr(names, field.name), parts[field.name])
        self.heads = config.num_attention_heads
        self.attention_dropout = config.attention_probs_dropout_prob
        self.dropout = config.hidden_dropout_prob
        self.output_dropout = self.dropout if output_dropout else 0.0
        self.activation = activation(config.hidden_act)
        self.names = names

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Run the layer.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            layout: Their layout.

        Returns:
            Like ``tokens``; ``[B, H]``, the first token of every row, if only that is used.
        """
        names = self.names
        asking = layout.firsts(tokens) if layout.ends_first else tokens
        query, key, value = (at(self, path) for path in (names.query, names.key, names.value))
        p = self.attention_dropout if self.training else 0.0
        attended = at(self, names.out)(
            attend_tokens(query(asking), key(tokens), value(tokens), self.heads, layout, p)
        )
        attended = dropout(attended, self.dropout, self.training)
        tokens = at(self, names.attention_norm)(asking + attended)
        changed = at(self, names.down)(self.activation(at(self, names.up)(tokens)))
        changed = dropout(changed, self.output_dropout, self.training)
        normed: Tensor = at(self, names.output_norm)(tokens + changed)
        return normed


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
        layout = layout_of(refs).in_runs(tokens.dtype)
        inner, last = layout.before_the_end, len(self.layer) - 1
        for number, layer in enumerate(self.layer):
            layout.note(tokens)
            tokens = layer(tokens, layout if number == last else inner)
        return tokens
