"""Map versions of the PTX language to CUDA versions.

A driver compiles PTX only of the language versions that it knows. Drivers of one CUDA major are
interchangeable, but not for PTX (CUDA compatibility guide, "Application Considerations"; PTX ISA,
"Release Notes").
"""

from __future__ import annotations

_CUDA = {
    (6, 0): "9.0",
    (6, 1): "9.1",
    (6, 2): "9.2",
    (6, 3): "10.0",
    (6, 4): "10.1",
    (6, 5): "10.2",
    (7, 0): "11.0",
    (7, 1): "11.1",
    (7, 2): "11.2",
    (7, 3): "11.3",
    (7, 4): "11.4",
    (7, 5): "11.5",
    (7, 6): "11.6",
    (7, 7): "11.7",
    (7, 8): "11.8",
    (8, 0): "12.0",
    (8, 1): "12.1",
    (8, 2): "12.2",
    (8, 3): "12.3",
    (8, 4): "12.4",
    (8, 5): "12.5",
    (8, 6): "12.7",
    (8, 7): "12.8",
    (8, 8): "12.9",
    (9, 0): "13.0",
    (9, 1): "13.1",
}


def cuda_of(isa: tuple[int, int]) -> str:
    """The CUDA version that introduced a version of PTX; empty if it is not known here."""
    return _CUDA.get(isa, "")
