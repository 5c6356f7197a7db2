"""Small programs that show the use of a model of each family, and how to fine-tune one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import FAMILIES, all_cells

_TASKS = {
    "embed": HeadKind.BASE,
    "classify": HeadKind.SEQCLS,
    "ner": HeadKind.TOKCLS,
    "qa": HeadKind.QA,
    "fill-mask": HeadKind.MLM,
}
_AUTO = "auto-classify"
_FINETUNES = ("distilbert-finetune", "lora-finetune")

EXAMPLES = (
    _AUTO,
    *(f"{family}-{task}" for family in FAMILIES for task in _TASKS),
    *_FINETUNES,
)
"""The names of all examples."""


@dataclass(frozen=True, slots=True)
class Usual:
    """The model that an example was made for.

    Attributes:
        repo: Its repository on the Hub.
        head: What the example predicts; a fine-tuning draws a head of its own.
        family: The family that the example needs; None for any.
    """

    repo: str
    head: HeadKind
    family: str | None


def usual(name: str) -> Usual:
    """The model that an example was made for.

    Args:
        name: One of :data:`EXAMPLES`.

    Raises:
        KeyError: There is no such example.
    """
    if name not in EXAMPLES:
        raise KeyError(name)
    if name in _FINETUNES:
        return Usual(_repo("distilbert", HeadKind.BASE), HeadKind.BASE, None)
    if name == _AUTO:
        return Usual(_repo("roberta", HeadKind.SEQCLS), HeadKind.SEQCLS, None)
    family = next(one for one in reversed(FAMILIES) if name.startswith(f"{one}-"))
    head = _TASKS[name.removeprefix(f"{family}-")]
    return Usual(_repo(family, head), head, family)


def run_example(name: str, src: str | None = None, out: Path | None = None) -> None:
    """Run one example.

    Args:
        name: One of :data:`EXAMPLES`.
        src: Repository or directory; None for the model that the example was made for.
        out: Folder for the files of a fine-tuning; None for a folder in the working directory.

    Raises:
        KeyError: There is no such example.
        ValueError: A folder was given and the example saves nothing, or the model is of another
            family.
        FlodlError: The model cannot be downloaded or loaded.
    """
    known = usual(name)
    src = src or known.repo
    if name in _FINETUNES:
        from flodl.hf.examples import finetune

        run = finetune.full if name == _FINETUNES[0] else finetune.lora
        run(src, out or Path(name))
        return
    if out is not None:
        raise ValueError(f"the example {name} saves nothing: leave {out} out")
    from flodl.hf.examples import predict

    task = "classify" if name == _AUTO else name.removeprefix(f"{known.family}-")
    predict.TASKS[task](src, known.family)


def _repo(family: str, head: HeadKind) -> str:
    return next(cell.repo for cell in all_cells() if cell.family == family and cell.head == head)
