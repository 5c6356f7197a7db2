"""Sentence embeddings: turn texts into vectors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal, Self, TypedDict, Unpack, cast, final, overload

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
from flodl.hf.opening_options import settled
from flodl.hf.predict.batching import Batching, device_of, encoded_batches, running
from flodl.hf.predict.text import TextEncoding, listed_texts
from flodl.hf.sentence_settings import POOLINGS, Pooling, SentenceSettings, sentence_settings
from flodl.hf.similarity import similarity
from flodl.hf.task_heads import inputs_of
from flodl.hf.text.inputs import check_options
from flodl.hf.tokenizer import HfTokenizer, TruncationChoice


class EncodingOptions(TypedDict, total=False):
    """How texts become vectors; every entry is optional.

    Attributes:
        normalize_embeddings: True scales vectors to length 1, whatever the model's settings say.
        prompt: Put before every text, instead of the default prompt of the model.
        prompt_name: The name of one of the model's prompts.
        truncation: Whether texts that are too long are cut; otherwise they raise an error. None
            for the settings of the model.
        max_length: Tokens to cut to; None for the settings of the model.
        batch_size: See :class:`~flodl.hf.predict.batching.Batching`.
        max_tokens: See there.
        bucket: See there.
        show_progress_bar: Show on a terminal how many texts are done.
        convert_to_tensor: True returns a tensor, also with ``convert_to_numpy``.
    """

    normalize_embeddings: bool
    prompt: str | None
    prompt_name: str | None
    truncation: TruncationChoice | None
    max_length: int | None
    batch_size: int | None
    max_tokens: int | None
    bucket: bool
    show_progress_bar: bool | None
    convert_to_tensor: bool


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
        options = cast("Opening", settled(options))
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
        length = length_limit(settings, tokenizer)
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

    @property
    def device(self) -> torch.device:
        """The device of the encoder."""
        return device_of(self._graph)

    def to(self, device: torch.device | str) -> Self:
        """Move the encoder to a device."""
        self._graph.to(known_device(device))
        return self

    @property
    def max_seq_length(self) -> int | None:
        """Tokens that texts are cut to, special tokens included; None for the model's limit."""
        return self._settings.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        self._settings = replace(self._settings, max_length=length)

    def get_sentence_embedding_dimension(self) -> int:
        """The number of elements of a vector, H."""
        return self._config.hidden_size

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Compare every vector with every other, by the function of :attr:`settings`.

        Args:
            first: ``[N, H]`` or ``[H]``: a tensor, an array of numpy, or a list of either.
            second: ``[M, H]`` or ``[H]``.

        Returns:
            ``[N, M]``: larger is more similar; distances are negative.
        """
        return similarity(self._settings.similarity, first, second)

    @overload
    def encode(
        self,
        texts: str | Sequence[str],
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        *,
        convert_to_numpy: Literal[False] = False,
        **options: Unpack[EncodingOptions],
    ) -> Tensor: ...

    @overload
    def encode(
        self,
        texts: str | Sequence[str],
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        *,
        convert_to_numpy: bool,
        **options: Unpack[EncodingOptions],
    ) -> Any: ...

    def encode(
        self,
        texts: str | Sequence[str],
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        *,
        convert_to_numpy: bool = False,
        **options: Unpack[EncodingOptions],
    ) -> Any:
        """Make one vector of each text.

        Args:
            texts: One text, or several.
            pooling: ``"mean"``, ``"cls"``, ``"max"`` or ``"pooler"``; None for :attr:`settings`.
            normalize: Scale vectors to length 1; None for :attr:`settings`.
            convert_to_numpy: Return an array of numpy instead of a tensor.
            **options: See :class:`EncodingOptions`.

        Returns:
            ``[N, H]``, float32, in host memory, in the order of the texts; ``[H]`` for one text.

        Raises:
            ValueError: A text is too long, the pooling or the prompt is unknown, or it is
                ``"pooler"`` and the model has none.
            TypeError: An entry is not a text, or an option is unknown.
        """
        check_options(options, EncodingOptions, "encode")
        single = isinstance(texts, str)
        inputs = self._prepared([texts] if isinstance(texts, str) else texts, options)
        settings = self._settings
        if pooling is None:
            pooling = settings.pooling
        if pooling not in POOLINGS:
            raise ValueError(f"pooling {pooling!r} is not one of {', '.join(POOLINGS)}")
        scaled = settings.normalize if normalize is None else normalize
        vectors = self._vectors(
            inputs, pooling, scaled or options.get("normalize_embeddings") is True, options
        )
        found = vectors[0] if single else vectors
        as_array = convert_to_numpy and not options.get("convert_to_tensor", False)
        return found.numpy() if as_array else found

    def _prepared(self, texts: Sequence[str], options: EncodingOptions) -> list[str]:
        """The texts as the tokenizer gets them: with their prompt, in lower case if need be."""
        found, prompt = listed_texts(texts, "encode"), self._prompt(options)
        if prompt:
            found = [prompt + text for text in found]
        return [text.lower() for text in found] if self._settings.lower_case else found

    def _prompt(self, options: EncodingOptions) -> str:
        settings, given = self._settings, options.get("prompt")
        name = options.get("prompt_name")
        if given is None and name is not None:
            given = settings.prompts.get(name)
            if given is None:
                known = ", ".join(map(repr, settings.prompts)) or "none"
                raise ValueError(
                    f"prompt_name {name!r} is not one of the prompts of this model: {known}"
                )
        if given and not settings.include_prompt:
            raise ValueError(
                "this model leaves the tokens of a prompt out of the pooling (include_prompt "
                "false), which is not supported: encode without a prompt"
            )
        return settings.prompt if given is None else given

    def _vectors(
        self, texts: list[str], pooling: Pooling, scaled: bool, options: EncodingOptions
    ) -> Tensor:
        settings, length = self._settings, options.get("max_length")
        truncation = options.get("truncation")
        encoding = TextEncoding(
            self._tokenizer,
            settings.truncation if truncation is None else truncation,
            settings.max_length if length is None else length,
        )
        # Made outside of inference mode, so that callers can compute gradients with the result.
        vectors = torch.empty(len(texts), self._config.hidden_size)
        batching = Batching(
            options.get("batch_size", 32), options.get("max_tokens"), options.get("bucket", True)
        )
        shown = _shown(len(texts)) if options.get("show_progress_bar") else nullcontext(None)
        with running(self._graph, len(texts)) as device, shown as tell:
            for inputs, _, batch in encoded_batches(texts, encoding, batching.on(device)):
                pooled = self._pooled(batch.to(device), pooling)
                if scaled:
                    pooled = F.normalize(pooled, dim=-1)
                vectors[inputs] = pooled.to(vectors.device)
                if tell is not None:
                    tell(len(inputs))
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


@contextmanager
def _shown(count: int) -> Iterator[Callable[[int], None]]:
    """Show on the terminal how many of the texts are done; yields what counts further ones."""
    # Imported here, because most calls show nothing.
    from flodl.terminal import BarLine, close_display, open_display, style_of

    display, done = open_display(sys.stderr, style_of(sys.stderr)), 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        if display is not None:
            display.show(BarLine("encoding", f"{done}/{count} texts", done / count))

    try:
        yield tell
    finally:
        close_display(display)


def length_limit(settings: SentenceSettings, tokenizer: HfTokenizer) -> int | None:
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
    raise ValueError(f"pooling {pooling!r} is not one of {', '.join(POOLINGS[:3])}")
