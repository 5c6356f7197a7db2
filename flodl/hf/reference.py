"""The same models in ``transformers``, to compare with; only verification imports this module."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flodl.graph import Graph
from flodl.hf.dependencies import need
from flodl.hf.encoded import EncodedBatch
from flodl.hf.encoder_model import backbone_outputs
from flodl.hf.families import EncoderConfig
from flodl.hf.head_kind import HeadKind, class_name
from flodl.hf.task_heads import inputs_of

Outputs = dict[str, Tensor]
"""``last_hidden_state`` and ``pooler_output``, ``logits``, or ``start_logits``, ``end_logits``."""

_BY_POSITION = ("last_hidden_state", "start_logits", "end_logits")
_WEIGHT_SPREAD, _BIAS_SPREAD, _NORM_SPREAD = 0.05, 0.1, 0.1


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model of the reference, and its report on the weights.

    Attributes:
        model: The model, in float32 and evaluation mode.
        missing: Tensors it had to initialise, sorted.
        unexpected: Tensors it had no place for, sorted.
    """

    model: nn.Module
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def transformers() -> Any:
    """The package, with its messages switched off.

    Raises:
        MissingDependencyError: It is not installed.
    """
    package = need("transformers", "hf-verify")
    package.logging.set_verbosity_error()
    package.logging.disable_progress_bar()
    return package


def load(weights: Path, config: Path) -> Loaded:
    """Load a directory as the class that its configuration names, in float32.

    Args:
        weights: Directory of the weights.
        config: Directory of the configuration.

    Raises:
        MissingDependencyError: ``transformers`` is not installed.
    """
    package = transformers()
    settings = package.AutoConfig.from_pretrained(config)
    made = getattr(package, settings.architectures[0])
    model, info = made.from_pretrained(
        weights, config=settings, dtype=torch.float32, output_loading_info=True
    )
    for parameter in model.parameters():
        # Mapped tensors are aligned as in the file, and the last bit of a product depends on that.
        parameter.data = parameter.data.clone()
    wrong = {*info["missing_keys"], *(key for key, *_ in info.get("mismatched_keys", ()))}
    return Loaded(model.eval(), tuple(sorted(wrong)), tuple(sorted(info["unexpected_keys"])))


def outputs_of_reference(model: nn.Module, inputs: Mapping[str, Tensor]) -> Outputs:
    """Run a model of the reference without gradients, with plain attention."""
    given = {name: tensor for name, tensor in inputs.items() if name != "position_ids"}
    with torch.inference_mode(), plain_attention():
        found = model(**given)
    names = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")
    return {name: found[name] for name in names if found.get(name) is not None}


def outputs_of_graph(graph: Graph, config: EncoderConfig, enc: EncodedBatch) -> Outputs:
    """Run a model of flodl in the same way; outputs have the same names."""
    kind = HeadKind.of_class(config.architectures[0]) if config.architectures else HeadKind.BASE
    with torch.inference_mode(), plain_attention():
        if kind is HeadKind.BASE:
            found = backbone_outputs(graph, enc)
            outputs = {"last_hidden_state": found.last_hidden_state}
            if found.pooler_output is not None:
                outputs["pooler_output"] = found.pooler_output
            return outputs
        logits: Tensor = graph(**inputs_of(enc, config))
    if kind is HeadKind.QA:
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    return {"logits": logits}


@contextmanager
def plain_attention() -> Iterator[None]:
    """Compute attention by its formula, so that rounding does not depend on the kernels."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


def largest_difference(ours: Outputs, theirs: Outputs, mask: Tensor | None = None) -> float:
    """The largest absolute difference of the outputs that both have; infinite if shapes differ.

    Args:
        ours: The outputs of one side.
        theirs: The outputs of the other side.
        mask: ``[B, S]``; 0 at positions that do not count. An output made only from the first
            position of a row counts if that position counts.
    """
    worst = 0.0
    for name in sorted(set(ours) & set(theirs)):
        left, right = ours[name].double(), theirs[name].double()
        if left.shape != right.shape:
            return float("inf")
        apart = (left - right).abs()
        if mask is not None:
            by_position = name in _BY_POSITION or left.dim() == 3
            apart = apart[mask.bool()] if by_position else apart[mask[:, 0].bool()]
        found = float(apart.max()) if apart.numel() else 0.0
        if math.isnan(found):
            return found
        worst = max(worst, found)
    return worst if set(ours) & set(theirs) else float("inf")


def batch_of_prompt(prompt: str, config: EncoderConfig) -> EncodedBatch:
    """A batch of one row for a model without a tokenizer: one id per byte of the text."""
    first = 1 + max(config.pad_token_id or 0, 2)
    room = max(config.vocab_size - first, 1)
    limit = config.max_position_embeddings - first
    ids = [first + byte % room for byte in prompt.encode()][: max(limit, 1)] or [first]
    row = torch.tensor([ids], dtype=torch.int64)
    return EncodedBatch(row, torch.ones_like(row))


def make_synthetic(config: EncoderConfig, kind: HeadKind, folder: Path, name: str) -> None:
    """Save a random checkpoint of the reference.

    Every parameter is drawn: new models have zero biases and LayerNorms of one, which would hide a
    missing tensor. The same name gives the same values.

    Args:
        config: Its configuration.
        kind: Its head.
        folder: The directory to write.
        name: Determines the values.

    Raises:
        MissingDependencyError: ``transformers`` is not installed.
    """
    package = transformers()
    folder.mkdir(parents=True, exist_ok=True)
    architecture = class_name(config, kind)
    (folder / "config.json").write_text(
        config.replace(architectures=(architecture,)).to_json_string()
    )
    model = getattr(package, architecture)(package.AutoConfig.from_pretrained(folder))
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(_drawn(key, parameter, generator))
    model.save_pretrained(folder)


def _drawn(key: str, like: Tensor, generator: torch.Generator) -> Tensor:
    values = torch.randn(like.shape, generator=generator)
    if key.endswith("bias"):
        return values * _BIAS_SPREAD
    is_norm = "norm" in key.lower() and like.dim() == 1
    return 1 + values * _NORM_SPREAD if is_norm else values * _WEIGHT_SPREAD
