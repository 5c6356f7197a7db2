"""Heads: the nodes of a graph that turn the states of an encoder into answers."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from flodl.graph import FlowBuilder
from flodl.hf.activations import activation
from flodl.hf.config_json import (
    AlbertConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    EncoderConfig,
    ModernBertConfig,
)
from flodl.hf.models.dropout import dropout
from flodl.hf.models.initial import drawn_from
from flodl.hf.models.layout import MASK
from flodl.hf.models.modernbert import (
    MeanOfTokens,
    PredictionHead,
    cut_at_output,
    cut_of_classifier,
)
from flodl.hf.models.transformer_layer import at, place

Widths = tuple[int, int]


def first_token(states: Tensor) -> Tensor:
    """``[B, S, H]`` to ``[B, H]``: the state of the first token of every row."""
    return states[:, 0]


class ClassificationHead(nn.Module):
    """RoBERTa's classifier: a hidden layer between the first token and the classes.

    Args:
        width: H.
        labels: Number of classes.
        dropout: Dropout before both layers.
    """

    def __init__(self, width: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, labels)
        self.dropout = dropout

    def forward(self, state: Tensor) -> Tensor:
        """``[B, H]`` to ``[B, labels]``."""
        state = dropout(state, self.dropout, self.training)
        state = self.dense(state).tanh()
        logits: Tensor = self.out_proj(dropout(state, self.dropout, self.training))
        return logits


class ContextPooler(nn.Module):
    """DeBERTa's pooler, which belongs to the classifier, not to the encoder.

    Args:
        config: Width, dropout and activation.
    """

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.pooler_hidden_size, config.pooler_hidden_size)
        self.dropout = config.pooler_dropout
        self.activation = activation(config.pooler_hidden_act)

    def forward(self, states: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``."""
        state = dropout(states[:, 0], self.dropout, self.training)
        return self.activation(self.dense(state))


def sequence_classifier(flow: FlowBuilder, config: EncoderConfig, labels: int) -> None:
    """Append the head for one label per row: ``[B, labels]``.

    Args:
        flow: Ends at ``pooler_output [B, H]`` for BERT and ALBERT, at the states otherwise.
        config: Its family decides on the layers.
        labels: Number of classes.
    """
    width = config.hidden_size
    match config.model_type:
        case "bert" | "albert":
            _classifier(flow, config, labels, cast("BertConfig", config).classifier_dropout)
        case "roberta" | "xlm-roberta":
            dropout = cast("BertConfig", config).classifier_dropout
            flow.through(first_token)
            flow.through(ClassificationHead(width, labels, dropout), name="classifier")
        case "distilbert":
            flow.through(first_token)
            flow.through(nn.Linear(width, width), name="pre_classifier").through(nn.ReLU())
            dropout = cast("DistilBertConfig", config).seq_classif_dropout
            _classifier(flow, config, labels, dropout)
        case "modernbert":
            modern = cast("ModernBertConfig", config)
            if modern.classifier_pooling == "mean":
                flow.through(MeanOfTokens()).using(MASK)
            else:
                flow.through(first_token)
            _modern_classifier(flow, modern, labels)
        case _:
            flow.through(ContextPooler(cast("DebertaV2Config", config)), name="pooler")
            _classifier(flow, config, labels, cast("DebertaV2Config", config).classifier_dropout)


def token_classifier(flow: FlowBuilder, config: EncoderConfig, labels: int) -> None:
    """Append the head for one label per token: ``[B, S, labels]``."""
    if isinstance(config, ModernBertConfig):
        _modern_classifier(flow, config, labels)
        return
    dropout = config.hidden_dropout_prob
    if config.model_type not in ("distilbert", "deberta-v2"):
        dropout = cast("BertConfig", config).classifier_dropout
    _classifier(flow, config, labels, dropout)


def _classifier(flow: FlowBuilder, config: EncoderConfig, labels: int, dropout: float) -> None:
    flow.through(nn.Dropout(dropout))
    flow.through(nn.Linear(config.hidden_size, labels), name="classifier")


