"""The kinds of heads on an encoder."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from flodl.hf.errors import UnsupportedModelError

if TYPE_CHECKING:
    from flodl.hf.config import EncoderConfig


class HeadKind(StrEnum):
    """The heads of a model; the value is the word on the command line.

    ``BASE`` means no head: the encoder alone, with a pooler if it has one.
    """

    BASE = "base"
    SEQCLS = "seqcls"
    TOKCLS = "tokcls"
    QA = "qa"
    MLM = "mlm"

    @property
    def suffix(self) -> str:
        """The end of the name of the class: ``ForMaskedLM``; ``Model`` for the encoder."""
        return _SUFFIXES[self]

    @property
    def labelled(self) -> bool:
        """Whether the outputs are named classes."""
        return self in (HeadKind.SEQCLS, HeadKind.TOKCLS)

    @classmethod
    def of_class(cls, name: str) -> HeadKind | None:
        """The head of a model class; None for a class ``…For…`` with an unknown head.

        Args:
            name: As in ``architectures``, ``BertForMaskedLM`` for instance.
        """
        for kind in cls:
            if name.endswith(kind.suffix):
                return kind
        return None if "For" in name else cls.BASE


_SUFFIXES = {
    HeadKind.BASE: "Model",
    HeadKind.SEQCLS: "ForSequenceClassification",
    HeadKind.TOKCLS: "ForTokenClassification",
    HeadKind.QA: "ForQuestionAnswering",
    HeadKind.MLM: "ForMaskedLM",
}


def named_head(config: EncoderConfig) -> HeadKind:
    """The head that a configuration names; the encoder if it names no class.

    Raises:
        UnsupportedModelError: flodl does not have this head.
    """
    name = config.architectures[0] if config.architectures else config.base_class_name
    kind = HeadKind.of_class(name)
    if kind is None:
        supported = ", ".join(f"…{one.suffix}" for one in HeadKind)
        raise UnsupportedModelError(
            f"architectures names {name}, and what can be exported are {supported}"
        )
    return kind


def saved_head(config: EncoderConfig) -> HeadKind:
    """The head of the class a checkpoint was saved from; the encoder if the class is unknown."""
    name = config.architectures[0] if config.architectures else ""
    return HeadKind.of_class(name) or HeadKind.BASE


def class_name(config: EncoderConfig, kind: HeadKind) -> str:
    """The class of a family with a head: ``BertForMaskedLM``, ``BertModel``."""
    return f"{config.class_prefix}{kind.suffix}"
