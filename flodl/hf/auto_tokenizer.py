"""``AutoTokenizer``: the tokenizer of a checkpoint, by the name that transformers has for it."""

from __future__ import annotations

import os
from typing import Any, NoReturn, final

from flodl.hf.text.call_options import SIDES, Side
from flodl.hf.tokenizer import HfTokenizer


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
        **others: Any,
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
            **others: Refused; the error names the supported way.

        Raises:
            TypeError: There is no such argument.
            ValueError: An argument has an unknown value.
            TokenizerMissingError, CheckpointFormatError, FileNotFoundError, HubError: As for
                ``HfTokenizer.from_pretrained``.
        """
        for name in others:
            _refuse(name)
        if not use_fast:
            raise ValueError("use_fast=False: all tokenizers here are fast, with the same ids")
        made = HfTokenizer.from_pretrained(
            pretrained_model_name_or_path,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            subfolder=subfolder,
        )
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


def _refuse(name: str) -> NoReturn:
    if name == "trust_remote_code":
        raise TypeError("trust_remote_code: code of a repository is never run; leave it out")
    raise TypeError(
        f"from_pretrained() takes no argument {name!r} for a tokenizer; write settings such as "
        "do_lower_case and add_prefix_space into the tokenizer_config.json of the checkpoint"
    )
