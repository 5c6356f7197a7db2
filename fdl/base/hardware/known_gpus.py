"""The memory of GPUs that are not in this machine."""

from __future__ import annotations

import re

from fdl.base.errors import UsageError
from fdl.base.suggest import did_you_mean

_MIB = 1 << 20

GPUS = {
    "RTX 2080 Ti": 11264, "RTX 3060": 12288, "RTX 3080": 10240, "RTX 3090": 24576,
    "RTX 4060 Ti": 16380, "RTX 4070": 12282, "RTX 4080": 16376, "RTX 4090": 24564,
    "RTX 5080": 16303, "RTX 5090": 32607, "RTX A6000": 49140, "RTX 6000 Ada": 49140,
    "T4": 15360, "V100": 16384, "L4": 23034, "A10": 23028, "L40S": 46068,
    "A100": 40960, "A100 80GB": 81920, "H100": 81559, "H200": 143771, "B200": 183359,
}  # fmt: skip
"""Name -> memory in MiB, as ``nvidia-smi`` shows it; of several sizes, the smallest."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(GB|GiB|MiB)", re.IGNORECASE)
_UNITS = {"gb": 10**9, "gib": 1 << 30, "mib": _MIB}


def memory_of(text: str) -> int:
    """Bytes of a GPU's name, or of a size such as ``24GB``, in powers of 1000.

    Raises:
        UsageError: It is neither.
    """
    if size := _SIZE.fullmatch(text.strip()):
        return int(float(size[1]) * _UNITS[size[2].lower()])
    known = {_key(name): name for name in GPUS}
    if name := known.get(_key(text)):
        return GPUS[name] * _MIB
    raise UsageError(
        f"--gpu does not know `{text}`",
        hint=did_you_mean(text, list(GPUS), f"type its memory (24GB), or one of {', '.join(GPUS)}"),
    )


def _key(name: str) -> str:
    return re.sub(r"nvidia|geforce|[\s_-]", "", name.casefold())
