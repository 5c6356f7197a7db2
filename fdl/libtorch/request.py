"""Choose the source of a libtorch from the command's arguments; testable without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from fdl.base.errors import LibtorchError, UsageError
from fdl.base.hardware import Nvidia
from fdl.libtorch.catalog import (
    Artifact,
    Choice,
    artifacts,
    build_command,
    choose,
    default_version,
    find,
    this_platform,
    versions,
)
from fdl.libtorch.layout import CPU, cuda_variant
from fdl.libtorch.sources import (
    Source,
    Wanted,
    address,
    local,
    newest,
    official,
    package as python_package,
)

_WHEEL_NAME = re.compile(r"torch-([\d.]+)(?:\+(\w+))?-")
"""Version and variant; on many platforms, and on PyPI, the name of a wheel has no variant."""

AUTO = "auto"
ARCHIVE = "archive"
WHEEL = "wheel"


@dataclass(frozen=True, slots=True)
class Request:
    """A libtorch to install.

    Attributes:
        variant: ``auto``, ``cpu``, ``cu128`` …
        torch: Version of torch; None for the default, or for the version of a given file.
        source: ``archive``, ``wheel``, an address, or the path of an archive, wheel or folder.
        given: An archive, a wheel, a libtorch, or a folder with archives and wheels; None to fetch.
        locked: What ``libtorch.lock`` names, if nothing else may be installed; None for anything.
    """

    variant: str = AUTO
    torch: str | None = None
    source: str | None = None
    given: Path | None = None
    locked: Sequence[str] | None = None

    @property
    def wanted(self) -> Wanted:
        """The version and variant that a file has to be."""
        return Wanted(self.torch, None if self.variant == AUTO else self.variant)


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen source, with notes for the user.

    Attributes:
        source: The source.
        notes: What the choice is based on, in sentences.
        remedy: The command to run next if some GPU is served badly; empty if none is needed.
    """

    source: Source
    notes: tuple[str, ...] = ()
    remedy: str = ""


def decide(
    request: Request, nvidia: Callable[[], Nvidia], cwd: Path, environ: Mapping[str, str]
) -> Decision:
    """Choose the source; the driver is asked only if the choice depends on it.

    Relative paths start from ``cwd``.

    Raises:
        UsageError: The version, variant or file does not exist.
        LibtorchError: Nothing is available for this platform or this driver.
    """
    source = request.source or ARCHIVE
    is_address = re.match(r"https?://", source) is not None
    is_on_disk = request.given is not None or not (is_address or source in (ARCHIVE, WHEEL))
    if request.locked is not None and is_on_disk:
        raise UsageError(
            "`--locked` compares downloads with libtorch.lock, and a file on disk is not in it",
            hint="leave out --locked, or the file",
        )
    if request.locked is not None and not is_address:
        request = _as_locked(request, request.locked)
        source = request.source or ARCHIVE
    if source == ARCHIVE and request.given is None:
        return _archive(request, nvidia, environ)
    _check_name(request.variant)
    if request.given is not None:
        return Decision(_on_disk(request, cwd / request.given.expanduser()))
    if source == WHEEL:
        return _wheel(request, nvidia, environ)
    if is_address:
        _check_address(source)
        return Decision(address(source, request.wanted))
    path = cwd / Path(source).expanduser()
    if path.is_dir() or path.is_file():
        return Decision(local(path.resolve(), request.wanted))
    raise UsageError(
        f"--source {source}: there is no such file or folder",
        hint=f"--source takes `{ARCHIVE}`, `{WHEEL}`, a path, or an address that begins "
        "with https://",
    )


def _on_disk(request: Request, path: Path) -> Source:
    """The file or folder of ``--from``; of several files the newest one that fits."""
    wanted, wheels_only = request.wanted, request.source == WHEEL
    if not path.exists():
        raise UsageError(
            f"--from {path}: there is no such file or folder",
            hint="python -m pip download torch --no-deps --dest FOLDER, then --from FOLDER",
        )
    if path.is_file() and wheels_only and path.suffix != ".whl":
        raise UsageError(
            f"--from {path} is not a wheel", hint=f"fdl libtorch install --from {path}"
        )
    if path.is_dir() and not (path / "lib").is_dir():
        files = newest(path.resolve(), wanted, wheels_only=wheels_only)
        if not files:
            asked = " ".join(filter(None, ("torch", wanted.torch, wanted.variant)))
            kind = "wheel" if wheels_only else "wheel or archive"
            raise UsageError(
                f"--from {path}: there is no {kind} of {asked} in this folder",
                hint=f"python -m pip download {'=='.join(filter(None, ('torch', wanted.torch)))} "
                f"--no-deps --dest {path}",
            )
        path = files[0]
    return local(path.resolve(), wanted)


