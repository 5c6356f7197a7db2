"""``AutoTokenizer``: the tokenizer of a checkpoint, by the name that transformers has for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, final

from flodl.hf.dependencies import need
from flodl.hf.locate import locate
from flodl.hf.source import Access
from flodl.hf.text.call_options import SIDES, Side
from flodl.hf.text.files import read_files
from flodl.hf.text.overrides import with_settings
from flodl.hf.text.source import from_files
from flodl.hf.tokenizer import HfTokenizer, config_of

SETTINGS: Final = (
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "keep_accents",
    "split_by_punct",
    "add_prefix_space",
)


@final
class AutoTokenizer:
    """Reads tokenizers; it has no instances."""

    def __init__(self) -> None:
        raise TypeError("use AutoTokenizer.from_pretrained(DIRECTORY_OR_REPOSITORY)")

    @staticmethod
    def from_pretrained(
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        subfolder: str = "",
        use_fast: bool = True,
        model_max_length: int | None = None,
        padding_side: Side | None = None,
        truncation_side: Side | None = None,
        **settings: Any,
    ) -> HfTokenizer:
        """Read the tokenizer of a directory or repository; see ``HfTokenizer.from_pretrained``.

        Args:
            pretrained_model_name_or_path: Directory or repository.
            revision: Branch, tag or commit.
            token: Sent to the Hub.
            cache_dir: Where downloads are kept.
            local_files_only: Never ask the network.
            subfolder: Folder inside the directory or repository.
            use_fast: True; there are no other tokenizers.
            model_max_length: Tokens of a row that a call cuts or fills to.
            padding_side: The side that a call fills, ``"right"`` or ``"left"``.
            truncation_side: The side that a call cuts off.
            **settings: True or False, instead of what ``tokenizer_config.json`` says:
                ``do_lower_case``, ``strip_accents``, ``tokenize_chinese_chars``, ``keep_accents``,
                ``split_by_punct``, ``add_prefix_space``.

        Raises:
            TypeError: There is no such argument, or a setting is not True or False.
            ValueError: An argument has an unknown value, or no effect on this tokenizer.
            TokenizerMissingError, CheckpointFormatError, FileNotFoundError, HubError: As for
                ``HfTokenizer.from_pretrained``.
        """
        _check(settings)
        if not use_fast:
            raise ValueError("use_fast=False: all tokenizers here are fast, with the same ids")
        access = Access(revision, token, cache_dir, local_files_only, subfolder)
        checkpoint = locate(pretrained_model_name_or_path, access)
        need("tokenizers")
        source = from_files(read_files(checkpoint))
        if settings and source.files is not None:
            source = from_files(with_settings(source.files, settings, source.inner))
        made = HfTokenizer(source, config_of(checkpoint))
        if model_max_length is not None:
            made.model_max_length = model_max_length
        if padding_side is not None:
            made.padding_side = _side("padding_side", padding_side)
        if truncation_side is not None:
            made.truncation_side = _side("truncation_side", truncation_side)
        return made


def _side(name: str, value: Side) -> Side:
    if value not in SIDES:
        raise ValueError(f"{name} is 'right' or 'left', not {value!r}")
    return value


def _check(settings: Mapping[str, object]) -> None:
    for name, value in settings.items():
        if name == "trust_remote_code":
            raise TypeError(
                "trust_remote_code: code of a repository is never run; leave the argument out"
            )
        if name not in SETTINGS:
            raise TypeError(
                f"from_pretrained() takes no argument {name!r} for a tokenizer; its settings are "
                f"{', '.join(SETTINGS)}"
            )
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")
