"""What a shorter type of weights changes in the output of a model, said once when it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flodl import log
from flodl.device import warn_of_slow_bfloat16
from flodl.graph import Graph
from flodl.nn.modes import evaluating

if TYPE_CHECKING:
    from flodl.hf.config_json import EncoderConfig
    from flodl.hf.load_report import LoadReport
    from flodl.hf.weights.stored import Stored

SHORT = (torch.bfloat16, torch.float16)
"""The types whose error is measured."""

_ROWS, _LENGTH = 2, 16


def tell_error(
    graph: nn.Module, stored: Stored, report: LoadReport, config: EncoderConfig
) -> float | None:
    """Print how far the outputs of a model in a short type are from those in float32.

    Two rows of drawn tokens are computed with both. The float32 weights are those of the files,
    which are mapped and not copied. Random generators and the model do not change.

    Args:
        graph: A model that was just filled.
        stored: The files it was filled from.
        report: Which tensor of the files went where.
        config: The configuration of the model.

    Returns:
        The norm of the difference, divided by the norm of the outputs in float32. None if the
        files hold no longer type, or the memory of a GPU is too small.
    """
    short = next((p for p in graph.parameters() if p.is_floating_point()), None)
    longer = set(report.dtypes) - {"BF16", "F16"}
    if short is None or short.dtype not in SHORT or not longer or not isinstance(graph, Graph):
        return None
    warn_of_slow_bfloat16(short.dtype, short.device)
    try:
        error = _error(graph, _exact(graph, stored, report, short.device), config, short.device)
    except torch.OutOfMemoryError:
        return None
    name = str(short.dtype).removeprefix("torch.")
    log.msg(
        f"{stored.where}: in {name}, outputs differ from those in float32 by {error:.1e} "
        f"(relative norm, {_ROWS} rows of drawn tokens)"
    )
    return error


def _exact(
    graph: nn.Module, stored: Stored, report: LoadReport, device: torch.device
) -> dict[str, Tensor]:
    """The tensors of the model in float32: those of the files, and its own where it drew them."""
    source = {key: key for key in report.loaded} | {new: old for old, new in report.renamed.items()}
    source |= {name: source[key] for name, key in report.tied.items() if key in source}
    read = stored.read(set(source.values()))
    tensors: dict[str, Tensor] = {}
    for name, value in (*graph.named_parameters(), *graph.named_buffers()):
        if value.is_floating_point():
            longer = read[source[name]] if name in source else value.detach()
            tensors[name] = longer.to(device, torch.float32)
    return tensors


def _error(
    graph: nn.Module, tensors: dict[str, Tensor], config: EncoderConfig, device: torch.device
) -> float:
    draw = torch.Generator().manual_seed(0)
    length = max(1, min(_LENGTH, config.max_position_embeddings - 4))
    ids = torch.randint(config.vocab_size, (_ROWS, length), generator=draw).to(device)
    try:
        with evaluating(graph), torch.inference_mode():
            short: Any = graph(ids)
            exact: Any = torch.func.functional_call(graph, tensors, (ids,))
    finally:
        for module in graph.modules():
            if isinstance(module, Graph):
                module.observe()  # nobody asked for the tagged values of these rows
    return float((short.float() - exact).norm() / exact.norm())
