"""Determine the facts of a folder of libraries from its files, and which GPUs they run on.

A driver compiles PTX only of the language versions that it knows. Drivers of one CUDA major are
interchangeable, but not for PTX (CUDA compatibility guide, "Application Considerations"; PTX ISA,
"Release Notes").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from fdl.base.errors import LibtorchError, failing
from fdl.base.files import text_of
from fdl.base.hardware import Gpu, Nvidia
from fdl.libtorch import catalog
from fdl.libtorch.active import read_facts
from fdl.libtorch.catalog import Architecture, covers, driver_floor, numbers, parse, united
from fdl.libtorch.layout import installed_version, version_facts
from fdl.libtorch.prove.binary import Binary, Image, read

_CUDA = {
    6: "9.0 9.1 9.2 10.0 10.1 10.2",
    7: "11.0 11.1 11.2 11.3 11.4 11.5 11.6 11.7 11.8",
    8: "12.0 12.1 12.2 12.3 12.4 12.5 12.7 12.8 12.9",
    9: "13.0 13.1",
}
"""Major version of PTX -> the CUDA versions that introduced its minor versions, from 0 on."""


def cuda_of(isa: tuple[int, int]) -> str:
    """The CUDA version that introduced a version of PTX; empty if it is not known here."""
    major, minor = isa
    return "".join(_CUDA.get(major, "").split()[minor : minor + 1])


_LIBRARY = re.compile(r".+\.so(\.\d+)*\Z")
_UNPROVEN = {".dylib": "macOS", ".dll": "Windows"}
_OWN = ("libtorch", "libc10", "torch", "c10")
_RUNTIME = re.compile(r"libcudart(?:-[0-9a-f]+)?\.so\.(\d+(?:\.\d+)*)\Z")
_LOCAL = re.compile(r"\+cu(\d+)(\d)\b")

_HINT = "name an installed variant or a folder with lib/: fdl libtorch check DIR"

# A library has some kernels that exist for one architecture only, on purpose. So an architecture
# counts if at least a quarter of the translation units have code for it. In the torch 2.10.0 build
# for CUDA 12.8 the two groups are far apart: all of the 456 units, or at most 60.
_IN_GENERAL = 4


@dataclass(frozen=True, slots=True)
class Cuda:
    """The CUDA version that libraries need at run time.

    Attributes:
        version: ``12.8``, or only the major, ``12``, if nothing tells the minor.
        origin: Where it was read.
    """

    version: str
    origin: str

    @property
    def major(self) -> str:
        """The major version, which the driver and the runtime library must match."""
        return self.version.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Tally:
    """How many translation units of one library have code for one GPU.

    Attributes:
        native: Units with machine code for the GPU.
        jit: Units with only PTX for it.
        general: Units that have code for the best served GPU; the share of these counts.
    """

    native: int
    jit: int
    general: int

    @property
    def served(self) -> bool:
        """Whether the library was built for the GPU, and not only a few of its kernels."""
        return (self.native + self.jit) * _IN_GENERAL >= self.general > 0


@dataclass(frozen=True)
class Facts:
    """The facts in the files of a folder, independent of this machine.

    Attributes:
        folder: The folder that was read; its libraries are in it or in its ``lib``.
        libraries: All libraries, by name.
        torch: Version of torch with its local part (``2.10.0+cu128``); empty if unknown.
        declared_cuda: CUDA version that the folder's text files name, with the name of that file;
            None if they name none.
    """

    folder: Path
    libraries: tuple[Binary, ...]
    torch: str = ""
    declared_cuda: Cuda | None = None

    @property
    def is_libtorch(self) -> bool:
        """Whether torch's own libraries are among them."""
        return any(one.name.startswith(_OWN) for one in self.libraries)

    @cached_property
    def carriers(self) -> tuple[Binary, ...]:
        """The libraries whose GPU code decides: torch's own, else all that have any.

        NVIDIA's libraries do not decide: they choose among their own code and compile the rest.
        """
        carriers = [one for one in self.libraries if one.code]
        own = [one for one in carriers if one.name.startswith(_OWN)]
        return tuple(own or carriers)

    @property
    def images(self) -> tuple[Image, ...]:
        """All GPU code of the deciding libraries, also that of only some kernels; sorted."""
        return tuple(sorted(frozenset().union(*(images(one) for one in self.carriers))))

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """The architectures the folder was built for, as to be written to ``archs`` in ``.arch``.

        Left out are architectures that only a few kernels have, and those that one of the deciding
        libraries cannot serve. If there is PTX, the mark ``+PTX`` is set.
        """
        general = (replace(one.architecture, ptx=one.form == "ptx") for one in self._general())
        return united(
            one
            for one in general
            if all(tally(library, one.capability).served for library in self.carriers)
        )

    @cached_property
    def cuda(self) -> Cuda | None:
        """The CUDA version needed at run time; None if there is no trace of CUDA."""
        linked = _linked_cuda(self.libraries)
        compiled = _compiled_cuda(self.carriers)
        if linked is None:
            return compiled or self.declared_cuda
        # The name of the runtime gives only the major; a more precise source that agrees is better.
        exact = (one for one in (self.declared_cuda, compiled) if one and one.major == linked.major)
        return next(exact, linked)

    @property
    def driver(self) -> str | None:
        """The oldest NVIDIA driver for :attr:`cuda`; None without CUDA or if unknown."""
        return driver_floor(self.cuda.version, "linux") if self.cuda else None

    @property
    def os(self) -> str:
        """``linux``; empty if no file is an ELF library."""
        return "linux" if any(one.format == "elf" for one in self.libraries) else ""

    @property
    def processor(self) -> str:
        """``x86_64``, ``arm64`` …; empty if unknown."""
        counts = Counter(one.processor for one in self.libraries if one.processor)
        return counts.most_common(1)[0][0] if counts else ""

    @property
    def abi(self) -> str:
        """The C++ ABI, ``cxx11`` or ``pre-cxx11``; ``mixed`` if libraries differ; else empty."""
        own = [one for one in self.libraries if one.name.startswith(_OWN)]
        found = {one.abi for one in own or self.libraries} - {""}
        return "mixed" if len(found) > 1 else "".join(found)

    def newest(self, prefix: str) -> str:
        """The highest version, such as ``2.28``, of a set of symbols that any library needs.

        The prefix is ``GLIBC``, ``GLIBCXX`` or ``CXXABI``. Empty if no library needs any.
        """
        wanted = re.compile(rf"{prefix}_(\d+(?:\.\d+)*)\Z")
        needs = (need.version for one in self.libraries for need in one.needs)
        found = [match[1] for match in map(wanted.match, needs) if match]
        return max(found, key=numbers, default="")

    def _general(self) -> Iterator[Image]:
        for library in self.carriers:
            counts = Counter[Image]()
            for container, count in library.code.items():
                for image in container:
                    counts[image] += count
            most = max(counts.values())
            yield from (image for image, count in counts.items() if count * _IN_GENERAL >= most)


