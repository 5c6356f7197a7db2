"""ModernBERT: configuration, layers and names of weights.

Rotary positions, local and global attention in turn, gated feed-forward networks. Warner et al.,
"Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory Efficient, and
Long Context Finetuning and Inference" (2024).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from flodl.graph.modules import NamedInputModule
from flodl.hf.config import EncoderConfig
from flodl.hf.config_fields import (
    Plain,
    Refused,
    activation_name,
    amount,
    flag,
    one_of,
    parsed,
    rate,
    refusal,
    texts,
    whole,
)
from flodl.hf.errors import ConfigError
from flodl.hf.families.family import Family
from flodl.hf.layers.activations import ACTIVATIONS, dropout
from flodl.hf.layers.attention import Rotation, attend_tokens, nearby
from flodl.hf.layers.encoder import MeanOfTokens, Part, Parts, RecomputedLayer, first_token
from flodl.hf.layers.initial import Cut, drawn_from
from flodl.hf.layers.layout import IDS, MASK, POSITIONS, Layout, Refs, layout_of

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"

_TYPES: Final = "layer_types"
_EVERY: Final = "global_attn_every_n_layers"
_ROPE: Final = "rope_parameters"
_THETAS: Final = (("global_rope_theta", FULL), ("local_rope_theta", SLIDING))


def _alternating(layers: int, every: int) -> tuple[str, ...]:
    return tuple(SLIDING if number % every else FULL for number in range(layers))


def _every_of(types: tuple[str, ...]) -> int | None:
    """The smallest distance of full layers that gives these types; None if there is none."""
    layers = len(types)
    return next((n for n in range(1, layers + 1) if _alternating(layers, n) == types), None)


def _layer_types(value: Any) -> tuple[str, ...]:
    types = texts(value)
    if not set(types) <= {FULL, SLIDING}:
        raise Refused
    return types


def _theta(default: float, *, inherits: str | None = None) -> Any:
    # The smallest number above zero.
    read = Plain((int, float), math.ulp(0.0), sys.float_info.max, nullable=inherits is not None)
    return parsed(read, "a number above 0", default=default, inherits=inherits)


def _rotary(data: Mapping[str, Any], layer_type: str, origin: str) -> Mapping[str, Any]:
    """The part of ``rope_parameters`` for one type of layer; empty if there is none."""
    parameters = data.get(_ROPE) or {}
    held = parameters.get(layer_type) if isinstance(parameters, dict) else parameters
    held = {} if held is None else held
    name = f"{_ROPE}.{layer_type}"
    if not isinstance(held, dict):
        raise refusal(origin, name, held, "an object with 'rope_theta'")
    kind = held.get("rope_type", held.get("type", "default"))
    if kind != "default":
        raise refusal(origin, f"{name}.rope_type", kind, "'default'; others are not supported")
    return held


class ModernBertConfig(EncoderConfig):
    """ModernBERT (https://arxiv.org/abs/2412.13663).

    Its file uses other names: ``hidden_activation`` is ``hidden_act`` here, ``norm_eps``
    ``layer_norm_eps``, ``attention_dropout`` ``attention_probs_dropout_prob``, and ``mlp_dropout``
    ``hidden_dropout_prob``. It has no segments and no table of positions.

    Transformers 4 writes ``global_attn_every_n_layers``, ``global_rope_theta`` and
    ``local_rope_theta``. Transformers 5 writes ``layer_types`` and ``rope_parameters``. Both forms
    are read, and a file keeps its form. If a file has both, the form of transformers 5 counts.

    Attributes:
        global_attn_every_n_layers: Distance between layers that see the whole row; used if the file
            has no ``layer_types``.
        layer_types: ``full_attention`` or ``sliding_attention`` for each layer.
        local_attention: Width of the window of ``sliding_attention``. A token sees half of it to
            each side, rounded down.
        global_rope_theta: Base of the rotary positions of ``full_attention``.
        local_rope_theta: The same for ``sliding_attention``; ``global_rope_theta`` if it is null.
        embedding_dropout: Dropout after the embeddings.
        norm_bias: Whether LayerNorms have a bias.
        attention_bias: Whether the projections of attention have a bias.
        mlp_bias: Whether the projections of the feed-forward network have a bias.
        classifier_pooling: What a classifier of rows reads: ``cls``, the first token, or ``mean``.
        classifier_dropout: Dropout before the classifier.
        classifier_bias: Whether the projection of a head has a bias.
        classifier_activation: Name of the activation of a head.
        decoder_bias: Whether the decoder of a masked-language head has a bias.
        initializer_cutoff_factor: New weights lie within so many standard deviations; null for 3.
    """

    model_type: ClassVar[str] = "modernbert"
    prefix: ClassVar[str] = "model"
    class_prefix: ClassVar[str] = "ModernBert"

    hidden_act: str = activation_name(default="gelu", key="hidden_activation")
    hidden_dropout_prob: float = rate(default=0.0, key="mlp_dropout")
    attention_probs_dropout_prob: float = rate(default=0.0, key="attention_dropout")
    type_vocab_size: int = 0
    layer_norm_eps: float = amount(default=1e-5, key="norm_eps")
    pad_token_id: int | None = whole(default=50283, least=0, nullable=True)
    global_attn_every_n_layers: int = parsed(
        Plain((int,), 1, math.inf), "a whole number of at least 1", default=3
    )
    layer_types: tuple[str, ...] = parsed(
        _layer_types, f"a list of {FULL!r} and {SLIDING!r}, one per layer", default=None
    )
    local_attention: int = whole(default=128)
    global_rope_theta: float = _theta(160_000.0)
    local_rope_theta: float = _theta(10_000.0, inherits="global_rope_theta")
    embedding_dropout: float = rate(default=0.0)
    norm_bias: bool = flag(default=False)
    attention_bias: bool = flag(default=False)
    mlp_bias: bool = flag(default=False)
    classifier_pooling: str = one_of(("cls", "mean"), default="cls")
    classifier_dropout: float = rate(default=0.0)
    classifier_bias: bool = flag(default=False)
    classifier_activation: str = activation_name(default="gelu")
    decoder_bias: bool = flag(default=True)
    initializer_cutoff_factor: float | None = amount(default=2.0, nullable=True)

    @property
    def window(self) -> int:
        """How far a token sees to each side in a layer of ``sliding_attention``."""
        return self.local_attention // 2

    def _read(self, data: Mapping[str, Any], origin: str) -> dict[str, Any]:
        thetas = {key: _rotary(data, kind, origin).get("rope_theta") for key, kind in _THETAS}
        newer = {key: theta for key, theta in thetas.items() if theta is not None}
        values = super()._read({**data, **newer}, origin)
        if data.get(_TYPES) is None:
            values[_TYPES] = _alternating(values["num_hidden_layers"], values[_EVERY])
        return values

    def _with(self, data: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
        """Write the fields in the form of the file."""
        fields = dict(fields)
        if _EVERY in fields:
            data.pop(_TYPES, None)
        if _TYPES in fields:
            types = tuple(fields.pop(_TYPES))
            every = _every_of(types)
            if every is None:
                data.pop(_EVERY, None)
            elif _alternating(len(types), data.get(_EVERY) or 3) != types:
                data[_EVERY] = every
            if every is None or _TYPES in data:
                data[_TYPES] = list(types)
        for key, kind in _THETAS:
            held = data.get(_ROPE)
            held = held.get(kind) if isinstance(held, dict) else None
            if key in fields and isinstance(held, dict):
                held["rope_theta"] = fields[key]
                if key not in data:
                    del fields[key]
        return super()._with(data, fields)

    def _check(self, origin: str) -> None:
        super()._check(origin)
        data = self._data
        width, heads, layers = self.hidden_size, self.num_attention_heads, self.num_hidden_layers
        if len(self.layer_types) != layers:
            raise ConfigError(
                f"{origin}: {_TYPES!r} has {len(self.layer_types)} entries and 'num_hidden_layers' "
                f"is {layers}; change both together"
            )
        if width // heads % 2:
            raise refusal(
                origin,
                "num_attention_heads",
                heads,
                f"such that heads have an even width: rotary positions turn pairs, and {width} / "
                f"{heads} is odd",
            )
        head_dim = data.get("head_dim")
        if head_dim not in (None, width // heads):
            raise refusal(origin, "head_dim", head_dim, f"{width // heads}: {width} / {heads}")
        scaling = data.get("rope_scaling")
        if scaling not in (None, {}):
            raise refusal(
                origin, "rope_scaling", scaling, "null; scaled rotary positions are not supported"
            )


# --- Layers ------------------------------------------------------------------------------------

_USUAL_CUTOFF = 3.0


def _cut(config: ModernBertConfig, std: float) -> Cut:
    cutoff = config.initializer_cutoff_factor
    return Cut(std, std * (_USUAL_CUTOFF if cutoff is None else cutoff))


def cut_at_input(config: ModernBertConfig) -> Cut:
    """The distribution of word vectors, and of projections that follow a norm."""
    return _cut(config, config.initializer_range)


def cut_at_output(config: ModernBertConfig) -> Cut:
    """The distribution of projections whose results are added up over the layers."""
    return _cut(config, config.initializer_range / math.sqrt(2.0 * config.num_hidden_layers))


def norm_of(config: ModernBertConfig) -> nn.LayerNorm:
    """A LayerNorm of this model."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)


class ModernBertEmbeddings(NamedInputModule):
    """Word vectors, normalised, with dropout; positions come in with attention.

    Args:
        config: Sizes, dropout and the id of padding.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        words = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.tok_embeddings = drawn_from(words, cut_at_input(config))
        self.norm = norm_of(config)
        self.dropout = config.embedding_dropout

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Look up all vectors.

        Args:
            ids: ``[B, S]``.
            refs: The layout.

        Returns:
            ``[T, H]`` or ``[B, S, H]``.
        """
        vectors = self.norm(self.tok_embeddings(layout_of(refs).of_rows(ids)))
        return dropout(vectors, self.dropout, self.training)


class ModernBertAttention(nn.Module):
    """Attention whose scores depend on the distance of two tokens.

    Args:
        config: Widths, heads and dropout.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        width, bias = config.hidden_size, config.attention_bias
        self.heads = config.num_attention_heads
        self.Wqkv = drawn_from(nn.Linear(width, 3 * width, bias=bias), cut_at_input(config))
        self.Wo = drawn_from(nn.Linear(width, width, bias=bias), cut_at_output(config))
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, tokens: Tensor, layout: Layout, rotation: Rotation) -> Tensor:
        """Compute attention.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            layout: Their layout.
            rotation: The angles of their positions.

        Returns:
            Like ``tokens``; ``[B, H]``, the first token of every row, if only that is used.
        """
        mixed = self.Wqkv(tokens)
        mixed = mixed.view(*mixed.shape[:-1], 3, self.heads, tokens.shape[-1] // self.heads)
        query, key = rotation(mixed[..., :2, :, :]).flatten(-2).unbind(-2)
        value = mixed[..., 2, :, :].flatten(-2)
        if layout.ends_first:
            query = layout.firsts(query)
        p = self.dropout if self.training else 0.0
        attended = attend_tokens(query, key, value, self.heads, layout, p)
        return dropout(self.Wo(attended), self.dropout, self.training)


class GatedMLP(nn.Module):
    """A feed-forward network in which one half of the values scales the other (Shazeer, 2020).

    Args:
        config: Widths, activation and dropout.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.Wi = drawn_from(nn.Linear(width, 2 * inner, bias=bias), cut_at_input(config))
        self.Wo = drawn_from(nn.Linear(inner, width, bias=bias), cut_at_output(config))
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = config.hidden_dropout_prob

    def forward(self, tokens: Tensor) -> Tensor:
        """``[…, H]`` to ``[…, H]``."""
        values, gate = self.Wi(tokens).chunk(2, dim=-1)
        values = dropout(self.activation(values) * gate, self.dropout, self.training)
        changed: Tensor = self.Wo(values)
        return changed


class ModernBertLayer(RecomputedLayer):
    """Attention and a gated feed-forward network; both normalise their input (pre-norm).

    Args:
        config: Widths, heads, activation and dropout.
        number: Number of the layer. The first one has no norm before its attention, because the
            embeddings end with one.
    """

    def __init__(self, config: ModernBertConfig, number: int) -> None:
        super().__init__()
        self.attn_norm = norm_of(config) if number else nn.Identity()
        self.attn = ModernBertAttention(config)
        self.mlp_norm = norm_of(config)
        self.mlp = GatedMLP(config)

    def forward(self, tokens: Tensor, layout: Layout, rotation: Rotation) -> Tensor:
        """Run the layer.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            layout: Their layout, for this type of layer.
            rotation: The angles of their positions, for this type of layer.

        Returns:
            Like ``tokens``; ``[B, H]``, the first token of every row, if only that is used.
        """
        attended = self.attn(self.attn_norm(tokens), layout, rotation)
        if layout.ends_first:
            tokens, attended = layout.firsts(tokens), layout.firsts(attended)
        tokens = tokens + attended
        changed: Tensor = self.mlp(self.mlp_norm(tokens))
        return tokens + changed


class ModernBertLayers(NamedInputModule):
    """All layers, each under its number.

    Args:
        config: Widths, types and number of layers.

    Attributes:
        types: The type of attention of every layer, as in the configuration.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.window = config.window
        self.head_width = config.hidden_size // config.num_attention_heads
        self.thetas = (config.global_rope_theta, config.local_rope_theta)
        self.types = config.layer_types
        for number in range(config.num_hidden_layers):
            self.add_module(str(number), ModernBertLayer(config, number))

    def keep(self, numbers: Sequence[int]) -> None:
        """Remove all layers but these, which are numbered from 0 afterwards."""
        kept = [self._modules[str(number)] for number in numbers]
        self.types = tuple(self.types[number] for number in numbers)
        self._modules.clear()
        for number, layer in enumerate(kept):
            self.add_module(str(number), layer)

    def forward_named(self, tokens: Tensor, refs: Refs) -> Tensor:
        """Run all layers.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            refs: The layout, and ``position_ids [B or 1, S]`` or None.
        """
        whole = layout_of(refs).in_runs(tokens.dtype)
        layouts = (whole, nearby(whole, self.window, tokens))
        positions = _positions(refs, whole)
        rotations = tuple(
            Rotation(positions, theta, self.head_width, tokens.dtype) for theta in self.thetas
        )
        inner = tuple(layout.before_the_end for layout in layouts)
        layers: list[Any] = list(self._modules.values())
        for number, layer in enumerate(layers):
            whole.note(tokens)
            local = self.types[number] == SLIDING
            chosen = layouts if number == len(layers) - 1 else inner
            tokens = layer(tokens, chosen[local], rotations[local])
        return tokens


def _positions(refs: Refs, layout: Layout) -> Tensor:
    """The position of every token: ``[T]``, ``[B, S]``, or ``[1, S]`` for all rows."""
    given: Tensor | None = refs.get(POSITIONS)
    if given is None:
        given = torch.arange(layout.length, device=refs[IDS].device)[None]
    return layout.of_rows(given.expand(layout.rows, -1)) if layout.packed else given


class PredictionHead(nn.Module):
    """The part that all heads share: a projection, an activation and a norm.

    Args:
        config: Widths and the activation.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        dense = nn.Linear(width, width, bias=config.classifier_bias)
        self.dense = drawn_from(dense, cut_at_output(config))
        self.norm = norm_of(config)
        self.activation = ACTIVATIONS[config.classifier_activation]

    def forward(self, states: Tensor) -> Tensor:
        """``[…, H]`` to ``[…, H]``."""
        normed: Tensor = self.norm(self.activation(self.dense(states)))
        return normed


class ModernBert(Family[ModernBertConfig]):
    """ModernBERT, which always has a tokenizer.json."""

    config = ModernBertConfig
    encoder_name = "layers"
    pooler = None
    table = "embeddings.tok_embeddings"
    decoders = ("decoder",)
    heads = ("decoder", "head")
    finder = "classifier"
    turns_by_position = True

    def embeddings(self, config: ModernBertConfig) -> nn.Module:
        """Words."""
        return ModernBertEmbeddings(config)

    def encoder(self, config: ModernBertConfig) -> nn.Module:
        """Layers with rotary positions."""
        return ModernBertLayers(config)

    def final_norm(self, config: ModernBertConfig) -> nn.Module:
        """The norm that layers of this kind leave to the end."""
        return norm_of(config)

    def averages(self, config: ModernBertConfig) -> bool:
        """Whether a classifier of rows reads all their tokens."""
        return config.classifier_pooling == "mean"

    def row_classifier(self, config: ModernBertConfig) -> Parts:
        """The usual head, for the first token or the mean of all."""
        one = Part(MeanOfTokens(), None, (MASK,)) if self.averages(config) else Part(first_token)
        return one, *self.token_classifier(config)

    def token_classifier(self, config: ModernBertConfig) -> Parts:
        """The head of a ModernBERT, the same for rows and tokens."""
        return self._classifier(config, config.num_labels)

    def span_finder(self, config: ModernBertConfig) -> Parts:
        """The same with two classes: start and end."""
        return self._classifier(config, 2)

    def _classifier(self, config: ModernBertConfig, labels: int) -> Parts:
        linear = nn.Linear(config.hidden_size, labels)
        return (
            Part(PredictionHead(config), "head"),
            Part(nn.Dropout(config.classifier_dropout)),
            Part(drawn_from(linear, _cut(config, config.hidden_size**-0.5)), "classifier"),
        )

    def word_decoder(self, config: ModernBertConfig) -> Parts:
        """The usual head, then the table of words."""
        linear = nn.Linear(config.hidden_size, config.vocab_size, bias=config.decoder_bias)
        return (
            Part(PredictionHead(config), "head"),
            Part(drawn_from(linear, cut_at_output(config)), "decoder"),
        )
