"""Decide whether libraries run on a GPU, why, and what to do if they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fdl.base.errors import LibtorchError
from fdl.base.hardware import Gpu, Nvidia
from fdl.libtorch import catalog
from fdl.libtorch.architectures import covers, parse
from fdl.libtorch.catalog import numbers
from fdl.libtorch.prove.binary import Binary
from fdl.libtorch.prove.facts import Facts, images, tally
from fdl.libtorch.prove.fatbin import Image
from fdl.libtorch.prove.ptx import cuda_of

Outcome = Literal["native", "jit", "impossible"]

_ORDER: tuple[Outcome, ...] = ("native", "jit", "impossible")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether libraries run on one GPU.

    Attributes:
        gpu: The GPU.
        outcome: ``native``: there is machine code for it; ``jit``: there is PTX, which the driver
            compiles; ``impossible``: there is neither, or the driver is too old.
        code: The code that it runs, such as ``sm_80``; empty if impossible.
        library: The library that decides; empty if none has GPU code, or the driver decides.
        reason: One sentence without a final full stop.
        cause: Whether the ``code`` in the files or the ``driver`` makes it impossible; else empty.
    """

    gpu: Gpu
    outcome: Outcome
    code: str
    library: str
    reason: str
    cause: Literal["code", "driver", ""] = ""


def cards_of(archs: str) -> tuple[Gpu, ...]:
    """GPUs to judge for, which need not be in this machine: ``6.1;12.0``; suffixes do not matter.

    Raises:
        UsageError: An item is not an architecture.
    """
    capabilities = dict.fromkeys(one.capability for one in parse(archs))
    return tuple(
        Gpu(index, f"compute capability {one[0]}.{one[1]}", one)
        for index, one in enumerate(capabilities)
    )


def judge(gpu: Gpu, facts: Facts, nvidia: Nvidia | None = None) -> Verdict:
    """Decide whether the libraries of a folder run on a GPU; the worst library decides."""
    old = _too_old(facts, nvidia)
    if old:
        return Verdict(gpu, "impossible", "", "", old, "driver")
    if not facts.carriers:
        reason = "no library that can be read has GPU code: this is a build for the CPU"
        return Verdict(gpu, "impossible", "", "", reason, "code")
    each = [_by_library(gpu, one, nvidia) for one in facts.carriers]
    return max(each, key=lambda one: _ORDER.index(one.outcome))


def remedy(verdicts: Sequence[Verdict], facts: Facts, nvidia: Nvidia | None = None) -> str:
    """The smallest change that serves every GPU; empty if all are served.

    Another variant of the same torch version is a smaller change than a build from source. A
    driver that is too old must be updated, unless an older CUDA serves every GPU with it.
    """
    failed = [one for one in verdicts if one.outcome == "impossible"]
    if not failed:
        return ""
    other = facts.is_libtorch and _other_variant([one.gpu for one in verdicts], facts, nvidia)
    if other:
        return other
    driver = [one.reason for one in failed if one.cause == "driver"]
    if driver:
        return f"update the NVIDIA driver: {driver[0]}"
    gpus = [one.gpu for one in verdicts]
    if not facts.is_libtorch:
        numbers = [f"{major}{minor}" for major, minor in sorted({one.capability for one in gpus})]
        flags = " ".join(f"-gencode arch=compute_{one},code=sm_{one}" for one in numbers)
        return f"compile it for these GPUs: nvcc {flags}"
    return catalog.build_command(gpus)


def _by_library(gpu: Gpu, library: Binary, nvidia: Nvidia | None) -> Verdict:
    count = tally(library, gpu.capability)
    if not count.served:
        return Verdict(gpu, "impossible", "", library.name, _why_not(gpu, library), "code")
    if count.native >= count.jit:
        best = _used(gpu, library, "sass")
        served = count.native + count.jit
        part = f" in {served} of {count.general} translation units" * (served < count.general)
        reason = f"{library.name} has machine code for {best.name}{part}"
        return Verdict(gpu, "native", best.name, library.name, reason)
    return _compiled(gpu, library, _used(gpu, library, "ptx"), nvidia)


def _compiled(gpu: Gpu, library: Binary, ptx: Image, nvidia: Nvidia | None) -> Verdict:
    language = f"PTX {ptx.isa[0]}.{ptx.isa[1]}"
    wanted = cuda_of(ptx.isa)
    if nvidia and nvidia.cuda and wanted and numbers(nvidia.cuda) < numbers(wanted):
        reason = (
            f"the {language} in {library.name} takes a driver for CUDA {wanted} or newer, and "
            f"{nvidia.driver or 'the installed one'} is for {nvidia.cuda}"
        )
        return Verdict(gpu, "impossible", "", library.name, reason, "driver")
    asks = f", which takes a driver for CUDA {wanted} or newer" if wanted and not nvidia else ""
    reason = (
        f"{library.name} has PTX for {ptx.name} ({language}{asks}); the driver compiles it when "
        "it is first used, so the first start is slow"
    )
    return Verdict(gpu, "jit", ptx.name, library.name, reason)


def _why_not(gpu: Gpu, library: Binary) -> str:
    names = " ".join(image.name for image in sorted(images(library)))
    count = tally(library, gpu.capability)
    if count.native + count.jit:
        found = f"{count.native + count.jit} of {count.general} translation units"
        return f"{library.name} has code for {gpu.sm} in only {found}; in all it has {names}"
    return f"{library.name} has neither machine code nor PTX for {gpu.sm}; it has {names}"


def _too_old(facts: Facts, nvidia: Nvidia | None) -> str:
    cuda, floor = facts.cuda, facts.driver
    if nvidia is None or cuda is None or not floor or not nvidia.driver:
        return ""
    if numbers(nvidia.driver) >= numbers(floor):
        return ""
    return f"CUDA {cuda.version} takes driver {floor} or newer, installed is {nvidia.driver}"


def _other_variant(gpus: Sequence[Gpu], facts: Facts, nvidia: Nvidia | None) -> str:
    """The command that installs a variant for all GPUs; empty if there is none."""
    try:
        choice = catalog.advise(facts.torch, gpus, nvidia.driver if nvidia else "")
    except LibtorchError:
        return ""
    if choice.uncovered or choice.artifact.cuda is None or _holds(facts, choice.artifact):
        return ""
    return catalog.install_command(choice.artifact)


def _holds(facts: Facts, artifact: catalog.Artifact) -> bool:
    """Whether the folder serves as much as an archive, so installing the archive is useless."""
    return (
        facts.cuda is not None
        and facts.cuda.version == artifact.cuda
        and all(covers(facts.architectures, one.capability) for one in artifact.archs)
    )


def _used(gpu: Gpu, library: Binary, form: str) -> Image:
    """The image that the driver uses in most translation units: in each, the nearest that fits."""
    taken = Counter[Image]()
    for unit, count in library.code.items():
        fitting = [one for one in unit if one.form == form and one.runs_on(gpu.capability)]
        if fitting:
            taken[max(fitting)] += count
    return taken.most_common(1)[0][0]
