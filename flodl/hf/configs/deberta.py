"""The configuration of DeBERTa-v2 and v3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from flodl.hf.configs.base import EncoderConfig
from flodl.hf.configs.fields import (
    WIDEST,
    Refused,
    activation_name,
    amount,
    flag,
    parsed,
    rate,
    refusal,
    texts,
    whole,
)
from flodl.hf.errors import ConfigError

_DIRECTIONS = ("c2p", "p2c")
_NEGATIVE = -(2**31)


def _attention_types(value: Any) -> tuple[str, ...]:
    """The directions in use; other words have no effect, in transformers too."""
    if value is None:
        return ()
    words = _words(value) if isinstance(value, str) else texts(value)
    return tuple(word for word in dict.fromkeys(words) if word in _DIRECTIONS)


def _norms(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise Refused
    return _words(value)


def _words(value: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.lower().split("|"))


def _joined(value: Any) -> Any:
    whole_list = isinstance(value, tuple | list) and all(isinstance(word, str) for word in value)
    return "|".join(value) if whole_list else value


class DebertaV2Config(EncoderConfig):
    """DeBERTa-v2 and v3 (https://arxiv.org/abs/2006.03654, https://arxiv.org/abs/2111.09543).

    Attributes:
        embedding_size: Width of the tables, E; ``hidden_size`` if the file has no value.
        relative_attention: Whether scores depend on the distance of the tokens.
        position_buckets: Number of separate distances on each side; 0 or less: all are separate.
        max_relative_positions: Largest distance; ``max_position_embeddings`` if the file has no
            value above 0.
        pos_att_type: Which of ``c2p`` (content to position) and ``p2c`` add to the scores.
        share_att_key: Whether distances use the projections of the contents.
        norm_rel_ebd: Normalisation of the table of distances; only ``layer_norm`` has an effect.
        position_biased_input: Whether the embeddings add absolute positions.
        conv_kernel_size: Kernel size of the convolution beside the first layer; 0 for none.
        conv_groups: Groups of its channels; divides ``hidden_size``.
        conv_act: Name of the activation of the convolution.
        classifier_dropout: Dropout before the classifier, ``cls_dropout`` in the file;
            ``hidden_dropout_prob`` if the file has no value.
        pooler_hidden_size: Width of the sequence classifier's pooler; ``hidden_size``.
        pooler_dropout: Dropout before that pooler.
        pooler_hidden_act: Name of the activation of that pooler.
        legacy: Whether the masked-language head is the older one, with keys like those of BERT.
    """

    model_type: ClassVar[str] = "deberta-v2"
    prefix: ClassVar[str] = "deberta"
    class_prefix: ClassVar[str] = "DebertaV2"

    type_vocab_size: int = whole(default=0, least=0)
    layer_norm_eps: float = amount(default=1e-7)
    embedding_size: int = whole(default=None, most=WIDEST, nullable=True, inherits="hidden_size")
    relative_attention: bool = flag(default=False)
    position_buckets: int = whole(default=-1, least=_NEGATIVE)
    max_relative_positions: int = whole(default=-1, least=_NEGATIVE)
    pos_att_type: tuple[str, ...] = parsed(
        _attention_types, "null, a text like 'p2c|c2p' or a list of texts", default=None
    )
    share_att_key: bool = flag(default=False)
    norm_rel_ebd: tuple[str, ...] = parsed(
        _norms, "a text like 'layer_norm' or 'none'", default="none", write=_joined
    )
    position_biased_input: bool = flag(default=True)
    conv_kernel_size: int = whole(default=0, least=0, most=WIDEST)
    conv_groups: int = whole(default=1)
    conv_act: str = activation_name(default="tanh")
    classifier_dropout: float = rate(
        default=None, key="cls_dropout", nullable=True, inherits="hidden_dropout_prob"
    )
    pooler_hidden_size: int = whole(default=None, nullable=True, inherits="hidden_size")
    pooler_dropout: float = rate(default=0.0)
    pooler_hidden_act: str = activation_name(default="gelu")
    legacy: bool = flag(default=True)

    def for_masked_lm(self, *, legacy: bool) -> Self:
        """The configuration of a masked-language model with this head.

        The newer head decodes with the word table, and transformers must not tie anything else to
        the table. So ``tie_word_embeddings`` becomes false.

        Raises:
            ConfigError: The head is the newer one, and the tables are not as wide as the layers.
                This head has no projection in between.
        """
        if legacy:
            return self.replace(legacy=True)
        if self.embedding_size != self.hidden_size:
            raise ConfigError(
                f"a masked-language head with 'legacy' false needs 'embedding_size' "
                f"({self.embedding_size}) equal to 'hidden_size' ({self.hidden_size})"
            )
        return self.replace(legacy=False, tie_word_embeddings=False)

    def _derive(self, values: dict[str, Any]) -> None:
        if values["max_relative_positions"] < 1:
            values["max_relative_positions"] = values["max_position_embeddings"]

    def _check(self, data: Mapping[str, Any], origin: str) -> None:
        width, heads = self.hidden_size, self.num_attention_heads
        head_size = data.get("attention_head_size")
        if head_size is not None and (type(head_size) is not int or head_size != width // heads):
            raise refusal(
                origin, "attention_head_size", head_size, f"{width // heads}: {width} / {heads}"
            )
        if self.pooler_hidden_size != width:
            raise refusal(
                origin,
                "pooler_hidden_size",
                self.pooler_hidden_size,
                f"{width}, equal to 'hidden_size'",
            )
        self._check_convolution(origin)
        self._check_buckets(origin)

    def _check_convolution(self, origin: str) -> None:
        kernel, groups = self.conv_kernel_size, self.conv_groups
        if kernel and kernel % 2 == 0:
            raise refusal(
                origin, "conv_kernel_size", kernel, "odd, or the layer would not keep its length"
            )
        if kernel and self.hidden_size % groups:
            raise refusal(
                origin, "conv_groups", groups, f"a divisor of 'hidden_size', {self.hidden_size}"
            )

    def _check_buckets(self, origin: str) -> None:
        buckets = self.position_buckets
        if buckets == 1:
            raise refusal(origin, "position_buckets", buckets, "at least 2, or below 1 for none")
        if buckets > 0 and self.max_relative_positions - 1 == buckets // 2:
            raise refusal(
                origin,
                "max_relative_positions",
                self.max_relative_positions,
                f"other than {buckets // 2 + 1} with 'position_buckets' {buckets}: the buckets "
                "would divide by the logarithm of 1",
            )
