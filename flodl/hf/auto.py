"""Open a checkpoint of any of the six families."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar, Unpack, cast

from flodl.graph import Graph
from flodl.hf.families import HEADS
from flodl.hf.head_kind import HeadKind
from flodl.hf.opening import HeadOpening, Opening, Source, open_encoder, open_model
from flodl.hf.task_heads import (
    Head,
    MaskedLM,
    QuestionAnswerer,
    SequenceClassifier,
    TokenClassifier,
)

H = TypeVar("H", bound=Head)


class AutoModel:
    """Opens encoders of all six families."""

    @staticmethod
    def from_pretrained(src: Source, **options: Unpack[Opening]) -> Graph:
        """Open a checkpoint as an encoder that ends at ``last_hidden_state [B, S, H]``.

        A pooler or a head in the checkpoint is left out.

        Args:
            src: Directory, or repository on the Hub.
            options: See :class:`~flodl.hf.opening.Opening`.

        Raises:
            FlodlError: One of ``flodl.hf.errors``: the configuration, the weights or the Hub.
            FileNotFoundError: The directory does not exist, or files are missing in it.
        """
        return open_encoder(src, options, pooler=False)

    @staticmethod
    def from_pretrained_for_export(src: Source, **options: Unpack[HeadOpening]) -> Graph:
        """Open a checkpoint as the class it was saved from, to export it again.

        The first of its ``architectures`` says which head; an unknown name means no head. The model
        has a pooler only if the checkpoint has one.

        Args:
            src: Directory, or repository on the Hub.
            options: See :class:`~flodl.hf.opening.HeadOpening`.

        Raises:
            As for :meth:`from_pretrained`.
        """
        return open_model(src, None, options).graph

    @staticmethod
    def from_pretrained_for_export_with_head(
        src: Source, head: HeadKind | str, **options: Unpack[HeadOpening]
    ) -> Graph:
        """Open a checkpoint with the given head, to export it again.

        Args:
            src: Directory, or repository on the Hub.
            head: The kind of head.
            options: See :class:`~flodl.hf.opening.HeadOpening`.

        Raises:
            As for :meth:`from_pretrained`.
        """
        return open_model(src, HeadKind(head), options).graph


class _AutoHead(Generic[H]):
    """Opens one kind of head for all six families."""

    kind: ClassVar[HeadKind]

    @classmethod
    def from_pretrained(cls, src: Source, **options: Unpack[HeadOpening]) -> H:
        """Open a checkpoint as the class of its family with this head.

        Args:
            src: Directory, or repository on the Hub.
            options: See :class:`~flodl.hf.opening.HeadOpening`.

        Raises:
            FlodlError: One of ``flodl.hf.errors``: the configuration, the weights or the Hub.
            FileNotFoundError: The directory does not exist, or files are missing in it.
        """
        opened = open_model(src, cls.kind, options)
        head = HEADS[opened.config.model_type, cls.kind]
        return cast("H", head.of_opened(opened, options.get("tokenizer")))


class AutoModelForSequenceClassification(_AutoHead[SequenceClassifier]):
    """Opens models that give one answer per text."""

    kind = HeadKind.SEQCLS


class AutoModelForTokenClassification(_AutoHead[TokenClassifier]):
    """Opens models that label tokens."""

    kind = HeadKind.TOKCLS


class AutoModelForQuestionAnswering(_AutoHead[QuestionAnswerer]):
    """Opens models that find answers in a text."""

    kind = HeadKind.QA


class AutoModelForMaskedLM(_AutoHead[MaskedLM]):
    """Opens models that predict masked words."""

    kind = HeadKind.MLM