def _as_locked(request: Request, names: Sequence[str]) -> Request:
    """The request for exactly what the lock file names for this platform.

    Raises:
        UsageError: It names nothing that fits, or several.
    """
    pairs: set[tuple[str, str, str]] = set()
    if request.source != WHEEL:
        known = [one for torch in versions() for one in artifacts(torch, this_platform())]
        pairs |= {(one.torch, one.variant, ARCHIVE) for one in known if one.path in names}
    for name in names if request.source != ARCHIVE else ():
        if (match := _WHEEL_NAME.match(name)) and _is_for_this_machine(name):
            pairs.add((match[1], match[2] or AUTO, WHEEL))
    fitting = sorted(
        (torch, variant, source)
        for torch, variant, source in pairs
        if (variant == AUTO or request.variant in (AUTO, variant))
        and request.torch in (None, torch)
    )
    if len(fitting) == 1:
        torch, variant, source = fitting[0]
        chosen = request.variant if variant == AUTO else variant
        return replace(request, torch=torch, variant=chosen, source=source)
    asked = request.variant if request.variant != AUTO else "this platform"
    if not fitting:
        raise UsageError(
            f"libtorch.lock has no libtorch for {asked}",
            hint="install it once without --locked, and commit libtorch.lock",
        )
    found = ", ".join(
        f"{variant} --torch {torch} --source {one}" for torch, variant, one in fitting
    )
    raise UsageError(
        f"libtorch.lock has several for {asked}: {found}",
        hint=f"fdl libtorch install --locked {found.partition(', ')[0]}",
    )


def _is_for_this_machine(wheel: str) -> bool:
    """Whether a wheel is for this system and processor, with any Python."""
    from packaging.tags import platform_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        tags = parse_wheel_filename(wheel)[3]
    except InvalidWheelFilename:
        return True
    return not {"any", *platform_tags()}.isdisjoint(one.platform for one in tags)


def usable(nvidia: Nvidia) -> Nvidia:
    """The same facts, for a choice that depends on them.

    Raises:
        LibtorchError: There is a GPU, but its driver fails: the GPU's capability is unknown.
    """
    failure = nvidia.failure
    if failure is None:
        return nvidia
    raise LibtorchError(
        f"`{AUTO}` cannot choose a variant: {failure.message}",
        hint=f"repair the driver ({failure.remedy}), or decide yourself: "
        "fdl libtorch install cpu, or fdl libtorch install cu128",
    )


def _archive(
    request: Request, nvidia: Callable[[], Nvidia], environ: Mapping[str, str]
) -> Decision:
    platform = this_platform()
    torch = request.torch or default_version()
    if request.variant != AUTO:
        artifact = find(torch, request.variant, platform)
        return Decision(official(artifact, environ))
    found = usable(nvidia())
    choice = choose(found.counted, artifacts(torch, platform), found.driver)
    return Decision(official(choice.artifact, environ), *_explain(choice, found))


def _wheel(request: Request, nvidia: Callable[[], Nvidia], environ: Mapping[str, str]) -> Decision:
    torch = request.torch
    if request.variant != AUTO:
        return Decision(python_package(torch, request.variant, exact=True, environ=environ))
    if request.locked is not None:
        # The lock has decided; the name of its wheel does not tell the variant.
        return Decision(python_package(torch, None, exact=False, environ=environ))
    found = usable(nvidia())
    if not found.counted:
        source = python_package(torch, CPU, exact=True, environ=environ)
        return Decision(source, _about_gpus(found))
    available: list[Artifact] = []
    # Some versions, and some machines, only have packages.
    with suppress(UsageError, LibtorchError):
        available = artifacts(torch or default_version(), this_platform())
    if not available:
        source = python_package(torch, None, exact=False, environ=environ)
        return Decision(source, _about_gpus(found))
    choice = choose(found.counted, available, found.driver)
    source = python_package(torch, choice.artifact.variant, exact=False, environ=environ)
    return Decision(source, *_explain(choice, found))


def _explain(choice: Choice, found: Nvidia) -> tuple[tuple[str, ...], str]:
    notes = list(_about_gpus(found))
    if choice.outdated:
        notes.append(
            f"the driver {found.driver} is too old for a newer CUDA that would fit; "
            "after an update of the driver, type this again"
        )
    if not choice.uncovered:
        return tuple(notes), ""
    return (*notes, choice.left_out), build_command(found.counted)


def _about_gpus(found: Nvidia) -> tuple[str, ...]:
    if not found.counted:
        return ("no NVIDIA GPU found, so it is the variant for the processor",)
    shown = ", ".join(gpu.label for gpu in found.counted)
    hidden = len(found.gpus) - len(found.visible)
    if not hidden:
        return (f"chosen for {shown}",)
    why = f"CUDA_VISIBLE_DEVICES={found.restriction or ''}"
    if found.restriction is None:
        names = ", ".join(gpu.label for gpu in found.gpus if not gpu.visible)
        return (f"chosen for {shown}; MIG mode is on without slices for {names}",)
    if not found.visible:
        return (f"chosen for {shown}, although {why} hides them all",)
    return (f"chosen for {shown}; {why} hides {hidden} more",)


def _check_address(text: str) -> None:
    try:
        valid = bool(urlsplit(text).hostname)
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            "--source is not a valid address",
            hint="write the whole address: fdl libtorch install --source https://HOST/libtorch.zip",
        )


def _check_name(variant: str) -> None:
    if variant not in (AUTO, CPU) and not re.fullmatch(r"cu\d{2,3}", variant):
        raise UsageError(
            f"`{variant}` is not a variant", hint="write auto, cpu, or a CUDA build such as cu128"
        )


def variant_of_cuda(version: str) -> str:
    """``cu128`` for ``12.8``.

    Raises:
        UsageError: It is not a CUDA version.
    """
    if not re.fullmatch(r"\d{1,2}\.\d", version):
        raise UsageError(f"`{version}` is not a CUDA version", hint="write it like --cuda 12.8")
    return cuda_variant(version)
