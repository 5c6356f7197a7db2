"""DeBERTa v2 and v3: configuration, layers, names of weights and tokenizer.

He et al., "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (2021) and, for shared
projections and log buckets, "DeBERTaV3" (2023). Scores of attention come from content and,
separately, from relative positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from flodl.graph.modules import NamedInputModule
from flodl.hf.config import EncoderConfig
from flodl.hf.config_fields import (
    WIDEST,
    Refused,
    activation_name,
    amount,
    flag,
    parsed,
    rate,
    refusal,
    texts,
    whole,
)
from flodl.hf.errors import ConfigError, need
from flodl.hf.families.bert import SPECIAL, below_cls
from flodl.hf.families.family import IDS, MASK, TYPES, Family, Words
from flodl.hf.layers.activations import ACTIVATIONS, dropout
from flodl.hf.layers.encoder import (
    BERT_NAMES,
    Decoder,
    Embeddings,
    Named,
    Part,
    Parts,
    Pooler,
    TransformerLayer,
    classifier,
    place,
)
from flodl.hf.layers.layout import POSITIONS, Layout, Refs, layout_of
from flodl.hf.layers.relative import DisentangledAttention, RelativeTable, relative_rows
from flodl.hf.text import files as setting
from flodl.hf.text.files import TokenizerFiles
from flodl.hf.text.sentencepiece import sentence_pieces, unigram

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_DIRECTIONS = ("c2p", "p2c")
_NEGATIVE = -(2**31)


def _attention_types(value: Any) -> tuple[str, ...]:
    """The directions in use; other words have no effect, in transformers too."""
    if value is None:
        return ()
    words = _words(value) if isinstance(value, str) else texts(value)
    return tuple(word for word in dict.fromkeys(words) if word in _DIRECTIONS)


def _norms(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise Refused
    return _words(value)


def _words(value: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.lower().split("|"))


def _joined(value: Any) -> Any:
    whole_list = isinstance(value, tuple | list) and all(isinstance(word, str) for word in value)
    return "|".join(value) if whole_list else value


class DebertaV2Config(EncoderConfig):
    """DeBERTa-v2 and v3 (https://arxiv.org/abs/2006.03654, https://arxiv.org/abs/2111.09543).

    Attributes:
        embedding_size: Width of the tables, E; ``hidden_size`` if the file has no value.
        relative_attention: Whether scores depend on the distance of the tokens.
        position_buckets: Number of separate distances on each side; 0 or less: all are separate.
        max_relative_positions: Largest distance; ``max_position_embeddings`` if the file has no
            value above 0.
        pos_att_type: Which of ``c2p`` (content to position) and ``p2c`` add to the scores.
        share_att_key: Whether distances use the projections of the contents.
        norm_rel_ebd: Normalisation of the table of distances; only ``layer_norm`` has an effect.
        position_biased_input: Whether the embeddings add absolute positions.
        conv_kernel_size: Kernel size of the convolution beside the first layer; 0 for none.
        conv_groups: Groups of its channels; divides ``hidden_size``.
        conv_act: Name of the activation of the convolution.
        classifier_dropout: Dropout before the classifier, ``cls_dropout`` in the file;
            ``hidden_dropout_prob`` if the file has no value.
        pooler_hidden_size: Width of the sequence classifier's pooler; ``hidden_size``.
        pooler_dropout: Dropout before that pooler.
        pooler_hidden_act: Name of the activation of that pooler.
        legacy: Whether the masked-language head is the older one, with keys like those of BERT.
    """

    model_type: ClassVar[str] = "deberta-v2"
    prefix: ClassVar[str] = "deberta"
    class_prefix: ClassVar[str] = "DebertaV2"

    type_vocab_size: int = whole(default=0, least=0)
    layer_norm_eps: float = amount(default=1e-7)
    embedding_size: int = whole(default=None, most=WIDEST, nullable=True, inherits="hidden_size")
    relative_attention: bool = flag(default=False)
    position_buckets: int = whole(default=-1, least=_NEGATIVE)
    max_relative_positions: int = whole(default=-1, least=_NEGATIVE)
    pos_att_type: tuple[str, ...] = parsed(
        _attention_types, "null, a text like 'p2c|c2p' or a list of texts", default=None
    )
    share_att_key: bool = flag(default=False)
    norm_rel_ebd: tuple[str, ...] = parsed(
        _norms, "a text like 'layer_norm' or 'none'", default="none", write=_joined
    )
    position_biased_input: bool = flag(default=True)
    conv_kernel_size: int = whole(default=0, least=0, most=WIDEST)
    conv_groups: int = whole(default=1)
    conv_act: str = activation_name(default="tanh")
    classifier_dropout: float = rate(
        default=None, key="cls_dropout", nullable=True, inherits="hidden_dropout_prob"
    )
    pooler_hidden_size: int = whole(default=None, nullable=True, inherits="hidden_size")
    pooler_dropout: float = rate(default=0.0)
    pooler_hidden_act: str = activation_name(default="gelu")
    legacy: bool = flag(default=True)

    def for_masked_lm(self, *, legacy: bool) -> Self:
        """The configuration of a masked-language model with this head.

        The newer head decodes with the word table, and transformers must not tie anything else to
        the table. So ``tie_word_embeddings`` becomes false.

        Raises:
            ConfigError: The head is the newer one, and the tables are not as wide as the layers.
                This head has no projection in between.
        """
        if legacy:
            return self.replace(legacy=True)
        if self.embedding_size != self.hidden_size:
            raise ConfigError(
                f"a masked-language head with 'legacy' false needs 'embedding_size' "
                f"({self.embedding_size}) equal to 'hidden_size' ({self.hidden_size})"
            )
        return self.replace(legacy=False, tie_word_embeddings=False)

    def _read(self, data: Mapping[str, Any], origin: str) -> dict[str, Any]:
        values = super()._read(data, origin)
        if values["max_relative_positions"] < 1:
            values["max_relative_positions"] = values["max_position_embeddings"]
        return values

    def _check(self, origin: str) -> None:
        super()._check(origin)
        data = self._data
        width, heads = self.hidden_size, self.num_attention_heads
        head_size = data.get("attention_head_size")
        if head_size is not None and (type(head_size) is not int or head_size != width // heads):
            raise refusal(
                origin, "attention_head_size", head_size, f"{width // heads}: {width} / {heads}"
            )
        if self.pooler_hidden_size != width:
            raise refusal(
                origin,
                "pooler_hidden_size",
                self.pooler_hidden_size,
                f"{width}, equal to 'hidden_size'",
            )
        self._check_convolution(origin)
        self._check_buckets(origin)

    def _check_convolution(self, origin: str) -> None:
        kernel, groups = self.conv_kernel_size, self.conv_groups
        if kernel and kernel % 2 == 0:
            raise refusal(
                origin, "conv_kernel_size", kernel, "odd, or the layer would not keep its length"
            )
        if kernel and self.hidden_size % groups:
            raise refusal(
                origin, "conv_groups", groups, f"a divisor of 'hidden_size', {self.hidden_size}"
            )

    def _check_buckets(self, origin: str) -> None:
        buckets = self.position_buckets
        if buckets == 1:
            raise refusal(origin, "position_buckets", buckets, "at least 2, or below 1 for none")
        if buckets > 0 and self.max_relative_positions - 1 == buckets // 2:
            raise refusal(
                origin,
                "max_relative_positions",
                self.max_relative_positions,
                f"other than {buckets // 2 + 1} with 'position_buckets' {buckets}: the buckets "
                "would divide by the logarithm of 1",
            )


# --- Layers ------------------------------------------------------------------------------------


class DebertaEmbeddings(Embeddings):
    """The embeddings of DeBERTa (He et al., 2021); positions and types only if the model has them.

    Args:
        config: Sizes, dropout and the kinds of vectors.
    """

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config, width=config.embedding_size)
        if not config.position_biased_input:
            del self.position_embeddings
        del self.LayerNorm
        if config.embedding_size != config.hidden_size:
            self.embed_proj = nn.Linear(config.embedding_size, config.hidden_size, bias=False)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Look up all vectors and add them.

        Args:
            ids: ``[B, S]``.
            refs: ``token_type_ids [B or 1, S]`` or None, the mask and the layout.

        Returns:
            ``[T, H]`` or ``[B, S, H]``.

        Raises:
            ValueError: Rows are longer than the position table, positions were given, or the mask
                has another shape.
        """
        layout = layout_of(refs)
        if refs[POSITIONS] is not None:
            raise ValueError("position_ids cannot be given to DeBERTa: its positions are relative")
        mask = refs[MASK]
        if mask is not None and mask.dim() != 2:
            raise ValueError(
                f"attention_mask has shape {list(mask.shape)}: DeBERTa takes [B, S], 0 for padding"
            )
        vectors: Tensor = self.word_embeddings(layout.of_rows(ids))
        if "position_embeddings" in self._modules:
            vectors = vectors + self.position_embeddings(self._positions(ids, refs, layout))
        if "token_type_embeddings" in self._modules:
            types = ids.new_zeros(()) if refs[TYPES] is None else refs[TYPES]
            vectors = vectors + self._types(types, vectors, layout)
        if "embed_proj" in self._modules:
            vectors = self.embed_proj(vectors)
        vectors = self.LayerNorm(vectors)
        if mask is not None:
            vectors = vectors * layout.of_rows((mask != 0).unsqueeze(-1)).to(vectors.dtype)
        return dropout(vectors, self.dropout, self.training)


class DebertaLayer(TransformerLayer):
    """A layer of BERT with disentangled attention.

    Args:
        config: Widths and the use of positions.
    """

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config, BERT_NAMES)

    def _place_attention(self, config: Any) -> None:
        place(self, "attention.self", DisentangledAttention(config))

    def _attended(
        self, tokens: Tensor, layout: Layout, positions: RelativeTable | None
    ) -> tuple[Tensor, Tensor]:
        parts: Any = self
        attended = parts.attention.self(tokens, layout, positions)
        if layout.ends_first:
            return layout.firsts(tokens), layout.firsts(attended)
        return tokens, attended


