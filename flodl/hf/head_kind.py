"""The kinds of heads on an encoder."""

from __future__ import annotations

from enum import StrEnum


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
