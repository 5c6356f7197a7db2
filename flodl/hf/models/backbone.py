"""The graph of an encoder, without a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from flodl.graph import Graph, NamedInputModule
from flodl.hf.config_json import (
    AlbertConfig,
    DebertaV2Config,
    EncoderConfig,
    ModernBertConfig,
)
from flodl.hf.models.deberta import DebertaEncoder
from flodl.hf.models.embeddings import DebertaEmbeddings, Embeddings
from flodl.hf.models.layout import (
    IDS,
    KEYS,
    LAYOUT,
    MASK,
    PLACES,
    POSITIONS,
    READ,
    RECORD,
    TYPES,
    ChoiceOfLayout,
    InRows,
    Keys,
    Layout,
    Refs,
    layout_of,
)
from flodl.hf.models.model_graph import ModelFlow
from flodl.hf.models.modernbert import ModernBertEmbeddings, ModernBertLayers, norm_of
from flodl.hf.models.transformer_layer import (
    ALBERT_NAMES,
    BERT_NAMES,
    DISTILBERT_NAMES,
    TransformerLayer,
)

INPUTS = (MASK, TYPES, POSITIONS, PLACES)
"""The inputs of every model after its ids, in this order; all are optional."""

POOLER_OUTPUT = "pooler_output"
LAST_HIDDEN_STATE = "last_hidden_state"

WITH_POOLER = ("bert", "roberta", "xlm-roberta", "albert")
"""Model types whose encoder can have a pooler."""


class Pooler(nn.Module):
    """``tanh(dense(first token))``, which represents the whole row.

    Args:
        width: H.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``."""
        pooled: Tensor = self.dense(states[:, 0])
        return pooled.tanh()


class FlatPooler(nn.Linear):
    """The pooler of ALBERT; its parameters have no further name segment."""

    def forward(self, states: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``."""
        return functional.linear(states[:, 0], self.weight, self.bias).tanh()


@dataclass(frozen=True, slots=True)
class _Parts:
    """The modules of a backbone, the name of the module with the layers, and a norm at the end."""

    embeddings: nn.Module
    encoder: nn.Module
    encoder_name: str = "encoder"
    final_norm: nn.Module | None = None


def build_backbone(
    config: EncoderConfig,
    *,
    pooler: bool,
    ends_pooled: bool = False,
    told_what_is_read: bool = False,
    all_read: bool = False,
) -> Graph:
    """Describe an encoder as a graph, labelled with its prefix.

    Inputs are ``input_ids [B, S]`` and the optional :data:`INPUTS`. The output is
    ``last_hidden_state [B, S, H]``; with a pooler, ``pooler_output [B, H]`` is a tag.

    Args:
        config: Any of the seven families.
        pooler: Whether there is a pooler; only if the family can have one.
        ends_pooled: Whether the output is that of the pooler.
        told_what_is_read: Whether there is a further input, the output of :class:`ReadPositions`.
        all_read: Whether results depend on the states of padding; see :class:`ChoiceOfLayout`.
    """
    parts = _parts(config)
    flow = ModelFlow.from_(nn.Identity())
    told = (READ,) if told_what_is_read else ()
    flow.entry("input_ids").tag(IDS, keep=False).input(*INPUTS, *told, RECORD, optional=True)
    flow.label(config.prefix)
    # In a DeBERTa, padding attends to all positions, so every row has something to attend to.
    looks_at_all = config.model_type == "deberta-v2"
    flow.fork(Keys(first_of_none=not looks_at_all)).using(MASK).tag(KEYS, keep=False)
    choice = ChoiceOfLayout(all_read=all_read, first_sees_all=told_what_is_read and looks_at_all)
    flow.fork(choice).using(PLACES, KEYS).tag(LAYOUT, keep=False)
    known = (IDS, KEYS, LAYOUT)
    masked = (*known, MASK, TYPES, POSITIONS)
    flow.through(parts.embeddings, name="embeddings").using(*masked)
    turned = (POSITIONS,) if config.model_type == "modernbert" else ()  # attention uses them
    flow.through(parts.encoder, name=parts.encoder_name).using(*known, *turned, *told, RECORD)
    if parts.final_norm is not None:
        flow.through(parts.final_norm, name="final_norm")
    flow.through(InRows(), name="in_rows").using(*known, *told).tag(LAST_HIDDEN_STATE)
    if pooler:
        width = config.hidden_size
        made = FlatPooler(width, width) if config.model_type == "albert" else Pooler(width)
        add = flow.through if ends_pooled else flow.fork
        add(made, name="pooler").tag(POOLER_OUTPUT)
    return flow.build()


