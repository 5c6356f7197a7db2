"""The tutorials of docs/tutorials: the code of a page runs from top to bottom as one program.

A ``python`` block is run; the ``text`` block right below it is what it prints, where a line of
``...`` stands for any lines and ``...`` at the end of a line for its rest. What a block prints is
always shown.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rows import each_row
from tests.test_guides import LINK, fits, marked

FOLDER = Path(__file__).parent.parent / "docs/tutorials"
TUTORIALS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
PROGRAMS = [path for path in TUTORIALS if path.stem != "huggingface"]
"""Those that need nothing but themselves; the other one is run by its own test, beside a Hub."""
SLOW = ("ddp-builder.md", "multi-gpu.md")
"""They train several times in two ranks."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def steps(page: str) -> Iterator[tuple[int, str, list[str]]]:
    """The line a program's block begins at, the block, and the lines it shall print."""
    blocks = list(BLOCK.finditer(page))
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] == "python":
            shown = following is not None and following[1] == "text"
            printed = following[2].splitlines() if following is not None and shown else []
            yield page.count("\n", 0, block.start(2)), block[2], printed


# Torch looks at `.grad` of carried state while it compiles, and mutes its own remark on that.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning")  # torch.export's own
@pytest.mark.parametrize(
    "tutorial",
    [marked(path, SLOW) for path in PROGRAMS],
    ids=lambda path: path.stem,
)
@pytest.mark.usefixtures("forked_spawns")
def test_a_tutorial_runs_and_prints_what_it_shows(
    tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program: dict[str, object] = {"__name__": "tutorial"}
    ran = 0
    for line, block, promised in steps(tutorial.read_text(encoding="utf-8")):
        seen = io.StringIO()
        # The empty lines give tracebacks the line numbers of the page.
        code = compile("\n" * line + block, str(tutorial), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(seen):
            exec(code, program)
        printed = seen.getvalue()
        assert fits(promised, printed.splitlines()), f"{tutorial.name}:{line + 1}\n{printed}"
        ran += 1
    assert ran > 4


@each_row("page", [FOLDER / "README.md", *TUTORIALS], ids=lambda path: path.stem)
def test_every_link_of_a_tutorial_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        assert (page.parent / target).exists(), target


def test_the_index_names_every_tutorial() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((\w[\w-]*\.md)\)", index)) == [path.name for path in TUTORIALS]


@each_row("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_says_first_what_the_reader_can_do_afterwards(tutorial: Path) -> None:
    title, _, beginning = tutorial.read_text(encoding="utf-8").partition("\n\n")
    assert title.startswith("# ")
    assert beginning.startswith("After this page you can ")


def test_the_picture_is_what_the_tutorial_draws() -> None:
    """``UPDATE_SCREENS=1`` renews the picture."""
    first = next(steps((FOLDER / "visualisation.md").read_text(encoding="utf-8")))
    program: dict[str, Any] = {"__name__": "tutorial"}
    exec(first[1], program)
    drawing: bytes = program["model"].svg(expand=("encoder",))
    picture = FOLDER.parent / "images/graph.svg"
    if os.environ.get("UPDATE_SCREENS") == "1":
        picture.write_bytes(drawing)
    assert picture.read_bytes() == drawing
