"""Write a model as an ONNX file, with batches and rows of any size.

Names of inputs and outputs are those of Optimum. torch traces the model in rows with padding,
because the number of packed tokens would depend on data.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fdl.base.files import staging
from flodl.errors import FlodlError
from flodl.graph import Graph
from flodl.hf.config_json import AutoConfig, EncoderConfig
from flodl.hf.dependencies import need
from flodl.hf.encoded import EncodedBatch
from flodl.hf.head_kind import HeadKind
from flodl.hf.loss_cells import batch_for
from flodl.hf.outline import exported_kind
from flodl.hf.output_files import ONNX, ONNX_DATA, new_directory, place_onnx
from flodl.hf.reference import Outputs, batch_of_prompt, largest_difference, outputs_of_graph
from flodl.hf.task_heads import inputs_of

OPSET = 20
"""Version of the ONNX operators; onnxruntime knows it from 1.17 on."""

TOLERANCE = 1e-4
"""Largest difference of a written file, relative to the largest output or to 1."""

_EXTRA = "onnx"
_DYNAMIC = {0: "batch_size", 1: "sequence_length"}
_TRACED = (2, 8)
"""Rows and tokens of the traced batch; both above 1, because torch treats 1 as a fixed size."""


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A written ONNX file.

    Attributes:
        files: Its names in the directory: ``model.onnx``, and ``model.onnx.data`` above 2 GB.
        inputs: Names of the inputs, int64 ``[batch_size, sequence_length]`` each.
        outputs: Names of the outputs, float32.
        difference: Largest absolute difference between the outputs of onnxruntime and of the model,
            on two batches of other sizes than the traced one; None without onnxruntime.
    """

    files: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    difference: float | None

    def notes(self) -> list[str]:
        """What a user should know, one line each."""
        ports = f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}"
        compared = (
            "not compared, because onnxruntime is not installed: run pip install onnxruntime"
            if self.difference is None
            else f"onnxruntime computes the same within {self.difference:.2g}"
        )
        return [f"{ONNX}: opset {OPSET}, {ports}", f"{ONNX}: {compared}"]


def export_onnx(graph: Graph, out_dir: str | Path) -> OnnxFile:
    """Write ``model.onnx`` into a directory, for instance beside an export.

    The file computes in float32. Padding on any side is allowed. The file appears when it is
    complete and, if onnxruntime is installed, has been compared with the model.

    Args:
        graph: A model of ``flodl.hf``; it is not changed.
        out_dir: The directory; created with its parents.

    Returns:
        What was written.

    Raises:
        ConfigError: The model has no configuration, or one that names no head of flodl.
        FlodlError: torch cannot trace the model, or onnxruntime computes something else.
        MissingDependencyError: onnx or onnxscript is not installed.
        OSError: The system refused.
    """
    out = Path(out_dir)
    with new_directory(out), staging(out) as hidden:
        written = write_onnx(graph, hidden)
        place_onnx(hidden, out)
    return written


def check_onnx_packages() -> None:
    """Check that the packages for writing ONNX files are installed.

    Raises:
        MissingDependencyError: One is missing.
    """
    need("onnx", _EXTRA)
    need("onnxscript", _EXTRA)


def write_onnx(graph: Graph, folder: Path) -> OnnxFile:
    """Write and compare the file; see :func:`export_onnx`.

    Args:
        graph: The model.
        folder: A folder that nothing reads yet; see
            :func:`~flodl.hf.output_files.place_onnx`.
    """
    check_onnx_packages()
    config = AutoConfig.from_json_str(str(graph.source_config))
    kind = exported_kind(config)
    model = copy.deepcopy(graph).to("cpu", torch.float32).eval()
    inputs, outputs = _names(config, kind)
    program = _traced(_Ports(model, kind), inputs, outputs, config)
    _share_transposed(program)
    _remove_notes(program)
    program.save(folder / ONNX)
    del program  # it holds the weights once more
    files = tuple(name for name in (ONNX, ONNX_DATA) if (folder / name).exists())
    difference = onnx_difference(model, config, folder / ONNX)
    return OnnxFile(files, inputs, outputs, difference)


class _Ports(nn.Module):
    """A model with the inputs and outputs of the file."""

    def __init__(self, model: Graph, kind: HeadKind) -> None:
        super().__init__()
        self.model = model
        self.kind = kind

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Run the model."""
        found: Tensor = self.model(input_ids, attention_mask, token_type_ids)
        if self.kind is not HeadKind.QA:
            return found
        starts, ends = found.unbind(-1)
        return starts, ends


def _names(config: EncoderConfig, kind: HeadKind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the inputs and of the outputs."""
    inputs = tuple(name for name in _batch(config) if name != "position_ids")
    match kind:
        case HeadKind.BASE:
            return inputs, ("last_hidden_state",)
        case HeadKind.QA:
            return inputs, ("start_logits", "end_logits")
        case _:
            return inputs, ("logits",)


