"""Archives and wheels that look like PyTorch's and are made in a moment."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fdl.libtorch.catalog import Artifact, find, this_platform

SIZE = 200_000
EXECUTABLE = 0o100755 << 16


def tree(torch: str, variant: str, *, size: int = SIZE, seed: int = 0) -> dict[str, bytes]:
    """The files of a libtorch, by their paths in it."""
    noise = random.Random(f"{torch} {variant} {seed}")
    files = {
        "build-version": f"{torch}+{variant}\n".encode(),
        "build-hash": b"0123456789abcdef\n",
        "include/torch/torch.h": b"#pragma once\n",
        "lib/libtorch.so": noise.randbytes(size),
        "lib/libc10.so": noise.randbytes(1000),
        "share/cmake/Torch/TorchConfig.cmake": b"set(TORCH_FOUND TRUE)\n",
    }
    if variant.startswith("cu"):
        files["lib/libtorch_cuda.so"] = noise.randbytes(1000)
    return files


def archive(torch: str, variant: str, *, size: int = SIZE, seed: int = 0) -> bytes:
    """An official archive: one folder ``libtorch``, with a test program that nobody needs."""
    found = tree(torch, variant, size=size, seed=seed)
    files = {f"libtorch/{name}": data for name, data in found.items()}
    files |= {"libtorch/bin/test_api": b"a test", "libtorch/bin/torch_shm_manager": b"a program"}
    return zipped(files)


def zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = EXECUTABLE if "/bin/" in name else 0o100644 << 16
            made.writestr(info, data)
    return buffer.getvalue()


def torch_wheel(
    folder: Path,
    version: str,
    *,
    cuda: str | None = None,
    requires: Sequence[str] = (),
    extra: Mapping[str, bytes] | None = None,
) -> Path:
    """torch's Python package, as far as anybody but Python looks."""
    torch, _, local = version.partition("+")
    found = tree(torch, local or "cpu")
    files = {f"torch/{name}": data for name, data in found.items() if not name.startswith("build-")}
    files["torch/__init__.py"] = b"raise ImportError('nobody imports me')\n"
    files["torch/bin/test_api"] = b"a test"
    files["torch/bin/torch_shm_manager"] = b"a program"
    files["torch/version.py"] = (
        "from typing import Optional\n\n"
        f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
        "git_version = 'feedbeef'\n"
    ).encode()
    if cuda:
        files["torch/lib/libtorch_cuda.so"] = b"code for GPUs"
    return wheel(folder, "torch", version, {**files, **(extra or {})}, requires)


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
) -> Path:
    """A wheel that pip accepts, for every Python and machine."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {one}" for one in extras]
    lines += [f"Requires-Dist: {one}" for one in requires]
    info = {
        f"{stem}.dist-info/METADATA": "\n".join([*lines, "", ""]).encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listed = {**files, **info}
    record = "".join(f"{one},,\n" for one in [*listed, f"{stem}.dist-info/RECORD"])
    listed[f"{stem}.dist-info/RECORD"] = record.encode()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{stem}-py3-none-any.whl"
    file.write_bytes(zipped(listed))
    return file


def listed(torch: str, variant: str) -> Artifact:
    """What the catalog says for this machine."""
    return find(torch, variant, this_platform())


def is_whole(folder: Path, torch: str, variant: str, *, size: int = SIZE) -> bool:
    """Whether every byte of an archive's tree has arrived."""
    expected = tree(torch, variant, size=size)
    return all((folder / name).read_bytes() == data for name, data in expected.items())
