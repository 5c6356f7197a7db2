"""The seven families of encoders, and their configurations.

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
from typing import Any, Final

from flodl.hf.config import EncoderConfig as EncoderConfig, config_of, parse_object
from flodl.hf.errors import UnsupportedModelError
from flodl.hf.families.albert import Albert, AlbertConfig as AlbertConfig
from flodl.hf.families.bert import Bert, BertConfig as BertConfig
from flodl.hf.families.deberta import DebertaV2, DebertaV2Config as DebertaV2Config
from flodl.hf.families.distilbert import DistilBert, DistilBertConfig as DistilBertConfig
from flodl.hf.families.family import Family
from flodl.hf.families.modernbert import ModernBert, ModernBertConfig as ModernBertConfig
from flodl.hf.families.roberta import (
    Roberta,
    RobertaConfig as RobertaConfig,
    XLMRoberta,
    XLMRobertaConfig as XLMRobertaConfig,
)

_ALL: Final[tuple[Family[Any], ...]] = (
    Bert(),
    Roberta(),
    XLMRoberta(),
    DistilBert(),
    Albert(),
    DebertaV2(),
    ModernBert(),
)
FAMILIES: Final = {family.config.model_type: family for family in _ALL}
"""The families by the ``model_type`` of their configurations."""


def family_of(config: EncoderConfig) -> Family[Any]:
    """The family of a model."""
    return FAMILIES[config.model_type]


class AutoConfig:
    """Reads the configuration of any of the seven families, by its ``model_type``."""

    @staticmethod
    def from_json_str(
        text: str, *, origin: str = "config.json", fields: Mapping[str, Any] | None = None
    ) -> EncoderConfig:
        """Read the family's configuration from the text of a ``config.json``.

        Args:
            text: A JSON object.
            origin: The name of the text in messages.
            fields: Fields to set in it.

        Raises:
            UnsupportedModelError: ``model_type`` is absent or none of the seven.
            ConfigError: The text is not a JSON object, or a field has an impossible value.
        """
        return _of_family(parse_object(text, origin), origin, fields)

    @staticmethod
    def for_model(model_type: str, **fields: Any) -> EncoderConfig:
        """Make the configuration of a family from its fields.

        Raises:
            UnsupportedModelError: ``model_type`` is none of the seven.
            ConfigError: A field is missing or has an impossible value.
        """
        return _of_family({"model_type": model_type}, "AutoConfig", fields)

    @staticmethod
    def from_pretrained(
        pretrained_model_name_or_path: str | os.PathLike[str], **options: Any
    ) -> EncoderConfig:
        """Read the family's configuration from a directory or a repository, without weights.

        Args:
            pretrained_model_name_or_path: A directory with a ``config.json``, or the name of a
                repository on the Hub.
            options: See :meth:`EncoderConfig.from_pretrained`.

        Raises:
            UnsupportedModelError: ``model_type`` is absent or none of the seven.
            ConfigError: The text is not a JSON object, or a field has an impossible value.
            FileNotFoundError: The directory does not exist, or it has no ``config.json``.
            HubError: The repository or its ``config.json`` cannot be downloaded.
        """
        return _of_family(*config_of(pretrained_model_name_or_path, options))


def _of_family(
    data: dict[str, Any], origin: str, fields: Mapping[str, Any] | None = None
) -> EncoderConfig:
    known = ", ".join(FAMILIES)
    if "model_type" not in data:
        raise UnsupportedModelError(
            f"{origin}: 'model_type' is missing; flodl has the families {known}"
        )
    named = data["model_type"]
    family = FAMILIES.get(named) if isinstance(named, str) else None
    if family is None:
        raise UnsupportedModelError(
            f"{origin}: 'model_type' is {named!r:.80}; flodl has the families {known}"
        )
    found: EncoderConfig = family.config._from_mapping(data, origin, fields)
    return found
