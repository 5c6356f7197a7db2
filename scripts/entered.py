"""How many functions and files of ``flodl`` a call enters, and how often it moves between files.

    python scripts/entered.py

makes a tiny BERT, opens it with ``from_pretrained`` and predicts with it, each once before, so that
imports do not count.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import flodl
from flodl.hf import AutoModelForSequenceClassification, write_tiny_model

_ROOT = str(Path(flodl.__file__).parent)


def entered(call: Callable[[], object]) -> tuple[int, int, int]:
    """Functions and files that a call enters, and moves from one file to another."""
    functions: set[CodeType] = set()
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_ROOT) or code.co_name == "<module>":
            return
        functions.add(code)
        if not files or files[-1] != code.co_filename:
            files.append(code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(functions), len(set(files)), len(files)


def main() -> None:
    """Print both rows."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "tiny"
        write_tiny_model(source, head="seqcls", words=["some", "text"])
        model = AutoModelForSequenceClassification.from_pretrained(source)
        model.predict(["some text"])
        calls: dict[str, Callable[[], object]] = {
            "from_pretrained": lambda: AutoModelForSequenceClassification.from_pretrained(source),
            "predict": lambda: model.predict(["some text"]),
        }
        for name, call in calls.items():
            functions, files, moves = entered(call)
            sys.stdout.write(f"{name}: {functions} functions in {files} files, {moves} moves\n")


if __name__ == "__main__":
    main()