def _batch(config: EncoderConfig) -> dict[str, Tensor]:
    """The inputs of the traced batch, by name; their values do not matter."""
    ids = torch.full(_TRACED, min((config.pad_token_id or 0) + 1, config.vocab_size - 1))
    return inputs_of(EncodedBatch(ids, torch.ones_like(ids)), config)


def _traced(
    model: _Ports, inputs: tuple[str, ...], outputs: tuple[str, ...], config: EncoderConfig
) -> Any:
    """The program of torch's exporter.

    Raises:
        FlodlError: The model cannot be traced.
    """
    batch = _batch(config)
    with _quiet():
        try:
            return torch.onnx.export(
                model,
                tuple(batch[name] for name in inputs),
                dynamo=True,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=dict.fromkeys(inputs, _DYNAMIC),
                opset_version=OPSET,
                verbose=False,
            )
        except Exception as error:  # the exporter raises errors of many packages
            first = str(error).strip().partition("\n")[0]
            raise FlodlError(
                f"this {config.model_type} cannot be written as ONNX: "
                f"{type(error).__name__}: {first}"
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the messages of the exporter about its own code."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _share_transposed(program: Any) -> None:
    """Store a weight once that the model uses both as it is and transposed.

    The exporter transposes weights of linear layers in advance. If the table of words is also the
    weight of the head, the file would have it twice.
    """
    import onnx_ir

    graph = program.model.graph
    matrices = [one for one in graph.initializers.values() if len(one.shape) == 2 and one.uses()]
    for copied in matrices:
        table = next((one for one in matrices if _is_transposed(copied, one)), None)
        if table is None:
            continue
        graph.initializers.pop(copied.name)
        node = onnx_ir.node("Transpose", [table], {"perm": [1, 0]})
        graph.insert_before(graph[0], node)
        (turned,) = node.outputs
        turned.name, turned.type, turned.shape = copied.name, copied.type, copied.shape
        onnx_ir.convenience.replace_all_uses_with(copied, turned)


def _is_transposed(made: Any, parameter: Any) -> bool:
    """Whether a matrix that the exporter has made is a transposed parameter.

    Only names of parameters have dots.
    """
    if "." in made.name or "." not in parameter.name:
        return False
    if list(made.shape) != list(parameter.shape)[::-1]:
        return False
    return bool((made.const_value.numpy() == parameter.const_value.numpy().T).all())


def _remove_notes(program: Any) -> None:
    """Remove the paths of source files that the exporter writes beside every node."""
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    for value in program.model.graph.initializers.values():
        value.metadata_props.clear()
    program.model.metadata_props.clear()


def onnx_difference(graph: Graph, config: EncoderConfig, file: Path) -> float | None:
    """Compare onnxruntime with a model, on a batch of four rows and on one row.

    The rows of the first have padding on the left or on the right. Positions of padding are not
    compared.

    Args:
        graph: The model, in float32, on the CPU.
        config: Its configuration.
        file: The ONNX file.

    Returns:
        The largest absolute difference of the outputs; None if onnxruntime is not installed.

    Raises:
        FlodlError: The difference is above :data:`TOLERANCE`, or onnxruntime cannot run the file.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    worst = 0.0
    try:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        for enc in (batch_for(config), batch_of_prompt("ONNX", config)):
            ours = outputs_of_graph(graph, config, enc)
            theirs = _run(session, inputs_of(enc, config))
            apart = largest_difference(ours, theirs, enc.attention_mask)
            largest = max(float(theirs[name].abs().max()) for name in theirs)
            if not apart <= TOLERANCE * max(1.0, largest):
                raise FlodlError(
                    f"{file.name}: onnxruntime computes {apart:.3g} apart from the model, whose "
                    f"outputs are up to {largest:.3g}"
                )
            worst = max(worst, apart)
    except FlodlError:
        raise
    except Exception as error:  # onnxruntime raises errors of its own, which share no base
        first = str(error).strip().partition("\n")[0]
        raise FlodlError(f"{file.name}: onnxruntime cannot run it: {first}") from error
    return worst


def _run(session: Any, inputs: dict[str, Tensor]) -> Outputs:
    """The outputs of onnxruntime, by name."""
    given = {port.name: inputs[port.name].numpy() for port in session.get_inputs()}
    names = [port.name for port in session.get_outputs()]
    found = cast("list[Any]", session.run(names, given))
    return {name: torch.from_numpy(array) for name, array in zip(names, found, strict=True)}
