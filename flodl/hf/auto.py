"""The model classes of the seven families, and those that detect the family."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, Unpack, cast

from flodl.graph import Graph
from flodl.hf.encoder_model import EncoderModel
from flodl.hf.families import (
    AlbertConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    EncoderConfig,
    ModernBertConfig,
    RobertaConfig,
    XLMRobertaConfig,
)
from flodl.hf.head_kind import HeadKind
from flodl.hf.opening import EncoderOpening, HeadOpening, Source, open_model
from flodl.hf.predict.answer import QuestionAnswerer
from flodl.hf.predict.fill_mask import MaskedLM
from flodl.hf.predict.sequence import SequenceClassifier
from flodl.hf.predict.tokens import TokenClassifier
from flodl.hf.pretrained import CLASSES, PretrainedModel
from flodl.hf.task_heads import Head


class BertModel(EncoderModel, config=BertConfig):
    """A BERT without a head."""


class BertForSequenceClassification(SequenceClassifier, config=BertConfig):
    """A BERT that gives one answer per text."""


class BertForTokenClassification(TokenClassifier, config=BertConfig):
    """A BERT that labels tokens."""


class BertForQuestionAnswering(QuestionAnswerer, config=BertConfig):
    """A BERT that finds answers in a text."""


class BertForMaskedLM(MaskedLM, config=BertConfig):
    """A BERT that predicts masked words."""


class RobertaModel(EncoderModel, config=RobertaConfig):
    """A RoBERTa without a head."""


class RobertaForSequenceClassification(SequenceClassifier, config=RobertaConfig):
    """A RoBERTa that gives one answer per text."""


class RobertaForTokenClassification(TokenClassifier, config=RobertaConfig):
    """A RoBERTa that labels tokens."""


class RobertaForQuestionAnswering(QuestionAnswerer, config=RobertaConfig):
    """A RoBERTa that finds answers in a text."""


class RobertaForMaskedLM(MaskedLM, config=RobertaConfig):
    """A RoBERTa that predicts masked words."""


class DistilBertModel(EncoderModel, config=DistilBertConfig):
    """A DistilBERT without a head."""


class DistilBertForSequenceClassification(SequenceClassifier, config=DistilBertConfig):
    """A DistilBERT that gives one answer per text."""


class DistilBertForTokenClassification(TokenClassifier, config=DistilBertConfig):
    """A DistilBERT that labels tokens."""


class DistilBertForQuestionAnswering(QuestionAnswerer, config=DistilBertConfig):
    """A DistilBERT that finds answers in a text."""


class DistilBertForMaskedLM(MaskedLM, config=DistilBertConfig):
    """A DistilBERT that predicts masked words."""


class XLMRobertaModel(EncoderModel, config=XLMRobertaConfig):
    """An XLM-RoBERTa without a head."""


class XLMRobertaForSequenceClassification(SequenceClassifier, config=XLMRobertaConfig):
    """An XLM-RoBERTa that gives one answer per text."""


class XLMRobertaForTokenClassification(TokenClassifier, config=XLMRobertaConfig):
    """An XLM-RoBERTa that labels tokens."""


class XLMRobertaForQuestionAnswering(QuestionAnswerer, config=XLMRobertaConfig):
    """An XLM-RoBERTa that finds answers in a text."""


class XLMRobertaForMaskedLM(MaskedLM, config=XLMRobertaConfig):
    """An XLM-RoBERTa that predicts masked words."""


class AlbertModel(EncoderModel, config=AlbertConfig):
    """An ALBERT without a head."""


class AlbertForSequenceClassification(SequenceClassifier, config=AlbertConfig):
    """An ALBERT that gives one answer per text."""


class AlbertForTokenClassification(TokenClassifier, config=AlbertConfig):
    """An ALBERT that labels tokens."""


class AlbertForQuestionAnswering(QuestionAnswerer, config=AlbertConfig):
    """An ALBERT that finds answers in a text."""


class AlbertForMaskedLM(MaskedLM, config=AlbertConfig):
    """An ALBERT that predicts masked words."""


class DebertaV2Model(EncoderModel, config=DebertaV2Config):
    """A DeBERTa v2 or v3 without a head."""


class DebertaV2ForSequenceClassification(SequenceClassifier, config=DebertaV2Config):
    """A DeBERTa v2 or v3 that gives one answer per text."""


class DebertaV2ForTokenClassification(TokenClassifier, config=DebertaV2Config):
    """A DeBERTa v2 or v3 that labels tokens."""


class DebertaV2ForQuestionAnswering(QuestionAnswerer, config=DebertaV2Config):
    """A DeBERTa v2 or v3 that finds answers in a text."""


class DebertaV2ForMaskedLM(MaskedLM, config=DebertaV2Config):
    """A DeBERTa v2 or v3 that predicts masked words."""


class ModernBertModel(EncoderModel, config=ModernBertConfig):
    """A ModernBERT without a head."""


class ModernBertForSequenceClassification(SequenceClassifier, config=ModernBertConfig):
    """A ModernBERT that gives one answer per text."""


class ModernBertForTokenClassification(TokenClassifier, config=ModernBertConfig):
    """A ModernBERT that labels tokens."""


class ModernBertForQuestionAnswering(QuestionAnswerer, config=ModernBertConfig):
    """A ModernBERT that finds answers in a text."""


class ModernBertForMaskedLM(MaskedLM, config=ModernBertConfig):
    """A ModernBERT that predicts masked words."""


H = TypeVar("H", bound=Head)


def class_of(config: EncoderConfig, kind: HeadKind) -> type[PretrainedModel]:
    """The class of a family with a head."""
    return CLASSES[config.model_type, kind]


class AutoModel:
    """Opens encoders of all seven families."""

    @staticmethod
    def from_pretrained(
        pretrained_model_name_or_path: Source, **options: Unpack[EncoderOpening]
    ) -> EncoderModel:
        """Open a checkpoint as an encoder without a head, as the class of its family.

        A head in the checkpoint is left out. The model has a pooler if the checkpoint has one.

        Args:
            pretrained_model_name_or_path: Directory, or repository on the Hub.
            options: See :class:`~flodl.hf.opening.EncoderOpening`.

        Raises:
            FlodlError: One of ``flodl.hf.errors``: the configuration, the weights or the Hub.
            FileNotFoundError: The directory does not exist, or files are missing in it.
        """
        opened = open_model(pretrained_model_name_or_path, HeadKind.BASE, options)
        return cast(
            "EncoderModel", class_of(opened.config, HeadKind.BASE)(opened.config, opened.graph)
        )

    @staticmethod
    def from_config(config: EncoderConfig, **options: Any) -> EncoderModel:
        """Build a model with newly drawn values, as the class of its family.

        Args:
            config: Of any family.
            **options: See :meth:`~flodl.hf.pretrained.PretrainedModel.from_config`.
        """
        family = cast("type[EncoderModel]", class_of(config, HeadKind.BASE))
        return family.from_config(config, **options)

    @staticmethod
    def from_pretrained_for_export(
        pretrained_model_name_or_path: Source, **options: Unpack[HeadOpening]
    ) -> Graph:
        """Open a checkpoint as the class it was saved from, to export it again.

        The first of its ``architectures`` says which head; an unknown name means no head. The model
        has a pooler only if the checkpoint has one.

        Args:
            pretrained_model_name_or_path: Directory, or repository on the Hub.
            options: See :class:`~flodl.hf.opening.HeadOpening`.

        Raises:
            FlodlError, FileNotFoundError: As for :meth:`from_pretrained`.
        """
        return open_model(pretrained_model_name_or_path, None, options).graph


class _AutoHead(Generic[H]):
    """Opens one kind of head for all seven families."""

    kind: ClassVar[HeadKind]

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Source, **options: Unpack[HeadOpening]
    ) -> H:
        """Open a checkpoint as the class of its family with this head.

        Args:
            pretrained_model_name_or_path: Directory, or repository on the Hub.
            options: See :class:`~flodl.hf.opening.HeadOpening`.

        Raises:
            FlodlError: One of ``flodl.hf.errors``: the configuration, the weights or the Hub.
            FileNotFoundError: The directory does not exist, or files are missing in it.
        """
        opened = open_model(pretrained_model_name_or_path, cls.kind, options)
        head = cast("type[H]", class_of(opened.config, cls.kind))
        return head.of_opened(opened, options.get("tokenizer"))

    @classmethod
    def from_config(cls, config: EncoderConfig, **options: Any) -> H:
        """Build a model with newly drawn values, as the class of its family.

        Args:
            config: Of any family; it says how many classes there are, else two.
            **options: See :meth:`~flodl.hf.pretrained.PretrainedModel.from_config`.
        """
        return cast("type[H]", class_of(config, cls.kind)).from_config(config, **options)


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
