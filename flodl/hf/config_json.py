"""The configurations of the seven families, and ``AutoConfig``, which detects the family.

::

    config = AutoConfig.from_pretrained("bert-base-uncased")
    config = BertConfig.from_pretrained("folder", num_labels=5)
    config.hidden_dropout_prob = 0.0

Defaults are those of the classes in transformers; they apply to fields that a file lacks. Sizes
have no defaults, except those of DistilBERT.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from flodl.hf.configs.base import EncoderConfig, config_of, json_text, parse_object
from flodl.hf.configs.deberta import DebertaV2Config
from flodl.hf.configs.fields import (
    MOST_LAYERS,
    WIDEST,
    activation_name,
    amount,
    flag,
    rate,
    refusal,
    whole,
)
from flodl.hf.configs.modernbert import ModernBertConfig
from flodl.hf.errors import ConfigError, UnsupportedModelError

__all__ = [
    "AlbertConfig",
    "AutoConfig",
    "BertConfig",
    "DebertaV2Config",
    "DistilBertConfig",
    "EncoderConfig",
    "ModernBertConfig",
    "RobertaConfig",
    "XLMRobertaConfig",
    "json_text",
]


class BertConfig(EncoderConfig):
    """BERT (https://arxiv.org/abs/1810.04805).

    Attributes:
        classifier_dropout: Dropout before the classifier; ``hidden_dropout_prob`` if the file has
            no value.
    """

    model_type: ClassVar[str] = "bert"
    prefix: ClassVar[str] = "bert"
    class_prefix: ClassVar[str] = "Bert"

    classifier_dropout: float = rate(default=None, nullable=True, inherits="hidden_dropout_prob")


class _RobertaFamily(EncoderConfig):
    """RoBERTa and XLM-RoBERTa; they differ only in their vocabulary."""

    prefix: ClassVar[str] = "roberta"

    pad_token_id: int | None = whole(default=1, least=0, nullable=True)
    classifier_dropout: float = rate(default=None, nullable=True, inherits="hidden_dropout_prob")

    def _check(self, data: Mapping[str, Any], origin: str) -> None:  # noqa: ARG002
        if self.pad_token_id is None:
            raise refusal(
                origin, "pad_token_id", None, "a word id: positions are counted from the one after"
            )
        if self.pad_token_id + 1 >= self.max_position_embeddings:
            raise refusal(
                origin,
                "max_position_embeddings",
                self.max_position_embeddings,
                f"above {self.pad_token_id + 1}: positions begin after 'pad_token_id', which is "
                f"{self.pad_token_id}",
            )


class RobertaConfig(_RobertaFamily):
    """RoBERTa (https://arxiv.org/abs/1907.11692).

    Positions begin at ``pad_token_id + 1``; the rows before that in the position table hold no
    token.

    Attributes:
        classifier_dropout: Dropout in the classifier; ``hidden_dropout_prob`` if the file has no
            value.
    """

    model_type: ClassVar[str] = "roberta"
    class_prefix: ClassVar[str] = "Roberta"


class XLMRobertaConfig(_RobertaFamily):
    """XLM-RoBERTa (https://arxiv.org/abs/1911.02116): RoBERTa with words of 100 languages.

    Attributes:
        classifier_dropout: Dropout in the classifier; ``hidden_dropout_prob`` if the file has no
            value.
    """

    model_type: ClassVar[str] = "xlm-roberta"
    class_prefix: ClassVar[str] = "XLMRoberta"


_DISTILBERT_SPELLINGS: Final = (
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
)


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

    def _check(self, data: Mapping[str, Any], origin: str) -> None:
        for own, other in _DISTILBERT_SPELLINGS:
            first, second = data.get(own), data.get(other)
            if None not in (first, second) and first != second:
                raise ConfigError(
                    f"{origin}: {own!r} is {first!r:.40}, but {other!r}, which means the same, "
                    f"is {second!r:.40}; remove the wrong one"
                )


class AlbertConfig(EncoderConfig):
    """ALBERT (https://arxiv.org/abs/1909.11942): narrow word table, shared layer weights.

    Attributes:
        embedding_size: Width of the tables, E.
        num_hidden_groups: Number of groups of layers; each group has separate weights.
        inner_group_num: Layers inside a group.
        classifier_dropout: Dropout before the classifier, ``classifier_dropout_prob`` in the file.
    """

    model_type: ClassVar[str] = "albert"
    prefix: ClassVar[str] = "albert"
    class_prefix: ClassVar[str] = "Albert"

    embedding_size: int = whole(most=WIDEST)
    hidden_act: str = activation_name(default="gelu_new")
    hidden_dropout_prob: float = rate(default=0.0)
    attention_probs_dropout_prob: float = rate(default=0.0)
    layer_norm_eps: float = amount(default=1e-12)
    num_hidden_groups: int = whole(default=1, most=MOST_LAYERS)
    inner_group_num: int = whole(default=1, most=MOST_LAYERS)
    classifier_dropout: float = rate(default=0.1, key="classifier_dropout_prob")

    def _check(self, data: Mapping[str, Any], origin: str) -> None:  # noqa: ARG002
        if self.num_hidden_groups * self.inner_group_num > MOST_LAYERS:
            raise refusal(
                origin,
                "num_hidden_groups",
                self.num_hidden_groups,
                f"at most {MOST_LAYERS} times 1 / 'inner_group_num', {self.inner_group_num}",
            )


_FAMILIES: Final[dict[str, type[EncoderConfig]]] = {
    family.model_type: family
    for family in (
        BertConfig,
        RobertaConfig,
        XLMRobertaConfig,
        DistilBertConfig,
        AlbertConfig,
        DebertaV2Config,
        ModernBertConfig,
    )
}


class AutoConfig:
    """Reads the configuration of any of the seven families, by its ``model_type``."""

    @staticmethod
    def from_json_str(text: str, *, origin: str = "config.json") -> EncoderConfig:
        """Read the family's configuration from the text of a ``config.json``.

        Args:
            text: A JSON object.
            origin: The name of the text in messages.

        Raises:
            UnsupportedModelError: ``model_type`` is absent or none of the seven.
            ConfigError: The text is not a JSON object, or a field has an impossible value.
        """
        return _of_family(parse_object(text, origin), origin)

    @staticmethod
    def from_pretrained(src: str | os.PathLike[str], **options: Any) -> EncoderConfig:
        """Read the family's configuration from a directory or a repository, without weights.

        Args:
            src: A directory with a ``config.json``, or the name of a repository on the Hub.
            options: See :meth:`EncoderConfig.from_pretrained`.

        Raises:
            UnsupportedModelError: ``model_type`` is absent or none of the seven.
            ConfigError: The text is not a JSON object, or a field has an impossible value.
            FileNotFoundError: The directory does not exist, or it has no ``config.json``.
            HubError: The repository or its ``config.json`` cannot be downloaded.
        """
        return _of_family(*config_of(src, options))


def _of_family(
    data: dict[str, Any], origin: str, fields: Mapping[str, Any] | None = None
) -> EncoderConfig:
    known = ", ".join(_FAMILIES)
    if "model_type" not in data:
        raise UnsupportedModelError(
            f"{origin}: 'model_type' is missing; flodl has the families {known}"
        )
    named = data["model_type"]
    family = _FAMILIES.get(named) if isinstance(named, str) else None
    if family is None:
        raise UnsupportedModelError(
            f"{origin}: 'model_type' is {named!r:.80}; flodl has the families {known}"
        )
    return family._from_mapping(data, origin, fields)
