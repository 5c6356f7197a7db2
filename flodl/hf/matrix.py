"""Export and verify every family with every head."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flodl.hf.head_kind import HeadKind

if TYPE_CHECKING:
    from flodl.hf.families import EncoderConfig

FAMILIES = ("bert", "roberta", "distilbert", "xlm-roberta", "albert", "deberta-v2", "modernbert")
"""The families in the order of the grid."""
HEADS = tuple(kind.value for kind in HeadKind)
"""The heads in the order of the grid."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One family with one head, and a model of that kind on the Hub.

    Attributes:
        family: One of :data:`FAMILIES`.
        head: One of :data:`HEADS`.
        repo: The model on the Hub. It gets this head even if it was saved with another one.
        needs_convert: Whether its weights exist as a pickle file only.
    """

    family: str
    head: str
    repo: str
    needs_convert: bool

    @property
    def name(self) -> str:
        """``bert`` for the encoder, ``bert-qa`` with a head."""
        return self.family if self.head == HeadKind.BASE else f"{self.family}-{self.head}"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one cell.

    Attributes:
        cell: The cell.
        passed: Whether all checks passed.
        seconds: How long it took.
        reason: Which checks failed; empty if all passed.
    """

    cell: Cell
    passed: bool
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """The results of all cells."""

    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Whether all cells that ran passed."""
        return all(one.passed for one in self.results)

    def as_json(self) -> list[dict[str, Any]]:
        """The results as plain data."""
        return [asdict(one) for one in self.results]

    def as_text(self) -> str:
        """A table of families and heads, and the reasons of failed cells."""
        found = {(one.cell.family, one.cell.head): one for one in self.results}
        lines = ["".join(f"{text:<14}" for text in ("family", *HEADS)).rstrip()]
        for family in FAMILIES:
            told = [_told(found.get((family, head))) for head in HEADS]
            lines.append("".join(f"{text:<14}" for text in (family, *told)).rstrip())
        reasons = [f"{one.cell.name}: {one.reason}" for one in self.results if not one.passed]
        return "\n".join([*lines, *reasons]) + "\n"


def _told(result: Result | None) -> str:
    if result is None:
        return "-"
    return f"{'PASS' if result.passed else 'FAIL'} {result.seconds:.1f}s"


def all_cells() -> tuple[Cell, ...]:
    """The cells in the order of the grid."""
    text = files("flodl.hf").joinpath("head_matrix.json").read_text(encoding="utf-8")
    return tuple(Cell(**fields) for fields in json.loads(text)["cells"])


def verify_matrix(
    *,
    families: Sequence[str] = FAMILIES,
    heads: Sequence[str] = HEADS,
    synthetic: bool = False,
    staging: Path | None = None,
    keep: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Grid:
    """Export and verify a model of every chosen cell; a failed cell does not stop the others.

    Args:
        families: The families to run.
        heads: The heads to run.
        synthetic: Make small random models instead of downloading those of the Hub.
        staging: Folder for the exports; a temporary one by default.
        keep: Keep the exports there.
        progress: Called with each cell when it is done.

    Raises:
        MissingDependencyError: ``transformers`` is not installed.
    """
    from flodl.hf.reference import transformers

    transformers()
    cells = [one for one in all_cells() if one.family in families and one.head in heads]
    with ExitStack() as stack:
        folder = _folder(staging, keep=keep)
        if not keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        results = []
        for cell in cells:
            result = _run(cell, folder=folder, synthetic=synthetic)
            results.append(result)
            if progress is not None:
                progress(f"{result.cell.name}: {_told(result)}")
        return Grid(tuple(results))


def _folder(staging: Path | None, *, keep: bool) -> Path:
    """The folder of the exports; if it will be removed, it is always a new folder."""
    if staging is not None:
        staging.mkdir(parents=True, exist_ok=True)
        if keep:
            return staging
    return Path(tempfile.mkdtemp(prefix="flodl-hf-", dir=staging))


def _run(cell: Cell, *, folder: Path, synthetic: bool) -> Result:
    began = time.perf_counter()
    try:
        reason = _problem(cell, folder / cell.name, synthetic=synthetic)
    except Exception as error:  # any failure of a cell is the result of that cell
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return Result(cell, not reason, time.perf_counter() - began, reason)


def _problem(cell: Cell, folder: Path, *, synthetic: bool) -> str:
    """Export and verify one cell; return what failed, or nothing."""
    from flodl.hf.export import export_command
    from flodl.hf.verify import verify_export

    source = source_of(cell, folder / "source", synthetic=synthetic)
    out = folder / "export"
    export_command(hub=source, checkpoint=None, out=out, head=HeadKind(cell.head), force=True)
    report = verify_export(out, family=cell.family, source=source)
    return "; ".join(f"{one.name}: {one.detail}" for one in report.checks if one.passed is False)


def source_of(cell: Cell, folder: Path, *, synthetic: bool) -> str:
    """The place of a cell's model: on the Hub, converted if needed, or made in a folder.

    Args:
        cell: The cell.
        folder: Where a synthetic model is made.
        synthetic: Whether to make a model.

    Raises:
        FlodlError: The model cannot be obtained.
    """
    if synthetic:
        from flodl.hf.reference import make_synthetic

        make_synthetic(tiny_config(cell), HeadKind(cell.head), folder, cell.name)
        return str(folder)
    if cell.needs_convert:
        from flodl.hf.conversion import convert

        convert(cell.repo)
    return cell.repo


def tiny_config(cell: Cell) -> EncoderConfig:
    """A small model of a family that uses every part of its architecture."""
    from flodl.hf.families import AutoConfig

    labels = ("no", "perhaps", "yes") if cell.head in (HeadKind.SEQCLS, HeadKind.TOKCLS) else ()
    fields = {
        "model_type": cell.family,
        "vocab_size": 120,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        **_FAMILY_FIELDS.get(cell.family, {}),
    }
    config = AutoConfig.from_json_str(json.dumps(fields))
    return config.replace(id2label=labels) if labels else config


_FAMILY_FIELDS: dict[str, dict[str, Any]] = {
    "roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "xlm-roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "albert": {"embedding_size": 16, "num_hidden_groups": 2, "inner_group_num": 2},
    "modernbert": {
        "num_hidden_layers": 3,
        "global_attn_every_n_layers": 2,
        "local_attention": 8,
        "pad_token_id": 0,
    },
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 8,
        "max_relative_positions": 32,
        "pos_att_type": "p2c|c2p",
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "conv_kernel_size": 3,
    },
}
