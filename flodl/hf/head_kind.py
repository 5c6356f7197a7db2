"""The kinds of heads on an encoder."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Self

from flodl.hf.errors import UnsupportedModelError

if TYPE_CHECKING:
    from flodl.hf.config import EncoderConfig


class HeadKind(StrEnum):
    """The heads of a model; the value is the word on the command line.

    ``BASE`` means no head: the encoder alone, with a pooler if it has one.

    Attributes:
        suffix: The end of the name of the class: ``ForMaskedLM``; ``Model`` for the encoder.
        labelled: Whether the outputs are named classes.
    """

    BASE = "base", "Model"
    SEQCLS = "seqcls", "ForSequenceClassification", True
    TOKCLS = "tokcls", "ForTokenClassification", True
    QA = "qa", "ForQuestionAnswering"
    MLM = "mlm", "ForMaskedLM"

    suffix: str
    labelled: bool

    def __new__(cls, word: str, suffix: str = "", labelled: bool = False) -> Self:
        """Make one kind: its word, the end of its class, and whether it names classes."""
        kind = str.__new__(cls, word)
        kind._value_, kind.suffix, kind.labelled = word, suffix, labelled
        return kind

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


def named_head(config: EncoderConfig) -> HeadKind:
    """The head that a configuration names; the encoder if it names no class.

    Raises:
        UnsupportedModelError: flodl does not have this head.
    """
    name = config.architectures[0] if config.architectures else config.class_name(HeadKind.BASE)
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
