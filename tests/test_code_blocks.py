"""Every code block of the documentation runs in a test, or stands here with the reason."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.pages import ROOT
from tests.test_guides import FIRST, GUIDES, can_run

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(python|py|console|bash)(?: +(\S+))?[^\n]*\n(.*?)^```", re.S | re.M)

NOT_RUN = {
    "docs/get-started.md": (2, "installs flodl, continues after Ctrl-C"),
    "docs/guide/completion.md": (1, "changes the start-up file of the shell"),
    "docs/guide/cpp-and-rust.md": (5, "downloads gigabytes; three files of Bazel"),
    "docs/guide/dependencies.md": (1, "needs four GPUs"),
    "docs/guide/elastic.md": (1, "needs a second process while the first one trains"),
    "docs/guide/machines.md": (4, "needs two hosts; tests with network namespaces type them"),
    "docs/guide/uv.md": (1, "installs torch; a slow test types it"),
    # Tests of threads and the playground make the same calls with other models.
    "docs/guide/huggingface.md": (6, "needs the Hub, an installation, or a file of the reader"),
    "docs/guide/libtorch.md": (1, "downloads gigabytes"),
    "docs/guide/sweeps.md": (1, "needs a sweep that was interrupted"),
    "docs/reference/diagnose.md": (1, "needs the program jq"),
    "docs/reference/huggingface.md": (1, "takes minutes; its results are on the pages of models"),
    "docs/reference/run-record.md": (1, "reads a file whose name differs from run to run"),
    "docs/tutorials/huggingface.md": (3, "installs a package; takes minutes"),
    "docs/tutorials/monitor.md": (1, "needs servers of MLflow and Weights & Biases"),
    "docs/tutorials/multi-gpu.md": (3, "needs several machines or GPUs; the page types the rest"),
    "docs/tutorials/training-more.md": (1, "needs two GPUs"),
    "docs/tutorials/utilities.md": (1, "needs a GPU"),
}
"""Page -> number of its blocks that do not run, and why."""

RUN_IN_FULL = (
    DOCS / "index.md",
    DOCS / "reference/distributed.md",
    *(DOCS / "explanation").glob("*.md"),
    *(DOCS / "porting").glob("*.md"),
)


def not_run() -> dict[str, list[str]]:
    """Page -> the blocks that no test runs."""
    found: dict[str, list[str]] = {}
    for page in sorted(DOCS.rglob("*.md")):
        for language, word, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if page in RUN_IN_FULL:
                runs = language in ("python", "console")
            elif page in (*GUIDES, FIRST):
                # A file that a guide names is written, and its commands use it.
                runs = can_run(word) if language == "console" else bool(word)
            elif page.parent.name == "tutorials":
                runs = language in ("python", "console") and word != "no-run"
            else:
                runs = False
            if not runs:
                found.setdefault(page.relative_to(ROOT).as_posix(), []).append(text)
    return found


def test_every_block_runs_or_has_a_reason():
    found = {page: len(blocks) for page, blocks in not_run().items()}
    assert found == {page: number for page, (number, _) in NOT_RUN.items()}


def test_the_blocks_that_do_not_run_are_python_where_they_say_so():
    seen = Counter[str]()
    for page in sorted(DOCS.rglob("*.md")):
        for language, _, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in ("python", "py"):
                ast.parse(text.replace("…", "..."))
                seen[language] += 1
    assert seen["python"] > 100
