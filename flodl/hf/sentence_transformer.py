"""Sentence embeddings with the names and the defaults of the package sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self, TypedDict, Unpack, cast, final

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor, nn

from flodl.hf.config_json import EncoderConfig
from flodl.hf.embed import EncodingOptions, TextEncoder, length_limit
from flodl.hf.opening import Opening, Source
from flodl.hf.sentence_settings import SentenceSettings
from flodl.hf.similarity import Similarity, checked
from flodl.hf.text.inputs import check_options
from flodl.hf.tokenizer import HfTokenizer

_REFUSED: Final[Mapping[str, str]] = {
    "modules": "open a directory that holds them",
    "trust_remote_code": "flodl never runs code of a checkpoint: leave it out",
    "processor_kwargs": "set max_seq_length afterwards",
    "tokenizer_kwargs": "set max_seq_length afterwards",
    "config_kwargs": "change the config.json of a copy",
    "backend": "it is 'torch'; `fdl flodl-hf export` writes files for other programs",
    "model_card_data": "leave it out: flodl writes no model card",
}
_ELSEWHERE: Final[Mapping[str, str]] = {
    "fit": "train model.encoder.graph in your own loop or with flodl.Trainer",
    "start_multi_process_pool": "encode() uses all processor cores; shard the texts by rank",
    "encode_multi_process": "encode() uses all processor cores; shard the texts by rank",
    "push_to_hub": "upload the folder of the model with huggingface_hub.upload_folder(...)",
}


class SentenceOptions(TypedDict, total=False):
    """Keyword arguments of :class:`SentenceTransformer`; every entry is optional.

    Attributes:
        device: Where the model goes; the CPU if not given.
        prompts: Replaces the prompts of the model, by name.
        default_prompt_name: The one of the prompts that is put before every text.
        cache_folder: Where downloads are kept.
        revision: Branch, tag or commit.
        local_files_only: Never ask the network.
        token: Sent to the Hub.
        similarity_fn_name: Replaces the function of the model that compares vectors.
        truncate_dim: Elements of a vector to keep.
        model_kwargs: Arguments for the weights; see :class:`~flodl.hf.opening.Opening`.
    """

    device: torch.device | str | None
    prompts: Mapping[str, str] | None
    default_prompt_name: str | None
    cache_folder: Source | None
    revision: str | None
    local_files_only: bool
    token: str | bool | None
    similarity_fn_name: Similarity | None
    truncate_dim: int | None
    model_kwargs: Mapping[str, Any] | None


@final
class SentenceTransformer:
    """A :class:`TextEncoder` for programs that were written for sentence-transformers.

    Vectors are arrays of numpy unless tensors are asked for, and texts that are too long are cut.

    Args:
        model_name_or_path: Directory, or repository on the Hub. A name without owner means the
            owner ``sentence-transformers``.
        **options: See :class:`SentenceOptions`.

    Raises:
        FlodlError, FileNotFoundError: As for :meth:`TextEncoder.from_pretrained`.
        TypeError: An argument is not supported; the message says what to do instead.
        ValueError: There is no such function or prompt.
    """

    def __init__(self, model_name_or_path: Source, **options: Unpack[SentenceOptions]) -> None:
        given: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
        for name, remedy in _REFUSED.items():
            if given.pop(name, False) not in (False, "torch"):
                raise TypeError(f"SentenceTransformer() takes no argument {name!r}: {remedy}")
        check_options(given, SentenceOptions, "SentenceTransformer")
        opening = {**given.get("model_kwargs", {})}
        for name in ("device", "revision", "local_files_only", "token"):
            if name in given:
                opening[name] = given[name]
        if "cache_folder" in given:
            opening["cache_dir"] = given["cache_folder"]
        found = TextEncoder.from_pretrained(
            _full_name(model_name_or_path), **cast("Opening", opening)
        )
        settings = _with_options(found.settings, found.tokenizer, given)
        self._encoder = TextEncoder(found.graph, found.tokenizer, found.config, settings)
        self._kept: int | None = given.get("truncate_dim")

    # --- Parts -----------------------------------------------------------------------------

    @property
    def encoder(self) -> TextEncoder:
        """The same model with the names of flodl."""
        return self._encoder

    @property
    def tokenizer(self) -> HfTokenizer:
        """The tokenizer."""
        return self._encoder.tokenizer

    @property
    def config(self) -> EncoderConfig:
        """The configuration of the encoder."""
        return self._encoder.config

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts by name."""
        return self._encoder.settings.prompts

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._encoder.device

    @property
    def similarity_fn_name(self) -> Similarity:
        """The function that compares vectors."""
        return self._encoder.settings.similarity

    @property
    def max_seq_length(self) -> int | None:
        """Tokens that texts are cut to, special tokens included."""
        return self._encoder.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        self._encoder.max_seq_length = length

    def get_sentence_embedding_dimension(self) -> int:
        """The number of elements of a vector."""
        width = self._encoder.get_sentence_embedding_dimension()
        return width if self._kept is None else min(width, self._kept)

    get_embedding_dimension = get_sentence_embedding_dimension

    def __getattr__(self, name: str) -> Any:
        remedy = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"SentenceTransformer has no attribute {name!r}{remedy}")

    def __repr__(self) -> str:
        return f"SentenceTransformer({self._encoder!r})"

    # --- As a module -----------------------------------------------------------------------

    def to(self, device: torch.device | str) -> Self:
        """Move the model to a device."""
        self._encoder.to(device)
        return self

    def half(self) -> Self:
        """Convert the weights to float16; vectors stay float32."""
        self._encoder.graph.half()
        return self

    def bfloat16(self) -> Self:
        """Convert the weights to bfloat16; vectors stay float32."""
        self._encoder.graph.bfloat16()
        return self

    def eval(self) -> Self:
        """Set evaluation mode; ``encode`` always runs in it."""
        self._encoder.graph.eval()
        return self

    def parameters(self) -> list[nn.Parameter]:
        """All parameters of the encoder."""
        return list(self._encoder.graph.parameters())

    # --- Vectors ---------------------------------------------------------------------------

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> Any:
        """Make one vector of each text.

        Args:
            sentences: One text, or several.
            prompt_name: The name of one of the model's prompts.
            prompt: Put before every text.
            batch_size: Maximum texts of a batch.
            show_progress_bar: Show on a terminal how many texts are done.
            convert_to_numpy: Return an array; False returns a list of tensors.
            convert_to_tensor: Return a tensor.
            normalize_embeddings: Scale vectors to length 1, whatever the settings of the model.
            truncate_dim: Elements of a vector to keep.
            **options: ``precision="float32"`` and ``output_value="sentence_embedding"``, which are
                what is supported, and ``device``, which moves the model.

        Returns:
            ``[N, H]``, float32; ``[H]`` for one text.

        Raises:
            TypeError: An option is unknown.
            ValueError: An option has a value that is not supported.
        """
        self._check(options)
        wanted: EncodingOptions = {
            "prompt": prompt,
            "prompt_name": prompt_name,
            "batch_size": batch_size,
            "show_progress_bar": show_progress_bar,
        }
        kept = self._kept if truncate_dim is None else truncate_dim
        scaled = self._encoder.settings.normalize or normalize_embeddings
        found: Tensor = self._encoder.encode(
            sentences, None, scaled if kept is None else None, **wanted
        )
        if kept is not None:
            found = found[..., :kept]
            found = F.normalize(found, dim=-1) if normalize_embeddings else found
        if convert_to_tensor:
            return found.to(self.device)
        if convert_to_numpy:
            return found.numpy()
        return found if isinstance(sentences, str) else list(found)

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

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Compare vectors in pairs; see :meth:`TextEncoder.similarity_pairwise`."""
        return self._encoder.similarity_pairwise(embeddings1, embeddings2)

    def _prompted(self, options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            known = next((name for name in names if name in self.prompts), None)
            return {**options, "prompt_name": known}
        return dict(options)

    def _check(self, options: dict[str, Any]) -> None:
        usual = {"precision": "float32", "output_value": "sentence_embedding"}
        for name, value in options.items():
            if name == "device":
                if value is not None:
                    self.to(value)
            elif name not in usual:
                raise TypeError(f"encode() takes no argument {name!r}")
            elif value not in (None, usual[name]):
                raise ValueError(f"encode() supports {name}={usual[name]!r}, got {value!r}")


def _full_name(source: Source) -> Source:
    """The name of the repository; names without owner belong to sentence-transformers."""
    from pathlib import Path

    if not isinstance(source, str) or "/" in source or "\\" in source or Path(source).exists():
        return source
    return f"sentence-transformers/{source}"


def _with_options(
    settings: SentenceSettings, tokenizer: HfTokenizer, given: Mapping[str, Any]
) -> SentenceSettings:
    """The settings of a directory with those of the caller."""
    if not settings.truncation:  # an encoder without settings of sentence-transformers
        settings = replace(settings, truncation=True)
        settings = replace(settings, max_length=length_limit(settings, tokenizer))
    if "prompts" in given:
        settings = replace(settings, prompts=dict(given["prompts"]))
    name = given.get("default_prompt_name")
    if name is not None:
        if name not in settings.prompts:
            known = ", ".join(map(repr, settings.prompts)) or "none"
            raise ValueError(f"default_prompt_name {name!r} is not one of the prompts: {known}")
        settings = replace(settings, prompt=settings.prompts[name])
    if "similarity_fn_name" in given:
        settings = replace(settings, similarity=checked(given["similarity_fn_name"]))
    return settings
