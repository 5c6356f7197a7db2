"""Load the weights of a checkpoint into a graph of ``flodl.hf``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from flodl.device import warn_of_slow_bfloat16
from flodl.hf import keys
from flodl.hf.config_json import EncoderConfig
from flodl.hf.device import known_device
from flodl.hf.load_report import LoadReport
from flodl.hf.source import WeightFiles
from flodl.hf.weights.fill import Draw, fill
from flodl.hf.weights.plan import Policy, make_plan
from flodl.hf.weights.slots import slots_of
from flodl.hf.weights.stored import TORCH_DTYPES, StoredFiles
from flodl.log import verbose, warning

HeadInit = Literal["random", "replace", "strict"]

_SHOWN = 20
_FLOATS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def load_weights(
    graph: nn.Module,
    weights: WeightFiles,
    config: EncoderConfig,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    allow_unused: bool = True,
    head_init: HeadInit | None = None,
    seed: int | None = None,
    commit: str | None = None,
) -> LoadReport:
    """Fill a graph from safetensors files: completely, or not at all.

    Weights are memory-mapped. They take memory as they are used, and writing to them leaves the
    file unchanged. A program that overwrites such a file in place, instead of replacing it,
    changes the weights of the graph.

    Tensor names are accepted in all forms that checkpoints use:

    - LayerNorm's ``gamma`` and ``beta``;
    - with and without the prefix of the encoder;
    - a tied output layer under either name or both. If both are there and differ, the output layer
      gets its own parameters (``untied`` of the report).

    Args:
        graph: The module, on the meta device or with tensors. Its names are those of the state dict
            of the reference.
        weights: The files.
        config: The configuration that ``graph`` was built from.
        dtype: Convert all floats to this type. None keeps the stored type; if the files mix types,
            the smallest type that holds them all.
        device: Where the tensors go. None means the CPU for a graph on the meta device, and
            otherwise the device of the graph.
        allow_unused: Whether tensors without a place in the graph are only reported, not refused.
        head_init: ``"random"`` draws the tensors of a head (with its pooler) that the files lack:
            weights from Normal(0, ``initializer_range``), biases 0, LayerNorms 1.
            ``"replace"`` also draws new tensors for those of another shape. ``"strict"`` and None
            draw nothing.
        seed: For drawing; None uses torch's global generator.
        commit: The commit of the files, for the report.

    Returns:
        The report, which is also set as ``graph.load_report``.

    Raises:
        CheckpointFormatError: A file or the index is broken.
        CheckpointMismatchError: The tensors do not match those of the graph.
        MissingDependencyError: The package safetensors is not installed.
        ValueError: An unknown ``dtype`` or ``head_init``.
    """
    if head_init not in (None, "random", "replace", "strict"):
        raise ValueError(f'head_init is "random", "replace", "strict" or None, not {head_init!r}')
    wanted = None if dtype is None else _float_type(dtype)
    slots = slots_of(graph)
    expected = frozenset(key for slot in slots for key in slot.keys)
    stored = StoredFiles(weights)
    policy = Policy(
        prefix=config.prefix if keys.is_prefixed(expected, config.prefix) else "",
        second_names=True,
        tied=config.tie_word_embeddings,
        draws_missing=head_init in ("random", "replace"),
        replaces_head=head_init == "replace",
        allows_unused=allow_unused,
    )
    plan = make_plan(slots, stored, keys.reconciling(expected, config.prefix), policy)
    report = fill(
        plan,
        stored,
        dtype=wanted,
        device=None if device is None else known_device(device),
        draw=Draw(config.initializer_range, seed),
        commit=commit,
    )
    if wanted is None:
        _mention_other_dtype(config.dtype, report)
    _log_unused(report, stored.where)
    attach(graph, report)
    if wanted in (torch.bfloat16, torch.float16):
        warn_of_slow_bfloat16(wanted, next(graph.parameters()).device)
    return report


def attach(graph: nn.Module, report: LoadReport) -> None:
    """Set a report as ``graph.load_report``."""
    graph.__dict__["load_report"] = report


def _float_type(dtype: torch.dtype | str) -> torch.dtype:
    found = _FLOATS.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ValueError(f"dtype is one of {', '.join(_FLOATS)}, not {dtype!r}")
    return found


def _mention_other_dtype(declared: str | None, report: LoadReport) -> None:
    stored = [str(TORCH_DTYPES[name]).removeprefix("torch.") for name in report.dtypes]
    if declared is not None and len(stored) == 1 and stored[0] in _FLOATS and stored[0] != declared:
        warning(
            f"the configuration says {declared} and the weights are stored as {stored[0]}, which "
            "they stay; give dtype= to convert them"
        )


def _log_unused(report: LoadReport, where: str) -> None:
    if report.ignored:
        verbose(f"{where}: not needed: {_first(report.ignored)}")
    if report.unexpected:
        warning(
            f"{where}: {len(report.unexpected)} tensors have no place in this model: "
            f"{_first(report.unexpected)}"
        )


def _first(names: tuple[str, ...]) -> str:
    more = f", ... and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
