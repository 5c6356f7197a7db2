"""Sentence embeddings with the names and the defaults of the package sentence-transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast, final

import torch
from torch import Tensor

from fdl.base.files import replace_text
from flodl.hf.embed import TextEncoder, length_limit
from flodl.hf.export import save_model
from flodl.hf.opening import Opening, Source
from flodl.hf.sentence_settings import settings_files


@final
class SentenceTransformer:
    """A :class:`TextEncoder` for programs that were written for sentence-transformers.

    Vectors are arrays of numpy unless tensors are asked for, and texts that are too long are cut.

    Args:
        model_name_or_path: Directory, or repository on the Hub. A name without owner means the
            owner ``sentence-transformers``.
        device: Where the model goes; the CPU if not given.
        prompts: Replaces the prompts of the model, by name.
        cache_folder: Where downloads are kept.
        model_kwargs: Arguments for the weights; see :class:`~flodl.hf.opening.Opening`.
        **opening: ``revision``, ``token`` and ``local_files_only`` of the same.

    Raises:
        FlodlError, FileNotFoundError, TypeError: As for :meth:`TextEncoder.from_pretrained`.
    """

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
        options = {name: value for name, value in given.items() if value is not None}
        found = TextEncoder.from_pretrained(
            _full_name(model_name_or_path), **cast("Opening", options)
        )
        settings = found.settings
        if not settings.truncation:  # an encoder without settings of sentence-transformers
            settings = replace(settings, truncation=True)
            settings = replace(settings, max_length=length_limit(settings, found.tokenizer))
        if prompts is not None:
            settings = replace(settings, prompts=dict(prompts))
        self._encoder = TextEncoder(found.graph, found.tokenizer, found.config, settings)

    @property
    def encoder(self) -> TextEncoder:
        """The same model with the names of flodl."""
        return self._encoder

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._encoder.device

    @property
    def max_seq_length(self) -> int | None:
        """Tokens that texts are cut to, special tokens included."""
        return self._encoder.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        self._encoder.max_seq_length = length

    def get_sentence_embedding_dimension(self) -> int:
        """The number of elements of a vector."""
        return self._encoder.get_sentence_embedding_dimension()

    def to(self, device: torch.device | str) -> Self:
        """Move the model to a device."""
        self._encoder.to(device)
        return self

    def eval(self) -> Self:
        """Set evaluation mode; ``encode`` always runs in it."""
        self._encoder.graph.eval()
        return self

    def encode(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Make one vector of each text.

        Args:
            sentences: One text, or several.
            **options: ``convert_to_tensor=True`` returns a tensor. For the others see
                :class:`~flodl.hf.embed.EncodingOptions`.

        Returns:
            ``[N, H]``, float32, an array of numpy; ``[H]`` for one text.

        Raises:
            TypeError: An option is unknown.
            ValueError: There is no such prompt.
        """
        return self._encoder.encode(sentences, **{"convert_to_numpy": True, **options})

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Like :meth:`encode`, with the prompt called ``query`` if the model has one."""
        return self.encode(sentences, **self._prompted(options, ("query",)))

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Like :meth:`encode`, with the prompt ``document``, ``passage`` or ``corpus``, if any."""
        names = ("document", "passage", "corpus")
        return self.encode(sentences, **self._prompted(options, names))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Compare every vector with every other; see :meth:`TextEncoder.similarity`."""
        return self._encoder.similarity(embeddings1, embeddings2)

    def save_pretrained(
        self, path: str | os.PathLike[str], *, force: bool = False
    ) -> tuple[str, ...]:
        """Write a folder that sentence-transformers opens, and return the files written.

        Args:
            path: The folder, created with its parents.
            force: Replace an existing model, with its tokenizer.

        Raises:
            FlodlError: The folder holds a model already.
            ValueError: The pooling cannot be saved.
            OSError: The system refused.
        """
        encoder, folder = self._encoder, Path(path)
        files = settings_files(encoder.settings, encoder.config.hidden_size)
        written = save_model(
            encoder.graph, encoder.config, folder, tokenizer=encoder.tokenizer, force=force
        )
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            replace_text(folder / name, text)
        return (*written, *files)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> tuple[str, ...]:
        """The same as :meth:`save_pretrained`."""
        return self.save_pretrained(path, force=force)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"SentenceTransformer has no attribute {name!r}: write a folder with save(folder), and "
            "open it with the package sentence-transformers for the rest of its class"
        )

    def _prompted(self, options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        prompts = self._encoder.settings.prompts
        known = next((name for name in names if name in prompts), None)
        return {"prompt_name": known, **options}

    def __repr__(self) -> str:
        return f"SentenceTransformer({self._encoder!r})"


def _full_name(source: Source) -> Source:
    """The name of the repository; names without owner belong to sentence-transformers."""
    if not isinstance(source, str) or "/" in source or "\\" in source or Path(source).exists():
        return source
    return f"sentence-transformers/{source}"