def _modern_classifier(flow: FlowBuilder, config: ModernBertConfig, labels: int) -> None:
    """The classifier of a ModernBERT, the same for rows, tokens and answers."""
    flow.through(PredictionHead(config), name="head")
    flow.through(nn.Dropout(config.classifier_dropout))
    linear = nn.Linear(config.hidden_size, labels)
    flow.through(drawn_from(linear, cut_of_classifier(config)), name="classifier")


def span_finder(flow: FlowBuilder, config: EncoderConfig) -> None:
    """Append the head for the start and the end of an answer: ``[B, S, 2]``."""
    if isinstance(config, ModernBertConfig):
        _modern_classifier(flow, config, 2)
        return
    if config.model_type == "distilbert":
        flow.through(nn.Dropout(cast("DistilBertConfig", config).qa_dropout))
    flow.through(nn.Linear(config.hidden_size, 2), name="qa_outputs")


# --- Masked words --------------------------------------------------------------------------


class Decoder(nn.Module):
    """Turns states into a score per word, with a table of words, usually that of the encoder.

    Args:
        widths: H and the width of the table.
        vocab: V.
        norm_eps: Epsilon of the LayerNorm.
        activate: Name of the activation.
        dense: Name of the first projection.
        norm: Name of the LayerNorm.

    Attributes:
        decoder: The table and the bias in use. If they are tied, they are the same objects as the
            encoder's table and :attr:`bias`.
        bias: ``[V]``.
    """

    def __init__(
        self,
        widths: Widths,
        vocab: int,
        *,
        norm_eps: float,
        activate: str,
        dense: str = "dense",
        norm: str = "LayerNorm",
    ) -> None:
        super().__init__()
        place(self, dense, nn.Linear(*widths))
        place(self, norm, nn.LayerNorm(widths[1], eps=norm_eps))
        self.decoder = nn.Linear(widths[1], vocab)
        self.bias = nn.Parameter(self.decoder.bias.detach().clone())
        self.activation = activation(activate)
        self.dense_name, self.norm_name = dense, norm

    def forward(self, states: Tensor) -> Tensor:
        """``[…, H]`` to ``[…, V]``."""
        dense, norm = at(self, self.dense_name), at(self, self.norm_name)
        logits: Tensor = self.decoder(norm(self.activation(dense(states))))
        return logits


def word_decoder(flow: FlowBuilder, config: EncoderConfig) -> None:
    """Append the head for the words at masks: ``[B, S, V]``; nothing is tied yet."""
    width, vocab = config.hidden_size, config.vocab_size
    eps, act = config.layer_norm_eps, config.hidden_act
    match config.model_type:
        case "distilbert":
            flow.through(nn.Linear(width, width), name="vocab_transform")
            flow.through(activation(act))
            flow.through(nn.LayerNorm(width, eps=eps), name="vocab_layer_norm")
            flow.through(nn.Linear(width, vocab), name="vocab_projector")
        case "roberta" | "xlm-roberta":
            # Always the exact gelu, independent of the activation of the layers.
            decoder = Decoder(
                (width, width), vocab, norm_eps=eps, activate="gelu", norm="layer_norm"
            )
            flow.through(decoder, name="lm_head")
        case "albert":
            widths = (width, cast("AlbertConfig", config).embedding_size)
            flow.through(Decoder(widths, vocab, norm_eps=eps, activate=act), name="predictions")
        case "modernbert":
            modern = cast("ModernBertConfig", config)
            linear = nn.Linear(width, vocab, bias=modern.decoder_bias)
            flow.through(PredictionHead(modern), name="head")
            flow.through(drawn_from(linear, cut_at_output(modern)), name="decoder")
        case "deberta-v2" if not cast("DebertaV2Config", config).legacy:
            decoder = Decoder((width, width), vocab, norm_eps=eps, activate=act)
            flow.through(_Named("lm_head", decoder), name="lm_predictions")
        case _:
            table = getattr(config, "embedding_size", width)
            decoder = Decoder(
                (width, table),
                vocab,
                norm_eps=eps,
                activate=act,
                dense="transform.dense",
                norm="transform.LayerNorm",
            )
            flow.through(_Named("predictions", decoder), name="cls")


class _Named(nn.Sequential):
    """A module under one more name, as in checkpoints."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(name, module)
