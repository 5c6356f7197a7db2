"""Turn texts into batches: a thin layer over the ``tokenizers`` package."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack, final

from flodl.hf.batch_encoding import BatchEncoding, TensorKind
from flodl.hf.errors import ConfigError, need
from flodl.hf.families import AutoConfig, EncoderConfig, family_of
from flodl.hf.families.family import IDS
from flodl.hf.hub import locate
from flodl.hf.source import CONFIG, Checkpoint, reach
from flodl.hf.text.call_options import (
    CallOptions,
    PaddingChoice,
    RowShape,
    Side,
    check_options,
    checked_side,
    row_shape,
)
from flodl.hf.text.calling import (
    NO_PAD_TOKEN,
    Features,
    Texts,
    encode_rows,
    fill_rows,
    gathered,
    padded,
    values_of,
)
from flodl.hf.text.conventions import (
    NOT_OF_TOKENIZERS,
    check_settings,
    conventions,
    with_settings,
)
from flodl.hf.text.files import local_files, read_files
from flodl.hf.text.source import TokenizerSource, from_files
from flodl.hf.text.vocabulary import SPECIAL_NAMES, Vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Encoding, Tokenizer


_SETTINGS = ("model_max_length", "padding_side", "truncation_side")
"""Attributes that a file of settings keeps."""


@final
class PreTrainedTokenizerFast(Vocabulary):
    """A tokenizer of a Hugging Face checkpoint.

    Made by :meth:`from_pretrained`, :meth:`from_file` or :meth:`from_inner`. Encoding does not
    change it, so threads can share one tokenizer.

    Calling it takes the arguments of a fast tokenizer of transformers and returns the same values.

    Attributes:
        config: The configuration of its model; None if it is not known.
        limit: Tokens a row of the model may have, special tokens included; None for no limit.
        model_max_length: Tokens of a row that a call cuts or fills to: the smaller of the limits
            in the tokenizer's files and of its model; a very large number for no limit.
        padding_side: The side that a call fills, ``"right"`` or ``"left"``.
        truncation_side: The side that a call cuts off.
    """

    def __init__(self, source: TokenizerSource, config: EncoderConfig | None = None) -> None:
        if not isinstance(source, TokenizerSource):
            raise TypeError(
                f"{type(self).__name__} is made by from_pretrained(folder), from_file(path) or "
                "from_inner(tokenizer)"
            )
        model_type = None if config is None else config.model_type
        self.limit = None if config is None else position_limit(config)
        known = conventions(source.files, model_type, self.limit)
        super().__init__(source, known, None if config is None else config.pad_token_id)
        self.config = config
        self.model_max_length = known.model_max_length
        self.padding_side = known.padding_side
        self.truncation_side = known.truncation_side

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read ``tokenizer.json``, or a vocabulary: ``vocab.txt``, ``spiece.model`` and so on.

        Files beside it that belong to it (``tokenizer_config.json``, ``merges.txt``) are read too.

        Raises:
            FileNotFoundError: There is no such file.
            TokenizerMissingError: It is one file of a pair, and the other file is missing.
            CheckpointFormatError: The file is broken.
            MissingDependencyError: The package tokenizers is not installed.
        """
        directory, name = local_files(path)
        return cls(from_files(read_files(directory, name)))

    @classmethod
    def from_inner(cls, inner: Tokenizer) -> Self:
        """Wrap a tokenizer of the ``tokenizers`` package.

        If padding or truncation is switched on, the tokenizer is copied without them.
        """
        return cls(TokenizerSource(inner))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        use_fast: bool = True,  # noqa: ARG003 - all tokenizers here are fast, with the same ids
        model_max_length: int | None = None,
        padding_side: Side | None = None,
        truncation_side: Side | None = None,
        **settings: Any,
    ) -> Self:
        """Read the tokenizer of a directory or repository, and the limits of its model if any.

        Args:
            pretrained_model_name_or_path: Directory or repository.
            use_fast: Without effect: all tokenizers here are fast, with the same ids.
            model_max_length: Tokens of a row that a call cuts or fills to.
            padding_side: The side that a call fills, ``"right"`` or ``"left"``.
            truncation_side: The side that a call cuts off.
            **settings: ``revision``, ``token``, ``cache_dir``, ``local_files_only`` and
                ``subfolder`` say how to reach it. Special tokens are given by name, such as
                ``pad_token``. True or False, instead of what ``tokenizer_config.json`` says, are
                ``do_lower_case``, ``strip_accents``, ``tokenize_chinese_chars``, ``keep_accents``,
                ``split_by_punct`` and ``add_prefix_space``.

        Raises:
            TypeError: There is no such argument, or a setting is not True or False.
            ValueError: An argument has an unknown value, or no effect on this tokenizer.
            TokenizerMissingError: It holds no tokenizer of a supported kind.
            CheckpointFormatError: One of the tokenizer's files is broken.
            FileNotFoundError, HubError: The directory or repository cannot be reached.
            MissingDependencyError: The package tokenizers is not installed.
        """
        access, settings = reach(settings, NOT_OF_TOKENIZERS)
        special = {name: settings.pop(name) for name in SPECIAL_NAMES if name in settings}
        check_settings(settings)
        checkpoint = locate(pretrained_model_name_or_path, access)
        need("tokenizers")
        source = from_files(read_files(checkpoint))
        if settings and source.files is not None:
            source = from_files(with_settings(source.files, settings, source.inner))
        made = cls(source, config_of(checkpoint))
        if model_max_length is not None:
            made.model_max_length = model_max_length
        if padding_side is not None:
            made.padding_side = checked_side("padding_side", padding_side)
        if truncation_side is not None:
            made.truncation_side = checked_side("truncation_side", truncation_side)
        if special:
            made.add_special_tokens(special)
        return made

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, config: EncoderConfig | None) -> Self:
        """Read the tokenizer of a checkpoint whose model is known.

        Raises:
            FlodlError, FileNotFoundError: As for :meth:`from_pretrained`.
        """
        need("tokenizers")
        return cls(from_files(read_files(checkpoint)), config)

    def for_config(self, config: EncoderConfig) -> PreTrainedTokenizerFast:
        """The same tokenizer with the limits, pad id and segments of another model."""
        # Every prediction asks for it, and reading the settings again takes 40 microseconds.
        return self if config is self.config else PreTrainedTokenizerFast(self.source, config)

    def save(self, path: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write the tokenizer so that the reference's ``AutoTokenizer`` loads it.

        An unchanged tokenizer is written as exactly the bytes it was read from.

        Args:
            path: A directory for all its files, created if needed; or a file ending in ``.json``
                for the one file that holds everything.

        Returns:
            The files written.

        Raises:
            OSError: The system refused.
        """
        now = {name: getattr(self, name) for name in _SETTINGS}
        told = {name: one for name, one in now.items() if one != getattr(self._known, name)}
        return self.source.save(path, told)

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write the tokenizer into a directory, and return the files written; see :meth:`save`."""
        return tuple(str(path) for path in self.save(save_directory))

    def __call__(
        self, text: Texts, text_pair: Texts | None = None, **options: Unpack[CallOptions]
    ) -> BatchEncoding:
        """Encode a text, a batch of texts, or pairs, with the options of transformers.

        Values and defaults are those of transformers' fast tokenizers: nothing is padded or
        truncated unless asked. A row that is longer than ``model_max_length`` is returned whole,
        with a warning, and the model refuses it; ``predict`` refuses it here.

        Args:
            text: A text, a list of texts, or a list of pairs. With ``is_split_into_words=True``,
                each text is a list of words.
            text_pair: The second text of each pair.
            **options: See :class:`~flodl.hf.text.call_options.CallOptions`.

        Returns:
            Lists, one entry per row, or tensors ``[B, S]`` with ``return_tensors="pt"``. A single
            text without ``return_tensors`` has no batch dimension.

        Raises:
            ValueError: There is no text; a text cannot be cut as asked; padding is asked for and
                there is no pad token; rows of unequal lengths cannot become a tensor.
            TypeError: An input is not text, or there is no such option.
            CheckpointFormatError: The tokenizer's file is broken in a way that shows only now.
        """
        check_options(options, CallOptions, "tokenizer")
        shape = self._shape(options)
        inputs, batched = gathered(text, text_pair, options.get("is_split_into_words", False))
        encodings = encode_rows(self.source, inputs, shape, options)
        if shape.padding is not None:
            fill_rows(encodings, shape.width(map(len, encodings)), self, shape.side)
        values, rows = values_of(encodings, self.model_input_names, options)
        if options.get("max_length") is None and options.get("verbose", True):
            self._warn_of_long_rows(rows)
        kind = options.get("return_tensors")
        if batched or kind is not None or options.get("return_overflowing_tokens", False):
            return BatchEncoding(values, rows, kind)
        # As in transformers, the length stays a list.
        single = {name: v[0] if isinstance(v[0], list) else v for name, v in values.items()}
        return BatchEncoding(single, rows)

    def tokenize(
        self,
        text: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> list[str]:
        """The tokens of a text, or of a pair of texts, without special tokens unless asked for."""
        settled: CallOptions = {"add_special_tokens": False, **options}
        return self(text, pair, **settled).tokens()

    def pad(
        self,
        encoded_inputs: Features,
        padding: PaddingChoice = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: Side | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: TensorKind | None = None,
        verbose: bool = True,  # noqa: ARG002 - nothing is said here
    ) -> BatchEncoding:
        """Fill rows that were encoded before to one width, as a collator does for each batch.

        Args:
            encoded_inputs: A list of rows as a call returns them, or one mapping of lists. Other
                values than those of a tokenizer, such as ``labels``, are passed on unchanged.
            padding: True or ``"longest"``, ``"max_length"``, or False.
            max_length: The width for ``"max_length"``; ``model_max_length`` if not given.
            pad_to_multiple_of: The width is a multiple of this.
            padding_side: ``"right"`` or ``"left"``; :attr:`padding_side` if not given.
            return_attention_mask: Whether rows get an attention mask that they do not have.
            return_tensors: ``"pt"``, ``"np"``, or None for what the rows are.
            verbose: Without effect.

        Raises:
            ValueError: There are no ``input_ids``, or rows do not fit together, or there is no pad
                token.
        """
        shape = self._shape(
            {
                "padding": padding,
                "max_length": max_length,
                "pad_to_multiple_of": pad_to_multiple_of,
                "padding_side": padding_side,
            }
        )
        return padded(encoded_inputs, shape, self, return_tensors, return_attention_mask)

    def encode(
        self,
        text: str | Sequence[str],
        text_pair: str | Sequence[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """The ids of one text, or of one pair of texts, with the options of a call.

        Raises:
            TypeError: It is not one text: a str, or with ``is_split_into_words=True`` its words.
            ValueError: As for a call.
        """
        words = (
            text if options.get("is_split_into_words") and isinstance(text, (list, tuple)) else ()
        )
        if not isinstance(text, str) and not (words and isinstance(words[0], str)):
            raise TypeError(
                "encode() takes one text: for many, call tokenizer(texts, padding=True, "
                'return_tensors="pt")'
            )
        return self(text, text_pair, **options)[IDS]

    def __repr__(self) -> str:
        origin = "memory" if self.files is None else self.files.origin
        size = self.inner.get_vocab_size()
        return f"{type(self).__name__}({origin}, {size} tokens, limit {self.limit})"

    def _shape(self, options: CallOptions) -> RowShape:
        shape = row_shape(options, self.model_max_length, self.padding_side, self.truncation_side)
        if shape.padding is not None and self.pad_id is None:
            raise ValueError(NO_PAD_TOKEN)
        return shape

    def _warn_of_long_rows(self, rows: Sequence[Encoding]) -> None:
        longest = max(len(row) for row in rows)
        if longest > self.model_max_length:
            warnings.warn(
                f"a row has {longest} tokens and the model takes {self.model_max_length}; pass "
                "truncation=True",
                stacklevel=3,
            )


def position_limit(config: EncoderConfig) -> int | None:
    """Tokens per row for which a model has positions; None for no limit.

    RoBERTa and XLM-R count positions from the one after the pad id. DeBERTa without absolute
    positions only has relative ones, which work at any distance.
    """
    if not getattr(config, "position_biased_input", True):
        return None
    if family_of(config).offset_positions:
        # A model like this without a pad id is refused long before it has a tokenizer.
        return config.max_position_embeddings - (config.pad_token_id or 0) - 1
    return config.max_position_embeddings


def config_of(checkpoint: Checkpoint) -> EncoderConfig | None:
    """The model's configuration; None if there is none, or its family has no model here."""
    text = checkpoint.text(CONFIG)
    try:
        return None if text is None else AutoConfig.from_json_str(text, origin=CONFIG)
    except ConfigError:
        return None


class AutoTokenizer:
    """Reads the tokenizer of any checkpoint; it has no instances."""

    def __init__(self) -> None:
        raise TypeError("use AutoTokenizer.from_pretrained(DIRECTORY_OR_REPOSITORY)")

    from_pretrained = PreTrainedTokenizerFast.from_pretrained


# One class reads the tokenizers of all families; these are its names in programs for transformers.
AlbertTokenizer = AlbertTokenizerFast = PreTrainedTokenizerFast
BertTokenizer = BertTokenizerFast = PreTrainedTokenizerFast
DebertaV2Tokenizer = DebertaV2TokenizerFast = PreTrainedTokenizerFast
DistilBertTokenizer = DistilBertTokenizerFast = PreTrainedTokenizerFast
RobertaTokenizer = RobertaTokenizerFast = PreTrainedTokenizerFast
XLMRobertaTokenizer = XLMRobertaTokenizerFast = PreTrainedTokenizerFast