class ConvLayer(nn.Module):
    """A convolution over the embeddings beside the first layer.

    Args:
        config: Widths and the use of positions.
    """

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__()
        width, kernel = config.hidden_size, config.conv_kernel_size
        self.conv = nn.Conv1d(
            width, width, kernel, padding=(kernel - 1) // 2, groups=config.conv_groups
        )
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.conv_act]
        self.dropout = config.hidden_dropout_prob

    def forward(self, embedded: Tensor, tokens: Tensor, layout: Layout) -> Tensor:
        """Add to each token the output of the convolution around it.

        Args:
            embedded: The input of the first layer.
            tokens: The output of the first layer.
            layout: The layout of both.
        """
        changed = self.conv(layout.in_rows(embedded).transpose(1, 2)).transpose(1, 2)
        counts = layout.keys[:, 0, 0, :, None] if layout.keys.numel() else None
        if counts is not None:
            changed = changed * counts
        changed = dropout(layout.of_rows(changed), self.dropout, self.training)
        tokens = self.LayerNorm(tokens + self.activation(changed))
        return tokens if counts is None else tokens * layout.of_rows(counts)


class DebertaEncoder(NamedInputModule):
    """All layers of a DeBERTa.

    Args:
        config: Widths and the use of positions.
    """

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__()
        self.layer = nn.ModuleList(DebertaLayer(config) for _ in range(config.num_hidden_layers))
        self.relative = config.relative_attention
        self.buckets = config.position_buckets
        self.farthest = config.max_relative_positions
        if self.relative:
            entries = 2 * (self.buckets if self.buckets > 0 else self.farthest)
            self.rel_embeddings = nn.Embedding(entries, config.hidden_size)
        if "layer_norm" in config.norm_rel_ebd:
            self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        if config.conv_kernel_size > 0:
            self.conv = ConvLayer(config)

    def forward_named(self, tokens: Tensor, refs: Refs) -> Tensor:
        """Run all layers.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            refs: The layout.
        """
        layout = layout_of(refs)
        table = self._table(layout, tokens.device) if self.relative else None
        embedded, inner = tokens, layout.before_the_end
        for number, layer in enumerate(self.layer):
            layout.note(tokens)
            convolved = number == 0 and "conv" in self._modules
            ends = number == len(self.layer) - 1 and not convolved
            tokens = layer(tokens, layout if ends else inner, table)
            if convolved:
                tokens = self.conv(embedded, tokens, layout)
        return tokens

    def _table(self, layout: Layout, device: torch.device) -> RelativeTable:
        weight, sources = self.rel_embeddings.weight, [self.rel_embeddings.weight]
        if "LayerNorm" in self._modules:
            weight = self.LayerNorm(weight)
            sources += self.LayerNorm.parameters()
        rows = relative_rows(layout.length, self.buckets, self.farthest, device)
        return RelativeTable(weight, rows, tuple(sources))


