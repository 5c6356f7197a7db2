"""DistilBERT (Sanh et al., 2019): configuration, layers and names of weights."""

from __future__ import annotations

from typing import ClassVar, Final

from torch import nn

from flodl.hf.config import EncoderConfig
from flodl.hf.config_fields import MOST_LAYERS, WIDEST, activation_name, flag, rate, whole
from flodl.hf.errors import ConfigError
from flodl.hf.families.family import Family
from flodl.hf.layers.activations import ACTIVATIONS
from flodl.hf.layers.encoder import (
    Embeddings,
    Encoder,
    LayerNames,
    Part,
    Parts,
    classifier,
    first_token,
)

_NAMES: Final = LayerNames(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    out="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    output_norm="output_layer_norm",
)

_OF_TWO_NAMES: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads")


class DistilBertConfig(EncoderConfig):
    """DistilBERT (https://arxiv.org/abs/1910.01108).

    Its file uses other names: ``dim`` is ``hidden_size`` here, ``n_layers``
    ``num_hidden_layers``, ``n_heads`` ``num_attention_heads``, ``hidden_dim``
    ``intermediate_size``, ``dropout`` ``hidden_dropout_prob``, ``attention_dropout``
    ``attention_probs_dropout_prob`` and ``activation`` ``hidden_act``. It has no segments. Its
    ``layer_norm_eps`` is always 1e-12, even if the file gives another value.

    Attributes:
        qa_dropout: Dropout before the question-answering head.
        seq_classif_dropout: Dropout in the sequence classifier.
        sinusoidal_pos_embds: How new positions are initialised; no effect on loaded ones.
    """

    model_type: ClassVar[str] = "distilbert"
    prefix: ClassVar[str] = "distilbert"
    class_prefix: ClassVar[str] = "DistilBert"

    vocab_size: int = whole(default=30522)
    hidden_size: int = whole(default=768, most=WIDEST, key="dim", aliases=("hidden_size",))
    num_hidden_layers: int = whole(
        default=6, most=MOST_LAYERS, key="n_layers", aliases=("num_hidden_layers",)
    )
    num_attention_heads: int = whole(default=12, key="n_heads", aliases=("num_attention_heads",))
    intermediate_size: int = whole(default=3072, most=WIDEST, key="hidden_dim")
    max_position_embeddings: int = whole(default=512)
    hidden_act: str = activation_name(default="gelu", key="activation")
    hidden_dropout_prob: float = rate(default=0.1, key="dropout")
    attention_probs_dropout_prob: float = rate(default=0.1, key="attention_dropout")
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-12
    qa_dropout: float = rate(default=0.1)
    seq_classif_dropout: float = rate(default=0.2)
    sinusoidal_pos_embds: bool = flag(default=False)

    def _check(self, origin: str) -> None:
        super()._check(origin)
        data = self._data
        for other in _OF_TWO_NAMES:
            own = self._specs[other].key
            first, second = data.get(own), data.get(other)
            if None not in (first, second) and first != second:
                raise ConfigError(
                    f"{origin}: {own!r} is {first!r:.40}, but {other!r}, which means the same, "
                    f"is {second!r:.40}; remove the wrong one"
                )


class DistilBert(Family[DistilBertConfig]):
    """DistilBERT, with the tokenizer of BERT."""

    config = DistilBertConfig
    encoder_name = "transformer"
    pooler = None
    token_dropout = "hidden_dropout_prob"
    decoders = ("vocab_projector",)
    heads = ("pre_classifier", "vocab_layer_norm", "vocab_projector", "vocab_transform")

    def embeddings(self, config: DistilBertConfig) -> nn.Module:
        """Words and positions."""
        return Embeddings(config, width=config.hidden_size, fixed_positions=True)

    def encoder(self, config: DistilBertConfig) -> nn.Module:
        """Layers with other names."""
        return Encoder(config, _NAMES)

    def row_classifier(self, config: DistilBertConfig) -> Parts:
        """Two projections of the first token."""
        width = config.hidden_size
        return (
            Part(first_token),
            Part(nn.Linear(width, width), "pre_classifier"),
            Part(nn.ReLU()),
            *classifier(config, config.seq_classif_dropout),
        )

    def span_finder(self, config: DistilBertConfig) -> Parts:
        """Dropout and a projection."""
        return Part(nn.Dropout(config.qa_dropout)), *super().span_finder(config)

    def word_decoder(self, config: DistilBertConfig) -> Parts:
        """A projection, then the table of words."""
        width = config.hidden_size
        return (
            Part(nn.Linear(width, width), "vocab_transform"),
            Part(ACTIVATIONS[config.hidden_act]),
            Part(nn.LayerNorm(width, eps=config.layer_norm_eps), "vocab_layer_norm"),
            Part(nn.Linear(width, config.vocab_size), "vocab_projector"),
        )
