"""What stands on top of an encoder."""

from __future__ import annotations

from enum import StrEnum


class HeadKind(StrEnum):
    """The heads a model can have; the value is the word of the command line.

    ``BASE`` is none: the encoder itself, with a pooler where it has one.
    """

    BASE = "base"
    SEQCLS = "seqcls"
    TOKCLS = "tokcls"
    QA = "qa"
    MLM = "mlm"

    @property
    def suffix(self) -> str:
        """How the class of such a model ends: ``ForMaskedLM``; ``Model`` for the encoder."""
        return _SUFFIXES[self]

    @classmethod
    def of_class(cls, name: str) -> HeadKind | None:
        """The head of a model class; None for a class ``…For…`` with another one.

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