# --- Heads and tokenizer -----------------------------------------------------------------------


def _sentence_pieces(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:  # noqa: ARG001
    """DeBERTa-v2's and v3's SentencePiece vocabulary, from ``spm.model``.

    Raises:
        CheckpointFormatError: The file is broken.
    """
    tk = need("tokenizers")
    model = sentence_pieces(files)
    before = [tk.normalizers.Strip()]
    if setting.flag(files, "do_lower_case", False):
        before.insert(0, tk.normalizers.Lowercase())
    tokenizer = unigram(files, model, list(model.pieces), model.unk_id, before, by_words=False)
    if setting.flag(files, "split_by_punct", False):
        tokenizer.pre_tokenizer = tk.pre_tokenizers.Sequence(
            [tk.pre_tokenizers.Punctuation(behavior="isolated"), tokenizer.pre_tokenizer]
        )
    return tokenizer


class DebertaV2(Family[DebertaV2Config]):
    """DeBERTa v2 and v3."""

    config = DebertaV2Config
    decoders = ("cls.predictions.decoder", "lm_predictions.lm_head.decoder")
    heads = ("cls", "lm_predictions")
    pooler = None
    token_dropout = "hidden_dropout_prob"
    pads_see_all = True
    tokenizer_class = "DebertaV2Tokenizer"
    inputs = (IDS, MASK, TYPES)
    words = Words(
        ("spm.model",),
        SPECIAL,
        _sentence_pieces,
        ("do_lower_case", "split_by_punct", "add_prefix_space"),
        framed_by_cls=True,
    )

    def embeddings(self, config: DebertaV2Config) -> nn.Module:
        """Words, and positions and segments if the model has them."""
        return DebertaEmbeddings(config)

    def encoder(self, config: DebertaV2Config) -> nn.Module:
        """Layers with disentangled attention."""
        return DebertaEncoder(config)

    def ties_always(self, config: DebertaV2Config) -> bool:
        """The newer head has no table of its own."""
        return not config.legacy

    def row_classifier(self, config: DebertaV2Config) -> Parts:
        """A pooler and a projection."""
        pooler = Pooler(config.hidden_size, config.pooler_dropout, config.pooler_hidden_act)
        last = classifier(config, config.classifier_dropout)
        return Part(pooler, "pooler"), *last

    def word_decoder(self, config: DebertaV2Config) -> Parts:
        """The head of BERT, or the newer one, which decodes with the table of words."""
        if config.legacy:
            return (Part(below_cls(config, config.embedding_size), "cls"),)
        decoder = Decoder(config, config.hidden_size)
        return (Part(Named("lm_head", decoder), "lm_predictions"),)
