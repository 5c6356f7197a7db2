"""The layer that five of the seven families share; only the names of its parts differ."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from flodl.hf.activations import activation
from flodl.hf.config_json import EncoderConfig
from flodl.hf.models.attention import attend_tokens
from flodl.hf.models.dropout import dropout
from flodl.hf.models.layout import Layout
from flodl.hf.models.recomputing import RecomputedLayer


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
DISTILBERT_NAMES = LayerNames(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    out="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    output_norm="output_layer_norm",
)
ALBERT_NAMES = LayerNames(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    out="attention.dense",
    attention_norm="attention.LayerNorm",
    up="ffn",
    down="ffn_output",
    output_norm="full_layer_layer_norm",
)


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
        norm_eps: Epsilon of both LayerNorms.
        output_dropout: Whether the output of the feed-forward network has dropout.
    """

    def __init__(
        self,
        config: EncoderConfig,
        names: LayerNames,
        *,
        norm_eps: float,
        output_dropout: bool = True,
    ) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        parts: dict[str, nn.Module] = {
            "query": nn.Linear(width, width),
            "key": nn.Linear(width, width),
            "value": nn.Linear(width, width),
            "out": nn.Linear(width, width),
            "attention_norm": nn.LayerNorm(width, eps=norm_eps),
            "up": nn.Linear(width, inner),
            "down": nn.Linear(inner, width),
            "output_norm": nn.LayerNorm(width, eps=norm_eps),
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
