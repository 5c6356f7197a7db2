"""The configuration of ModernBERT, in the forms of transformers 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from flodl.hf.configs.base import EncoderConfig
from flodl.hf.configs.fields import (
    FieldSpec,
    Refused,
    activation_name,
    amount,
    finite,
    flag,
    one_of,
    rate,
    refusal,
    texts,
    whole,
)
from flodl.hf.errors import ConfigError

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"

_TYPES: Final = "layer_types"
_EVERY: Final = "global_attn_every_n_layers"
_ROPE: Final = "rope_parameters"


def _alternating(layers: int, every: int) -> tuple[str, ...]:
    return tuple(SLIDING if number % every else FULL for number in range(layers))


def _every_of(types: tuple[str, ...]) -> int | None:
    """The smallest distance of full layers that gives these types; None if there is none."""
    layers = len(types)
    return next((n for n in range(1, layers + 1) if _alternating(layers, n) == types), None)


@dataclass(eq=False, slots=True)
class _Every(FieldSpec):
    """The distance between layers that see the whole row; it replaces a list of types."""

    def put(self, data: dict[str, Any], value: Any) -> None:
        data[self.key] = value
        data.pop(_TYPES, None)


@dataclass(eq=False, slots=True)
class _LayerTypes(FieldSpec):
    """The types of all layers: as a list, or from the distance that older files give."""

    def value_in(self, data: Mapping[str, Any], origin: str) -> Any:
        if data.get(self.key) is not None:
            return FieldSpec.value_in(self, data, origin)
        # Both numbers have been read and checked before.
        every = data.get(_EVERY)
        return _alternating(data["num_hidden_layers"], 3 if every is None else every)

    def put(self, data: dict[str, Any], value: Any) -> None:
        """Write the list, and for transformers 4 the distance, if one describes it."""
        types = tuple(value)
        every = _every_of(types)
        if every is None:
            data.pop(_EVERY, None)
        elif _alternating(len(types), data.get(_EVERY) or 3) != types:
            data[_EVERY] = every
        if every is None or self.key in data:
            data[self.key] = list(types)


@dataclass(eq=False, slots=True)
class _Theta(FieldSpec):
    """The base of rotary positions: a field of its own, or part of ``rope_parameters``."""

    layer_type: str = ""

    def value_in(self, data: Mapping[str, Any], origin: str) -> Any:
        held = self._held(data, origin)
        if held.get("rope_theta") is None:
            return FieldSpec.value_in(self, data, origin)
        return FieldSpec.value_in(self, {self.key: held["rope_theta"]}, origin)

    def put(self, data: dict[str, Any], value: Any) -> None:
        parameters = data.get(_ROPE)
        held = parameters.get(self.layer_type) if isinstance(parameters, dict) else None
        if isinstance(held, dict):
            held["rope_theta"] = self.write(value)
        if self.key in data or not isinstance(held, dict):
            data[self.key] = self.write(value)

    def _held(self, data: Mapping[str, Any], origin: str) -> Mapping[str, Any]:
        """The part of ``rope_parameters`` for this type of layer; empty if there is none."""
        parameters = data.get(_ROPE) or {}
        held = parameters.get(self.layer_type) if isinstance(parameters, dict) else parameters
        held = {} if held is None else held
        name = f"{_ROPE}.{self.layer_type}"
        if not isinstance(held, dict):
            raise refusal(origin, name, held, "an object with 'rope_theta'")
        kind = held.get("rope_type", held.get("type", "default"))
        if kind != "default":
            raise refusal(origin, f"{name}.rope_type", kind, "'default'; others are not supported")
        return held


def _theta(default: float, layer_type: str, *, inherits: str | None = None) -> Any:
    def read(value: Any) -> float | None:
        if value is None and inherits is not None:
            return None
        number = finite(value)
        if number <= 0.0:
            raise Refused
        return number

    return _Theta(
        read,
        "a number above 0",
        lambda value: value,
        "",
        (),
        default,
        inherits,
        layer_type=layer_type,
    )


def _every(default: int) -> Any:
    def read(value: Any) -> int:
        if type(value) is not int or value < 1:
            raise Refused
        return value

    allowed = "a whole number of at least 1"
    return _Every(read, allowed, lambda value: value, "", (), default, None)


def _layer_types() -> Any:
    def read(value: Any) -> tuple[str, ...]:
        types = texts(value)
        if not set(types) <= {FULL, SLIDING}:
            raise Refused
        return types

    allowed = f"a list of {FULL!r} and {SLIDING!r}, one per layer"
    return _LayerTypes(read, allowed, list, "", (), None, None)


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
    global_attn_every_n_layers: int = _every(3)
    layer_types: tuple[str, ...] = _layer_types()
    local_attention: int = whole(default=128)
    global_rope_theta: float = _theta(160_000.0, FULL)
    local_rope_theta: float = _theta(10_000.0, SLIDING, inherits="global_rope_theta")
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

    def _check(self, data: Mapping[str, Any], origin: str) -> None:
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