def _parts(config: EncoderConfig) -> _Parts:
    width, eps = config.hidden_size, config.layer_norm_eps
    match config.model_type:
        case "bert":
            return _Parts(Embeddings(config, width=width, norm_eps=eps), Encoder(config))
        case "roberta" | "xlm-roberta":
            embeddings = Embeddings(config, width=width, norm_eps=eps, offset_positions=True)
            return _Parts(embeddings, Encoder(config))
        case "distilbert":
            embeddings = Embeddings(config, width=width, norm_eps=eps, fixed_positions=True)
            return _Parts(embeddings, Encoder(config), "transformer")
        case "albert":
            albert = cast("AlbertConfig", config)
            embeddings = Embeddings(config, width=albert.embedding_size, norm_eps=eps)
            return _Parts(embeddings, AlbertEncoder(albert))
        case "modernbert":
            modern = cast("ModernBertConfig", config)
            words, layers = ModernBertEmbeddings(modern), ModernBertLayers(modern)
            return _Parts(words, layers, "layers", norm_of(modern))
        case _:
            deberta = cast("DebertaV2Config", config)
            return _Parts(DebertaEmbeddings(deberta), DebertaEncoder(deberta))


class Encoder(NamedInputModule):
    """The layers of BERT, RoBERTa, XLM-R and DistilBERT; each has separate parameters.

    Args:
        config: Number of layers and their settings.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        names = DISTILBERT_NAMES if config.model_type == "distilbert" else BERT_NAMES
        self.layer = nn.ModuleList(
            TransformerLayer(config, names, norm_eps=config.layer_norm_eps)
            for _ in range(config.num_hidden_layers)
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


class AlbertGroup(nn.Module):
    """Layers that run one after the other, every time the group runs.

    Args:
        config: Widths and the number of layers.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList(
            TransformerLayer(
                config, ALBERT_NAMES, norm_eps=config.layer_norm_eps, output_dropout=False
            )
            for _ in range(config.inner_group_num)
        )

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Run all layers of the group."""
        inner, last = layout.before_the_end, len(self.albert_layers) - 1
        for number, layer in enumerate(self.albert_layers):
            layout.note(tokens)
            tokens = layer(tokens, layout if number == last else inner)
        return tokens


class AlbertEncoder(NamedInputModule):
    """Few layers that run many times (Lan et al., 2020).

    Args:
        config: Widths and the number of layers.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList(
            AlbertGroup(config) for _ in range(config.num_hidden_groups)
        )
        self.times = config.num_hidden_layers

    def forward_named(self, tokens: Tensor, refs: Refs) -> Tensor:
        """Run all groups as often as the model has layers.

        Args:
            tokens: ``[T, E]`` or ``[B, S, E]``.
            refs: The layout.
        """
        layout = layout_of(refs).in_runs(tokens.dtype)
        tokens = self.embedding_hidden_mapping_in(tokens)
        inner, groups = layout.before_the_end, len(self.albert_layer_groups)
        for time in range(self.times):
            group = self.albert_layer_groups[int(time / (self.times / groups))]
            tokens = group(tokens, layout if time == self.times - 1 else inner)
        return tokens
