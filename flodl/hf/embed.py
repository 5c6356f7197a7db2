"""Sentence embeddings: turn texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self, Unpack, cast, final

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from flodl.graph import Graph
from flodl.hf.config_json import EncoderConfig
from flodl.hf.device import known_device
from flodl.hf.encoded import EncodedBatch
from flodl.hf.encoder_model import backbone_outputs
from flodl.hf.head_kind import HeadKind
from flodl.hf.locate import locate
from flodl.hf.opening import HeadOpening, Opening, Source, access_of, open_model
from flodl.hf.predict.batching import Batching, encoded_batches, running
from flodl.hf.predict.text import TextEncoding, listed_texts
from flodl.hf.sentence_settings import POOLINGS, Pooling, SentenceSettings, sentence_settings
from flodl.hf.task_heads import inputs_of
from flodl.hf.text.inputs import check_options
from flodl.hf.tokenizer import HfTokenizer, TruncationChoice


@final
class TextEncoder:
    """Turns texts into vectors.

    Args:
        graph: An encoder without a head.
        tokenizer: Its tokenizer.
        config: The configuration of the encoder.
        settings: How the vectors of the tokens become one vector.
    """

    def __init__(
        self,
        graph: Graph,
        tokenizer: HfTokenizer,
        config: EncoderConfig,
        settings: SentenceSettings | None = None,
    ) -> None:
        self._graph = graph
        self._tokenizer = tokenizer.for_config(config)
        self._config = config
        self._settings = settings or SentenceSettings()

    @classmethod
    def from_pretrained(cls, src: Source, **options: Unpack[Opening]) -> Self:
        """Open an encoder and its tokenizer.

        ``modules.json`` says how texts become vectors: the pooling, whether vectors are normalised,
        the length texts are cut to, and the prompt before each text. Without this file, the vector
        is the mean over the tokens.

        Args:
            src: Directory, or repository on the Hub.
            **options: See :class:`~flodl.hf.opening.Opening`.

        Raises:
            FlodlError: One of ``flodl.hf.errors``: the configuration, the weights, the tokenizer
                or the Hub, or a module that is not supported.
            FileNotFoundError: The directory does not exist, or files are missing in it.
            TypeError: There is no such option.
        """
        check_options(options, Opening, "from_pretrained")
        device = options.get("device")
        if device is not None:
            known_device(device)  # refuse it before any download
        place = locate(src, access_of(options))
        settings = sentence_settings(place) or SentenceSettings()
        if place.commit is not None:
            options["revision"] = place.commit
        if settings.subfolder:
            folders = [options.get("subfolder", "").rstrip("/"), settings.subfolder]
            options["subfolder"] = "/".join(folder for folder in folders if folder)
        opened = open_model(src, HeadKind.BASE, cast("HeadOpening", options))
        tokenizer = HfTokenizer.from_checkpoint(opened.checkpoint, opened.config)
        length = _length(settings, tokenizer)
        return cls(opened.graph, tokenizer, opened.config, replace(settings, max_length=length))

    @property
    def graph(self) -> Graph:
        """The encoder, a ``torch.nn.Module``."""
        return self._graph

    @property
    def config(self) -> EncoderConfig:
        """The configuration of the encoder."""
        return self._config

    @property
    def tokenizer(self) -> HfTokenizer:
        """The tokenizer of the encoder."""
        return self._tokenizer

    @property
    def settings(self) -> SentenceSettings:
        """How the vectors of the tokens become one vector."""
        return self._settings

    def encode(
        self,
        texts: Sequence[str],
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        *,
        truncation: TruncationChoice | None = None,
        max_length: int | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
    ) -> Tensor:
        """Make one vector of each text.

        Args:
            texts: The texts.
            pooling: ``"mean"``, ``"cls"``, ``"max"`` or ``"pooler"``; None for :attr:`settings`.
            normalize: Scale vectors to length 1; None for :attr:`settings`.
            truncation: Whether texts that are too long are cut; otherwise they raise an error. None
                for :attr:`settings`.
            max_length: Tokens to cut to; None for :attr:`settings`.
            batch_size: See :class:`~flodl.hf.predict.batching.Batching`.
            max_tokens: See there.
            bucket: See there.

        Returns:
            ``[N, H]``, float32, in host memory, in the order of the texts.

        Raises:
            ValueError: A text is too long, the pooling is unknown, or it is ``"pooler"`` and the
                model has none.
            TypeError: ``texts`` is a single string, or an entry is not a text.
        """
        texts = listed_texts(texts, "encode")
        settings = self._settings
        if pooling is None:
            pooling = settings.pooling
        if pooling not in POOLINGS:
            raise ValueError(f"pooling {pooling!r} is none of {', '.join(POOLINGS)}")
        if settings.prompt:
            texts = [settings.prompt + text for text in texts]
        if settings.lower_case:
            texts = [text.lower() for text in texts]
        encoding = TextEncoding(
            self._tokenizer,
            settings.truncation if truncation is None else truncation,
            settings.max_length if max_length is None else max_length,
        )
        # Made outside of inference mode, so that callers can compute gradients with the result.
        vectors = torch.empty(len(texts), self._config.hidden_size)
        batching = Batching(batch_size, max_tokens, bucket)
        with running(self._graph, len(texts)) as device:
            for inputs, _, batch in encoded_batches(texts, encoding, batching.on(device)):
                pooled = self._pooled(batch.to(device), pooling)
                if settings.normalize if normalize is None else normalize:
                    pooled = F.normalize(pooled, dim=-1)
                vectors[inputs] = pooled.to(vectors.device)
        return vectors

    def __repr__(self) -> str:
        scaled = ", normalised" if self._settings.normalize else ""
        return f"TextEncoder({self._config.model_type}, {self._settings.pooling}{scaled})"

    def _pooled(self, enc: EncodedBatch, pooling: Pooling) -> Tensor:
        if pooling != "pooler":
            states = self._graph(**inputs_of(enc, self._config))
            return pool(states, enc.attention_mask, pooling)
        pooled = backbone_outputs(self._graph, enc).pooler_output
        if pooled is None:
            raise ValueError('this model has no pooler: use the pooling "mean", "cls" or "max"')
        return pooled.float()


def _length(settings: SentenceSettings, tokenizer: HfTokenizer) -> int | None:
    """Tokens that texts are cut to: the limit in the settings, else the tokenizer's limit.

    A truncation section inside ``tokenizer.json`` does not count: it only holds what the last call
    before saving used.
    """
    length = settings.max_length
    if length is None and settings.truncation and tokenizer.files is not None:
        length = tokenizer.files.model_max_length()
    if length is None or tokenizer.limit is None:
        return length
    return min(length, tokenizer.limit)


def pool(states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """Combine the vectors of the tokens into one vector.

    Args:
        states: ``[B, S, H]``.
        attention_mask: ``[B, S]``; 0 is padding, which does not count.
        pooling: ``"mean"`` or ``"max"`` over the tokens, or ``"cls"``, the first token.

    Returns:
        ``[B, H]``, float32. The mean of zero tokens is 0.

    Raises:
        ValueError: ``"pooler"`` or another name: not a function of the vectors of the tokens.
    """
    states, attended = states.float(), attention_mask != 0
    if pooling == "mean":
        counts = attended.sum(dim=1, keepdim=True).clamp(min=1)
        return states.masked_fill(~attended[..., None], 0.0).sum(dim=1) / counts
    if pooling == "cls":
        first = attended.to(torch.uint8).argmax(dim=1)
        return states[torch.arange(len(states), device=states.device), first]
    if pooling == "max":
        lowest = torch.finfo(states.dtype).min
        return states.masked_fill(~attended[..., None], lowest).amax(dim=1)
    raise ValueError(f"pooling {pooling!r} is none of {', '.join(POOLINGS[:3])}")
