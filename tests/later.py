"""Libraries that some tests need: the first use imports one, and collecting the tests does not."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

IMPORTED: set[str] = set()
"""What was imported when all tests were collected."""


class _Later:
    """A module that is imported when one of its names is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # pytest asks every object of a test file for some
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import transformers as transformers
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow as tensorboard_files
    from transformers import convert_slow_tokenizer as convert_slow_tokenizer
    from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model
else:
    tensorboard_files = _Later("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
    transformers = _Later("transformers")
    convert_slow_tokenizer = _Later("transformers.convert_slow_tokenizer")
    sentencepiece_model = _Later("transformers.utils.sentencepiece_model_pb2_new")
