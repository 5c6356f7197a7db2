"""Sentence embeddings with the names and the defaults of the package sentence-transformers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self, Unpack, final

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from fdl.base.files import replace_text
from flodl.device import select_device
from flodl.graph import Graph
from flodl.hf.batch_encoding import Batch, mask_of
from flodl.hf.encoder_model import backbone_outputs
from flodl.hf.export import save_model
from flodl.hf.families import EncoderConfig
from flodl.hf.head_kind import HeadKind
from flodl.hf.hub import locate
from flodl.hf.opening import Opening, Source, open_model, settled
from flodl.hf.predict.batching import (
    Batching,
    ReadingOptions,
    TextEncoding,
    device_of,
    encoded_batches,
    listed_texts,
    running,
)
from flodl.hf.sentence_settings import (
    POOLINGS,
    Pooling,
    SentenceSettings,
    sentence_settings,
    settings_files,
    similarity,
)
from flodl.hf.task_heads import inputs_of
from flodl.hf.text.call_options import check_options
from flodl.hf.tokenizer import PreTrainedTokenizerFast

_REST = (
    "write a folder with save(folder), and open it with the package sentence-transformers for the "
    "rest of its class"
)


class EncodingOptions(ReadingOptions, total=False):
    """How texts become vectors; every entry is optional.

    Attributes:
        convert_to_numpy: True, the default, returns an array of numpy; False a tensor.
        convert_to_tensor: True returns a tensor, whatever ``convert_to_numpy`` says.
        normalize_embeddings: True scales vectors to length 1, also if the model's settings do not.
        prompt: Put before every text, instead of the default prompt of the model.
        prompt_name: The name of one of the model's prompts.
        pooling: ``"mean"``, ``"cls"``, ``"max"`` or ``"pooler"``, instead of the settings.
        truncation: Here True by default.
        max_length: None (default) for :attr:`SentenceTransformer.max_seq_length`.
        show_progress_bar: Show on a terminal how many texts are done.
    """

    convert_to_numpy: bool
    convert_to_tensor: bool
    normalize_embeddings: bool
    prompt: str | None
    prompt_name: str | None
    pooling: Pooling | None
    show_progress_bar: bool | None


@final
class SentenceTransformer:
    """Turns texts into vectors.

    ``modules.json`` says how: the pooling, whether vectors are normalised, the length texts are cut
    to, and the prompt before each text. Without this file, the vector is the mean over the tokens.

    Args:
        model_name_or_path: Directory, or repository on the Hub. A name without owner means the
            owner ``sentence-transformers``.
        device: Where the model goes; the CPU if not given.
        prompts: Replaces the prompts of the model, by name.
        cache_folder: Where downloads are kept.
        model_kwargs: Arguments for the weights; see :class:`~flodl.hf.opening.Opening`.
        **opening: Further arguments of the same, such as ``revision`` and ``local_files_only``.

    Attributes:
        graph: The encoder, a ``torch.nn.Module``.
        config: The configuration of the encoder.
        tokenizer: The tokenizer of the encoder.
        settings: How the vectors of the tokens become one vector.

    Raises:
        FlodlError: One of ``flodl.hf.errors``: the configuration, the weights, the tokenizer
            or the Hub, or a module that is not supported.
        FileNotFoundError: The directory does not exist, or files are missing in it.
        TypeError: There is no such argument.
    """

    graph: Graph
    config: EncoderConfig
    tokenizer: PreTrainedTokenizerFast
    settings: SentenceSettings

    def __init__(
        self,
        model_name_or_path: Source,
        *,
        device: torch.device | str | None = None,
        prompts: Mapping[str, str] | None = None,
        cache_folder: Source | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        **opening: Any,
    ) -> None:
        given = {"device": device, "cache_dir": cache_folder, **opening, **(model_kwargs or {})}
        given = {name: value for name, value in given.items() if value is not None}
        access, asked = settled(given, "SentenceTransformer")
        check_options(asked, Opening, "SentenceTransformer", _REST)
        src = _full_name(model_name_or_path)
        place = locate(src, access)
        settings = sentence_settings(place) or SentenceSettings()
        folders = [access.subfolder.rstrip("/"), settings.subfolder]
        inside = replace(
            access,
            revision=place.commit or access.revision,
            subfolder="/".join(folder for folder in folders if folder),
        )
        opened = open_model(src, HeadKind.BASE, {**asked, **asdict(inside)})
        self.graph, self.config = opened.graph, opened.config
        self.tokenizer = PreTrainedTokenizerFast.from_checkpoint(opened.checkpoint, opened.config)
        # A truncation section inside tokenizer.json does not count: it only holds what the last
        # call before saving used.
        files, limit = self.tokenizer.files, self.tokenizer.limit
        longest = settings.max_length
        if longest is None and files is not None:
            longest = files.model_max_length()
        if longest is not None and limit is not None:
            longest = min(longest, limit)
        settings = replace(settings, max_length=longest)
        self.settings = settings if prompts is None else replace(settings, prompts=dict(prompts))

    @property
    def device(self) -> torch.device:
        """The device of the encoder."""
        return device_of(self.graph)

    def to(self, device: torch.device | str) -> Self:
        """Move the encoder to a device."""
        self.graph.to(select_device(device))
        return self

    def eval(self) -> Self:
        """Set evaluation mode; ``encode`` always runs in it."""
        self.graph.eval()
        return self

    @property
    def max_seq_length(self) -> int | None:
        """Tokens that texts are cut to, special tokens included; None for no limit."""
        return self.settings.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        self.settings = replace(self.settings, max_length=length)

    def get_sentence_embedding_dimension(self) -> int:
        """The number of elements of a vector, H."""
        return self.config.hidden_size

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Compare every vector with every other, by the function of :attr:`settings`.

        Args:
            embeddings1: ``[N, H]`` or ``[H]``: a tensor, an array of numpy, or a list of either.
            embeddings2: ``[M, H]`` or ``[H]``.

        Returns:
            ``[N, M]``: larger is more similar; distances are negative.
        """
        return similarity(self.settings.similarity, embeddings1, embeddings2)

    def encode(self, sentences: str | Sequence[str], **options: Unpack[EncodingOptions]) -> Any:
        """Make one vector of each text.

        Args:
            sentences: One text, or several.
            **options: See :class:`EncodingOptions`.

        Returns:
            ``[N, H]``, float32, in host memory, in the order of the texts; ``[H]`` for one text.

        Raises:
            ValueError: A text is too long, the pooling or the prompt is unknown, or it is
                ``"pooler"`` and the model has none.
            TypeError: An entry is not a text, or an option is unknown.
        """
        check_options(options, EncodingOptions, "encode", _REST)
        texts = self._prepared([sentences] if isinstance(sentences, str) else sentences, options)
        pooling = options.get("pooling") or self.settings.pooling
        if pooling not in POOLINGS:
            raise ValueError(f"pooling {pooling!r} is not one of {', '.join(POOLINGS)}")
        vectors = self._vectors(texts, pooling, options)
        found = vectors[0] if isinstance(sentences, str) else vectors
        as_tensor = options.get("convert_to_tensor") or not options.get("convert_to_numpy", True)
        return found if as_tensor else found.numpy()

    def encode_query(
        self, sentences: str | Sequence[str], **options: Unpack[EncodingOptions]
    ) -> Any:
        """Like :meth:`encode`, with the prompt called ``query``; without one, with no prompt."""
        return self._prompted(sentences, options, "query")

    def encode_document(
        self, sentences: str | Sequence[str], **options: Unpack[EncodingOptions]
    ) -> Any:
        """Like :meth:`encode`, with the prompt ``document``, ``passage`` or ``corpus``.

        Without one of these, with no prompt.
        """
        return self._prompted(sentences, options, "document", "passage", "corpus")

    def _prompted(
        self, sentences: str | Sequence[str], options: EncodingOptions, *names: str
    ) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            prompts = self.settings.prompts
            # The default prompt is for one kind of text, perhaps for the other one.
            options["prompt"] = next((prompts[name] for name in names if name in prompts), "")
        return self.encode(sentences, **options)

    def save_pretrained(
        self, path: str | os.PathLike[str], *, force: bool = False
    ) -> tuple[str, ...]:
        """Write a folder that sentence-transformers opens, and return the files written.

        Args:
            path: The folder, created with its parents.
            force: Replace an existing model, with its tokenizer.

        Raises:
            FlodlError: The folder holds a model already, or layers have adapters that are not
                merged.
            ValueError: The pooling cannot be saved.
            OSError: The system refused.
        """
        folder = Path(path)
        files = settings_files(self.settings, self.config.hidden_size)
        written = save_model(self.graph, self.config, folder, tokenizer=self.tokenizer, force=force)
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            replace_text(folder / name, text)
        return (*written, *files)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> tuple[str, ...]:
        """The same as :meth:`save_pretrained`."""
        return self.save_pretrained(path, force=force)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"SentenceTransformer has no attribute {name!r}: {_REST}")

    def __call__(self, *_: object) -> Any:
        """Refuse: the steps of a model cannot be called one by one.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"SentenceTransformer cannot be called, use encode(texts): {_REST}")

    def __getitem__(self, step: object) -> Any:
        """Refuse, as for a call."""
        raise TypeError(f"SentenceTransformer has no step [{step!r}]: {_REST}")

    def __repr__(self) -> str:
        scaled = ", normalised" if self.settings.normalize else ""
        return f"SentenceTransformer({self.config.model_type}, {self.settings.pooling}{scaled})"

    # --- Encoding --------------------------------------------------------------------------

    def _prepared(self, texts: Sequence[str], options: EncodingOptions) -> list[str]:
        """The texts as the tokenizer gets them: with their prompt, in lower case if need be."""
        found, prompt = listed_texts(texts, "encode"), self._prompt(options)
        if prompt:
            found = [prompt + text for text in found]
        return [text.lower() for text in found] if self.settings.lower_case else found

    def _prompt(self, options: EncodingOptions) -> str:
        settings, given = self.settings, options.get("prompt")
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

    def _vectors(self, texts: list[str], pooling: Pooling, options: EncodingOptions) -> Tensor:
        settings, length = self.settings, options.get("max_length")
        encoding = TextEncoding(
            self.tokenizer,
            options.get("truncation", True),
            settings.max_length if length is None else length,
        )
        scaled = settings.normalize or options.get("normalize_embeddings", False)
        # Made outside of inference mode, so that callers can compute gradients with the result.
        vectors = torch.empty(len(texts), self.config.hidden_size)
        batching = Batching.of(options)
        shown = _shown(len(texts)) if options.get("show_progress_bar") else nullcontext(None)
        with running(self.graph) as device, shown as tell:
            for inputs, _, batch in encoded_batches(texts, encoding, batching.on(device)):
                pooled = self._pooled(batch.to(device), pooling)
                if scaled:
                    pooled = F.normalize(pooled, dim=-1)
                vectors[inputs] = pooled.to(vectors.device)
                if tell is not None:
                    tell(len(inputs))
        return vectors

    def _pooled(self, enc: Batch, pooling: Pooling) -> Tensor:
        if pooling != "pooler":
            states = self.graph(**inputs_of(enc, self.config))
            return pool(states, mask_of(enc), pooling)
        pooled = backbone_outputs(self.graph, enc).pooler_output
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


def _full_name(source: Source) -> Source:
    """The name of the repository; names without owner belong to sentence-transformers."""
    if not isinstance(source, str) or "/" in source or "\\" in source or Path(source).exists():
        return source
    return f"sentence-transformers/{source}"


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
