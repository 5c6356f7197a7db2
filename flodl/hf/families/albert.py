"""ALBERT (Lan et al., 2020): configuration, layers, names of weights and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from torch import Tensor, nn
from torch.nn import functional

from flodl.graph.modules import NamedInputModule
from flodl.hf.config import EncoderConfig
from flodl.hf.config_fields import (
    MOST_LAYERS,
    WIDEST,
    activation_name,
    amount,
    rate,
    refusal,
    whole,
)
from flodl.hf.errors import need
from flodl.hf.families.bert import SPECIAL
from flodl.hf.families.family import Family, Words
from flodl.hf.layers.encoder import (
    Decoder,
    Embeddings,
    LayerNames,
    Part,
    Parts,
    TransformerLayer,
    run_layers,
)
from flodl.hf.layers.layout import Layout, Refs, layout_of
from flodl.hf.text.files import TokenizerFiles, flag
from flodl.hf.text.sentencepiece import sentence_pieces, unigram

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_NAMES: Final = LayerNames(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    out="attention.dense",
    attention_norm="attention.LayerNorm",
    up="ffn",
    down="ffn_output",
    output_norm="full_layer_layer_norm",
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

    def _check(self, origin: str) -> None:
        super()._check(origin)
        if self.num_hidden_groups * self.inner_group_num > MOST_LAYERS:
            raise refusal(
                origin,
                "num_hidden_groups",
                self.num_hidden_groups,
                f"at most {MOST_LAYERS} times 1 / 'inner_group_num', {self.inner_group_num}",
            )


class FlatPooler(nn.Linear):
    """The pooler of ALBERT; its parameters have no further name segment."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``."""
        return functional.linear(states[:, 0], self.weight, self.bias).tanh()


class AlbertGroup(nn.Module):
    """Layers that run one after the other, every time the group runs.

    Args:
        config: Widths and the number of layers.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList(
            TransformerLayer(config, _NAMES, output_dropout=False)
            for _ in range(config.inner_group_num)
        )

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Run all layers of the group."""
        return run_layers(self.albert_layers, tokens, layout)


class AlbertEncoder(NamedInputModule):
    """Few layers that run many times (Lan et al., 2020).

    Args:
        config: Widths and the number of layers.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList(
            AlbertGroup(config) for _ in range(config.num_hidden_groups)
        )
        self.times = config.num_hidden_layers

    def forward_named(self, tokens: Tensor, refs: Refs) -> Tensor:
        """Run all groups as often as the model has layers.

        Args:
            tokens: ``[T, E]`` or ``[B, S, E]``.
            refs: The layout.
        """
        layout = layout_of(refs).in_runs(tokens.dtype)
        tokens = self.embedding_hidden_mapping_in(tokens)
        inner, groups = layout.before_the_end, len(self.albert_layer_groups)
        for time in range(self.times):
            group = self.albert_layer_groups[int(time / (self.times / groups))]
            tokens = group(tokens, layout if time == self.times - 1 else inner)
        return tokens


def _sentence_pieces(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:  # noqa: ARG001
    """ALBERT's SentencePiece vocabulary, from ``spiece.model``.

    Raises:
        CheckpointFormatError: The file is broken.
    """
    steps = need("tokenizers").normalizers
    model = sentence_pieces(files)
    before = [steps.Replace("``", '"'), steps.Replace("''", '"')]
    if not flag(files, "keep_accents", False):
        before += [steps.NFKD(), steps.StripAccents()]
    if flag(files, "do_lower_case", True):
        before.append(steps.Lowercase())
    return unigram(files, model, list(model.pieces), model.unk_id, before, by_words=True)


class Albert(Family[AlbertConfig]):
    """ALBERT."""

    config = AlbertConfig
    decoders = ("predictions.decoder",)
    heads = ("predictions",)
    pooler = FlatPooler
    classifies_pooled = True
    words = Words(
        ("spiece.model",),
        {**SPECIAL, "unk": "<unk>", "pad": "<pad>"},
        _sentence_pieces,
        ("do_lower_case", "keep_accents", "add_prefix_space"),
        mask_takes_space=True,
        framed_by_cls=True,
    )

    def embeddings(self, config: AlbertConfig) -> nn.Module:
        """Words, positions and segments, narrower than the layers."""
        return Embeddings(config, width=config.embedding_size)

    def encoder(self, config: AlbertConfig) -> nn.Module:
        """Groups of layers that run many times."""
        return AlbertEncoder(config)

    def word_decoder(self, config: AlbertConfig) -> Parts:
        """A projection to the narrow table of words."""
        return (Part(Decoder(config, config.embedding_size), "predictions"),)
