"""All layers of an encoder, run one after the other."""

from __future__ import annotations

from torch import Tensor, nn

from flodl.graph import NamedInputModule
from flodl.hf.config_json import AlbertConfig, EncoderConfig
from flodl.hf.models.layout import Layout, Refs, layout_of
from flodl.hf.models.transformer_layer import (
    ALBERT_NAMES,
    BERT_NAMES,
    DISTILBERT_NAMES,
    TransformerLayer,
)


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
