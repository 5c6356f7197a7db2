"""The model classes of the six families, under the names that checkpoints use."""

from __future__ import annotations

from flodl.hf.config_json import (
    AlbertConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    RobertaConfig,
    XlmRobertaConfig,
)
from flodl.hf.encoder_model import EncoderModel, PooledEncoderModel
from flodl.hf.head_kind import HeadKind
from flodl.hf.task_heads import (
    Head,
    MaskedLM,
    QuestionAnswerer,
    SequenceClassifier,
    TokenClassifier,
)


class BertModel(PooledEncoderModel):
    """A BERT without a head."""

    config_class = BertConfig


class BertForSequenceClassification(SequenceClassifier):
    """A BERT that gives one answer per text."""

    config_class = BertConfig


class BertForTokenClassification(TokenClassifier):
    """A BERT that labels tokens."""

    config_class = BertConfig


class BertForQuestionAnswering(QuestionAnswerer):
    """A BERT that finds answers in a text."""

    config_class = BertConfig


class BertForMaskedLM(MaskedLM):
    """A BERT that predicts masked words."""

    config_class = BertConfig


class RobertaModel(PooledEncoderModel):
    """A RoBERTa without a head."""

    config_class = RobertaConfig


class RobertaForSequenceClassification(SequenceClassifier):
    """A RoBERTa that gives one answer per text."""

    config_class = RobertaConfig


class RobertaForTokenClassification(TokenClassifier):
    """A RoBERTa that labels tokens."""

    config_class = RobertaConfig


class RobertaForQuestionAnswering(QuestionAnswerer):
    """A RoBERTa that finds answers in a text."""

    config_class = RobertaConfig


class RobertaForMaskedLM(MaskedLM):
    """A RoBERTa that predicts masked words."""

    config_class = RobertaConfig


class DistilBertModel(EncoderModel):
    """A DistilBERT without a head."""

    config_class = DistilBertConfig


class DistilBertForSequenceClassification(SequenceClassifier):
    """A DistilBERT that gives one answer per text."""

    config_class = DistilBertConfig


class DistilBertForTokenClassification(TokenClassifier):
    """A DistilBERT that labels tokens."""

    config_class = DistilBertConfig


class DistilBertForQuestionAnswering(QuestionAnswerer):
    """A DistilBERT that finds answers in a text."""

    config_class = DistilBertConfig


class DistilBertForMaskedLM(MaskedLM):
    """A DistilBERT that predicts masked words."""

    config_class = DistilBertConfig


class XlmRobertaModel(PooledEncoderModel):
    """An XLM-RoBERTa without a head."""

    config_class = XlmRobertaConfig


class XlmRobertaForSequenceClassification(SequenceClassifier):
    """An XLM-RoBERTa that gives one answer per text."""

    config_class = XlmRobertaConfig


class XlmRobertaForTokenClassification(TokenClassifier):
    """An XLM-RoBERTa that labels tokens."""

    config_class = XlmRobertaConfig


class XlmRobertaForQuestionAnswering(QuestionAnswerer):
    """An XLM-RoBERTa that finds answers in a text."""

    config_class = XlmRobertaConfig


class XlmRobertaForMaskedLM(MaskedLM):
    """An XLM-RoBERTa that predicts masked words."""

    config_class = XlmRobertaConfig


class AlbertModel(PooledEncoderModel):
    """An ALBERT without a head."""

    config_class = AlbertConfig


class AlbertForSequenceClassification(SequenceClassifier):
    """An ALBERT that gives one answer per text."""

    config_class = AlbertConfig


class AlbertForTokenClassification(TokenClassifier):
    """An ALBERT that labels tokens."""

    config_class = AlbertConfig


class AlbertForQuestionAnswering(QuestionAnswerer):
    """An ALBERT that finds answers in a text."""

    config_class = AlbertConfig


class AlbertForMaskedLM(MaskedLM):
    """An ALBERT that predicts masked words."""

    config_class = AlbertConfig


class DebertaV2Model(EncoderModel):
    """A DeBERTa v2 or v3 without a head."""

    config_class = DebertaV2Config


class DebertaV2ForSequenceClassification(SequenceClassifier):
    """A DeBERTa v2 or v3 that gives one answer per text."""

    config_class = DebertaV2Config


class DebertaV2ForTokenClassification(TokenClassifier):
    """A DeBERTa v2 or v3 that labels tokens."""

    config_class = DebertaV2Config


class DebertaV2ForQuestionAnswering(QuestionAnswerer):
    """A DeBERTa v2 or v3 that finds answers in a text."""

    config_class = DebertaV2Config


class DebertaV2ForMaskedLM(MaskedLM):
    """A DeBERTa v2 or v3 that predicts masked words."""

    config_class = DebertaV2Config


XLMRobertaModel = XlmRobertaModel
XLMRobertaForSequenceClassification = XlmRobertaForSequenceClassification
XLMRobertaForTokenClassification = XlmRobertaForTokenClassification
XLMRobertaForQuestionAnswering = XlmRobertaForQuestionAnswering
XLMRobertaForMaskedLM = XlmRobertaForMaskedLM

MODELS: dict[str, type[EncoderModel]] = {
    model.config_class.model_type: model
    for model in (
        BertModel,
        RobertaModel,
        DistilBertModel,
        XlmRobertaModel,
        AlbertModel,
        DebertaV2Model,
    )
}
"""The class without a head, for each model type."""

HEADS: dict[tuple[str, HeadKind], type[Head]] = {
    (head.config_class.model_type, head.kind): head
    for head in (
        BertForSequenceClassification,
        BertForTokenClassification,
        BertForQuestionAnswering,
        BertForMaskedLM,
        RobertaForSequenceClassification,
        RobertaForTokenClassification,
        RobertaForQuestionAnswering,
        RobertaForMaskedLM,
        DistilBertForSequenceClassification,
        DistilBertForTokenClassification,
        DistilBertForQuestionAnswering,
        DistilBertForMaskedLM,
        XlmRobertaForSequenceClassification,
        XlmRobertaForTokenClassification,
        XlmRobertaForQuestionAnswering,
        XlmRobertaForMaskedLM,
        AlbertForSequenceClassification,
        AlbertForTokenClassification,
        AlbertForQuestionAnswering,
        AlbertForMaskedLM,
        DebertaV2ForSequenceClassification,
        DebertaV2ForTokenClassification,
        DebertaV2ForQuestionAnswering,
        DebertaV2ForMaskedLM,
    )
}
"""The class with a head, for each model type and kind of head."""
