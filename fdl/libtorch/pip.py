"""Get torch's Python package through pip, from the user's own index and settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fdl.base import output
from fdl.base.errors import LibtorchError
from fdl.libtorch.layout import CPU, WHEELS, Contents, identify, nvidia_only

_CUDA_RELEASE = re.compile(
    r"(?:cuda-toolkit|nvidia-cuda-runtime(?:-cu\d+)?)(?:\[[^]]*\])?\s*==\s*(\d+\.\d+)"
)


_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Offer:
    """The package that pip would install.

    Attributes:
        version: Version of torch with the part after ``+``, if there is one.
        nvidia: The NVIDIA packages that it requires on this machine.
    """

    version: str
    nvidia: tuple[str, ...]

    @property
    def contents(self) -> Contents | None:
        """Its contents, as known from its version and requirements."""
        releases = [match[1] for one in self.nvidia if (match := _CUDA_RELEASE.match(one))]
        if self.nvidia and not releases and "+" not in self.version:
            return None
        return identify(
            self.version,
            cuda=releases[0] if releases else None,
            has_cuda=bool(self.nvidia),
            wanted=None,
            where=f"torch {self.version}",
        )


def command(environ: Mapping[str, str]) -> list[str]:
    """The command for pip: that of the running interpreter, else that of ``python3`` on ``PATH``.

    Raises:
        LibtorchError: There is no pip.
    """
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("python3", "python"):
        program = shutil.which(name, path=environ.get("PATH"))
        if program and _run([program, "-m", "pip", "--version"], environ).returncode == 0:
            return [program, "-m", "pip"]
    raise LibtorchError(
        "`--source wheel` needs pip, and neither this Python nor one on PATH has it",
        hint=f"{sys.executable} -m ensurepip; or take the official archive: fdl libtorch install",
    )


def resolve(
    torch: str | None, wanted: str | None, *, exact: bool, environ: Mapping[str, str]
) -> Offer:
    """Ask pip which torch it would install; if the index supports it, nothing is downloaded.

    A version marked ``+cu128`` is asked for first. PyTorch's own index marks every build, and for a
    plain version pip would take the build that sorts last. With ``exact``, variants other than the
    wanted one are refused. Without a version it is the newest one that pip has for the variant.

    Raises:
        LibtorchError: There is no such package, or it is of another variant.
    """
    program = command(environ)
    asked = " ".join(filter(None, ("torch", torch)))
    output.note(f"asking pip for {asked}")
    failure = ""
    for requirement in _requirements(program, torch, wanted, environ):
        arguments = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        done = _run([*program, *arguments, "--report", "-", requirement], environ)
        if done.returncode == 0:
            offer = _offer(done.stdout)
            _require(offer, torch, wanted, exact=exact)
            return offer
        failure = _last_error(done.stderr)
    raise LibtorchError(
        f"pip has no {asked} for this Python and this machine: {failure}",
        hint=f"`{' '.join(program)} index versions torch` lists what there is; "
        + (
            f"the newest one: fdl libtorch install {wanted or 'auto'} --source wheel"
            if torch
            else f"from PyTorch's index: {_from_pytorch(None, wanted or CPU)}"
        ),
    )


def _requirements(
    program: Sequence[str], torch: str | None, wanted: str | None, environ: Mapping[str, str]
) -> list[str]:
    """What to ask pip for, the best fit first."""
    if torch:
        return [*([f"torch=={torch}+{wanted}"] if wanted else []), f"torch=={torch}"]
    done = _run([*program, "index", "versions", "torch"], environ)
    listed = _VERSIONS.search(done.stdout)
    versions = listed[1].split(", ") if listed else []
    # pip lists the newest version first.
    marked = [one for one in versions if wanted and one.endswith(f"+{wanted}")]
    return [*(f"torch=={one}" for one in marked[:1]), "torch"]


def _from_pytorch(torch: str | None, variant: str) -> str:
    """The command line that takes a build from PyTorch's own index."""
    version = f" --torch {torch}" if torch else ""
    return (
        f"PIP_EXTRA_INDEX_URL={WHEELS}/{variant} "
        f"fdl libtorch install {variant} --source wheel{version}"
    )


def download(
    requirements: Sequence[str],
    into: Path,
    *,
    environ: Mapping[str, str],
    dependencies: bool = True,
    links: Path | None = None,
) -> list[Path]:
    """Let pip download wheels to an existing folder, and return the wheels in it.

    Wheels of an earlier call are not downloaded again. pip itself reports on stderr. Besides the
    index, pip searches the folder ``links`` for wheels.

    Raises:
        LibtorchError: pip failed.
    """
    arguments = ["download", "--dest", str(into), "--only-binary", ":all:"]
    arguments += [] if dependencies else ["--no-deps"]
    arguments += ["--find-links", str(links)] if links else []
    arguments += ["--quiet"] if output.is_quiet() else []
    argv = [*command(environ), *arguments, *requirements]
    sys.stderr.flush()
    done = subprocess.run(argv, env=dict(environ), stdout=sys.stderr, check=False)
    if done.returncode:
        raise LibtorchError(
            f"pip could not download {', '.join(requirements)}; its output is above",
            hint="look at where pip takes packages from: python -m pip config list",
        )
    return sorted(into.glob("*.whl"))


def _require(offer: Offer, torch: str | None, wanted: str | None, *, exact: bool) -> None:
    contents = offer.contents
    # The libraries of CUDA take gigabytes: do not download them unasked for machines without a GPU.
    unwanted = offer.nvidia if wanted == CPU else exact and contents and contents.variant != wanted
    if wanted and unwanted:
        found = contents.variant if contents else "a CUDA build"
        raise LibtorchError(
            f"pip offers torch {torch or offer.version} as {found} only, and not as {wanted}",
            hint=_from_pytorch(torch, wanted),
        )


def _offer(report: str) -> Offer:
    try:
        metadata: dict[str, Any] = json.loads(report)["install"][0]["metadata"]
        requires = [str(one) for one in metadata.get("requires_dist") or ()]
        return Offer(str(metadata["version"]), tuple(filter(_applies, nvidia_only(requires))))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise LibtorchError(
            "pip's report on what it would install cannot be read",
            hint="update pip: python -m pip install --upgrade pip",
        ) from None


def _applies(requirement: str) -> bool:
    """Whether the markers of one of torch's requirements fit this machine."""
    from packaging.requirements import Requirement

    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate()


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=dict(environ), capture_output=True, text=True, check=False)


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it gave no reason"])[-1]
