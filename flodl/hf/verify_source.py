"""Compare an export with its source, from a text to a label: each with its own files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.errors import TokenizerMissingError
from flodl.hf.export import SOURCE_REPO, SOURCE_REVISION, exported_config
from flodl.hf.families import EncoderConfig
from flodl.hf.head_kind import named_head
from flodl.hf.opening import Opened
from flodl.hf.predict.batching import TextEncoding
from flodl.hf.reference import batch_of_prompt, largest_difference, load, outputs_of_reference
from flodl.hf.sentence_settings import COMPANIONS, companions_of
from flodl.hf.source import Checkpoint
from flodl.hf.task_heads import inputs_of
from flodl.hf.text.files import OWN_NAMES
from flodl.hf.tokenizer import PreTrainedTokenizerFast

TEXTS = (
    "Ada Lovelace met Charles Babbage in London.",
    "It's UPPER, lower; and  two  spaces -- (and brackets) [too].",
    "Crème brûlée costs 4.50 in Zürich, 日本語.",
)
"""What an export and its source read, beside the text of the caller."""

_FREE = {"torch_dtype", "dtype", "_name_or_path", "transformers_version"}
"""Fields that an export may change; the types of weights are compared with the weights."""


class Different(Exception):  # noqa: N818 - it never leaves the verification
    """An export differs from its source; the text says in what."""


@dataclass(frozen=True, slots=True)
class Side:
    """An export or its source.

    Attributes:
        config: Its configuration.
        tokenizer: Its tokenizer; None if it has none.
        files: Its tokenizer's files and those of sentence embeddings, by name.
    """

    config: EncoderConfig
    tokenizer: PreTrainedTokenizerFast | None
    files: dict[str, Path]

    def batch(self, text: str) -> BatchEncoding:
        """A text as its ids; without a tokenizer, as invented ids."""
        if self.tokenizer is None:
            return batch_of_prompt(text, self.config)
        encoding = TextEncoding(self.tokenizer, truncation=self.tokenizer.limit is not None)
        return encoding.batch(encoding([text])[0])


def side_of(checkpoint: Checkpoint, config: EncoderConfig) -> Side:
    """The files of a checkpoint that decide what a text means to it.

    Raises:
        FlodlError: A file is broken.
    """
    try:
        tokenizer = PreTrainedTokenizerFast.from_checkpoint(checkpoint, config)
    except (TokenizerMissingError, FileNotFoundError):
        tokenizer = None
    return Side(config, tokenizer, companions_of(checkpoint))


def compare_configs(config: EncoderConfig, opened: Opened) -> str:
    """Compare the configuration of an export with what its source exports.

    Raises:
        Different: A field differs; names all of them.
    """
    expected = json.loads(exported_config(opened.config, opened.graph))
    actual, free = config.source, {*_FREE, SOURCE_REPO, SOURCE_REVISION}
    differing = sorted(
        name
        for name in {*expected, *actual} - free
        if name not in actual or name not in expected or expected[name] != actual[name]
    )
    if differing:
        listed = "; ".join(
            f"{name} is {_shown(actual, name)}, and {_shown(expected, name)} in the source"
            for name in differing[:5]
        )
        raise Different(f"{len(differing)} fields of config.json differ: {listed}")
    return f"{len(expected)} fields equal to those of {opened.checkpoint.name}"


def _shown(fields: dict[str, Any], name: str) -> str:
    return f"{fields[name]!r:.60}" if name in fields else "absent"


def compare_tokenizers(mine: Side, theirs: Side) -> str:
    """Compare tokenizers: their files, words, settings and limits.

    Raises:
        Different: The export lacks a file, or a tokenizer reads texts in another way.
    """
    lost = sorted(theirs.files.keys() - mine.files.keys())
    if lost:
        raise Different(f"the export has no {', '.join(lost)}, which the source has")
    for name in COMPANIONS:
        if name in theirs.files and name not in OWN_NAMES and not _equal_files(mine, theirs, name):
            raise Different(f"{name} differs from that of the source")
    if theirs.tokenizer is None:
        return "the source has no tokenizer"
    if mine.tokenizer is None:
        raise Different("the export has no tokenizer, and the source has one")
    for what, left, right in _facts(mine.tokenizer, theirs.tokenizer):
        if left != right:
            raise Different(f"{what} of the tokenizer differs: {left!r:.60}, not {right!r:.60}")
    for name in sorted(OWN_NAMES & theirs.files.keys()):
        if not _equal_files(mine, theirs, name):
            raise Different(f"{name} differs from that of the source")
    return f"{len(theirs.files)} files and {len(theirs.tokenizer)} words equal"


def _facts(
    mine: PreTrainedTokenizerFast, theirs: PreTrainedTokenizerFast
) -> Iterator[tuple[str, Any, Any]]:
    yield "the vocabulary", mine.get_vocab(), theirs.get_vocab()
    for name in ("special_tokens_map", "model_max_length", "padding_side", "truncation_side"):
        yield name, getattr(mine, name), getattr(theirs, name)
    for text in TEXTS:
        yield f"the reading of {text!r}", mine(text)["input_ids"], theirs(text)["input_ids"]


def _equal_files(mine: Side, theirs: Side, name: str) -> bool:
    left, right = mine.files.get(name), theirs.files[name]
    return left is not None and left.read_bytes() == right.read_bytes()


def compare_outputs(
    mine: Side,
    model: nn.Module,
    theirs: Side,
    origin: Checkpoint,
    prompt: str,
    without: Collection[str] = (),
) -> str:
    """Compare what transformers computes for texts, each side with its own files.

    Args:
        mine: The export.
        model: The export in transformers.
        theirs: The source.
        origin: Its files.
        prompt: A text, beside :data:`TEXTS`.
        without: Names of outputs that do not count.

    Raises:
        Different: Ids, outputs or labels differ.
    """
    with tempfile.TemporaryDirectory(prefix="flodl-hf-") as folder:
        # The source says what it is, except for the class, which the export may have chosen.
        (Path(folder) / "config.json").write_text(theirs.config.to_json_string())
        source = load(origin.weight_files().files[0].parent, Path(folder)).model
    name = origin.name + _converted(source, mine.config)
    for text in (prompt, *TEXTS):
        ours = mine.batch(text)
        given = ours if theirs.tokenizer is None else theirs.batch(text)
        if ours.input_ids.tolist() != given.input_ids.tolist():
            raise Different(f"the tokenizers of export and source read {text!r:.60} differently")
        left = outputs_of_reference(model, inputs_of(ours, mine.config))
        right = outputs_of_reference(source, inputs_of(given, theirs.config))
        for unknown in without:
            left.pop(unknown, None)
        if (apart := largest_difference(left, right)) != 0.0:
            raise Different(f"outputs of transformers differ by {apart:.3g} from {name}")
        if _labels(left, mine.config) != _labels(right, theirs.config):
            raise Different(f"the labels of {text!r:.60} differ from those of {name}")
    return f"transformers computes the same from {name}"


def _labels(outputs: dict[str, torch.Tensor], config: EncoderConfig) -> list[str]:
    if not named_head(config).labelled:
        return []
    return [config.id2label[number] for number in outputs["logits"].argmax(-1).flatten().tolist()]


def _converted(model: nn.Module, config: EncoderConfig) -> str:
    """Round a model of the reference to the dtype of the export; return a note if it changed."""
    dtype = getattr(torch, config.dtype or "", None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return ""
    changed = False
    for parameter in model.parameters():
        rounded = parameter.data.to(dtype).to(parameter.dtype)
        changed |= not torch.equal(rounded, parameter.data)
        parameter.data = rounded
    return f" converted to {config.dtype}" if changed else ""