def facts_of(folder: Path) -> Facts:
    """Read the facts of the libraries in a folder: GPU code, CUDA, C++ ABI, needs.

    Nothing is loaded or run, and neither a GPU nor torch is needed. Of libtorch 2.10.0 for CUDA,
    1.6 GB, it reads about ten megabytes, which takes less than a second.

    The folder is a libtorch, an installed torch package, or any folder with libraries in it or in
    its ``lib``. Libraries that cannot be read are included, with their ``problem``.

    Raises:
        LibtorchError: The folder does not exist, or has no libraries for Linux.
    """
    place = folder / "lib" if (folder / "lib").is_dir() else folder
    with failing(f"cannot read {place}", _HINT, LibtorchError):
        there = sorted(place.iterdir())
    libraries = tuple(read(file) for file in there if _is_library(file))
    if not libraries:
        raise _nothing_to_read(place, there)
    papers = place.parent if place.name == "lib" else folder
    torch, declared = _papers(papers)
    return Facts(folder, libraries, torch, declared)


def images(library: Binary) -> frozenset[Image]:
    """All GPU code of a library."""
    return frozenset().union(*library.code)


def tally(library: Binary, capability: tuple[int, int]) -> Tally:
    """How many translation units of a library have code for a GPU of a compute capability."""
    native, jit = _served(library, capability)
    candidates = {image.architecture.capability for image in images(library)}
    general = max((sum(_served(library, one)) for one in candidates), default=0)
    return Tally(native, jit, general)


def _served(library: Binary, capability: tuple[int, int]) -> tuple[int, int]:
    """Units with machine code for a GPU, and units with only PTX for it."""
    native = jit = 0
    for container, count in library.code.items():
        forms = {image.form for image in container if image.runs_on(capability)}
        if "sass" in forms:
            native += count
        elif forms:
            jit += count
    return native, jit


def _nothing_to_read(place: Path, files: Iterable[Path]) -> LibtorchError:
    other = next((one for one in files if one.suffix in _UNPROVEN), None)
    if other is None:
        return LibtorchError(f"{place} has no libraries (.so)", hint=_HINT)
    return LibtorchError(
        f"{place} has libraries for {_UNPROVEN[other.suffix]}, such as {other.name}; "
        "only libraries for Linux can be proved",
        hint="what is known of an installed variant: fdl libtorch info",
    )


def _is_library(file: Path) -> bool:
    """Whether a file is a library, and not a second name of a library beside it."""
    if not _LIBRARY.match(file.name) or not file.is_file():
        return False
    return not file.is_symlink() or file.resolve().parent != file.parent.resolve()


def _papers(folder: Path) -> tuple[str, Cuda | None]:
    """The torch version and the CUDA version in the folder's text files."""
    module = version_facts(text_of(folder / "version.py"))
    for name, torch, cuda in (
        ("build-version", installed_version(folder), ""),
        ("version.py", *(str(module.get(key) or "") for key in ("__version__", "cuda"))),
        (".arch", *map(read_facts(str(folder)).get, ("torch", "cuda"), ("", ""))),
    ):
        if torch:
            local = _LOCAL.search(torch)
            version = f"{local[1]}.{local[2]}" if local else cuda
            usable = version and version != "none"
            return torch, Cuda(version, name) if usable else None
    return "", None


def _linked_cuda(libraries: Iterable[Binary]) -> Cuda | None:
    """The CUDA version in the name of the runtime library that a library is linked to."""
    for one in libraries:
        for name in one.needed:
            match = _RUNTIME.match(name)
            if match:
                return Cuda(match[1], f"{name}, needed by {one.name}")
    return None


def _compiled_cuda(carriers: Sequence[Binary]) -> Cuda | None:
    """For libraries that contain the runtime: the compiler's mark, else the version of the PTX."""
    for one in carriers:
        if one.toolkit:
            return Cuda(one.toolkit, f"the compiler's mark in {one.name}")
    for one in carriers:
        isa = max((image.isa for image in images(one)), default=(0, 0))
        if cuda_of(isa):
            return Cuda(cuda_of(isa), f"PTX {isa[0]}.{isa[1]} in {one.name}")
    return None


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
