"""Sources to download: the official archives, any address, torch's package through pip."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fdl.base.progress import Progress
from fdl.base.shell_words import join
from fdl.libtorch import layout
from fdl.libtorch.catalog import Artifact
from fdl.libtorch.fetch.failures import UnreachableError, shown
from fdl.libtorch.layout import Contents
from fdl.libtorch.sources import pip
from fdl.libtorch.sources.base import (
    Bench,
    Source,
    Wanted,
    finish,
    nothing_known,
    slot,
    unpack,
)

if TYPE_CHECKING:
    from fdl.libtorch.fetch import Algorithm, Unpacked


def official(artifact: Artifact, environ: Mapping[str, str]) -> Source:
    """An archive of the catalog; the environment may name mirrors."""
    contents = Contents(artifact.torch, artifact.variant, artifact.cuda, artifact.recorded_archs)
    return Source(
        shown=shown(artifact.urls(environ)[0]),
        title=contents.title,
        slot=f"archive-{artifact.variant}",
        wanted=Wanted(artifact.torch, artifact.variant),
        expected=lambda: contents,
        stage=partial(_stage_official, artifact, contents),
    )


def _stage_official(artifact: Artifact, contents: Contents, bench: Bench) -> tuple[Path, Contents]:
    folder = bench.room("libtorch")
    try:
        unpacked = _fetch(
            contents.title,
            artifact.urls(bench.environ),
            folder,
            bench,
            sha256=artifact.sha256,
            algorithm=bench.trust.algorithm(artifact.path),
        )
    except UnreachableError as problem:
        line = f"fdl libtorch install {artifact.variant} --source wheel"
        hint = "; or ".join(filter(None, (problem.hint, f"through pip: {line}")))
        raise UnreachableError(problem.message, hint=hint) from None
    where = shown(unpacked.url)
    if artifact.sha256:
        bench.trust.record(artifact.path, unpacked.digest)
    else:
        bench.trust.check(artifact.path, unpacked.digest, where)
    if layout.installed_version(folder):
        found = layout.settle(folder, artifact.variant, where)
        Wanted(artifact.torch, artifact.variant).require(found, where)
    else:
        version = f"{artifact.torch}+{artifact.variant}\n"
        (folder / layout.BUILD_VERSION).write_text(version, encoding="utf-8")
    return folder, contents


def address(url: str, wanted: Wanted) -> Source:
    """An archive or a wheel at any address of http or https."""
    place = shown(url)
    parts = urlsplit(place)
    # A query often holds a signature that differs each time.
    name = f"{parts.netloc}{parts.path}"

    def stage(bench: Bench) -> tuple[Path, Contents]:
        folder = bench.room("libtorch")
        algorithm = bench.trust.algorithm(name)
        unpacked = _fetch(source.title, [url], folder, bench, sha256=None, algorithm=algorithm)
        bench.trust.check(name, unpacked.digest, place)
        return folder, finish(folder, wanted, place, bench, links=None)

    source = Source(
        shown=place,
        title=unquote(parts.path).rpartition("/")[2] or place,
        # A new signature of the same file takes the place of the part with the old one.
        slot=slot("url", name),
        wanted=wanted,
        expected=nothing_known,
        stage=stage,
    )
    return source


def package(
    torch: str | None, variant: str | None, *, exact: bool, environ: Mapping[str, str]
) -> Source:
    """The Python package of torch, through pip; without a version, the newest that pip has.

    With ``exact``, variants other than the given one are refused; None stands for any.
    """
    wanted = Wanted(torch, variant if exact else None)
    # pip takes seconds to answer, and both functions below may need the answer.
    offer = cache(lambda: pip.resolve(torch, variant, exact=exact, environ=environ))

    def expected() -> Contents | None:
        if torch and exact and variant:
            return Contents(torch, variant)
        return offer().contents

    return Source(
        shown="python -m pip download torch"
        + (f"=={'+'.join(filter(None, (torch, wanted.variant)))}" if torch else ""),
        title=" ".join(filter(None, ("libtorch", torch, variant))),
        slot=f"wheel-{variant or 'any'}",
        wanted=wanted,
        expected=expected,
        stage=lambda bench: _stage_package(offer, wanted, bench),
    )


def _stage_package(
    offer: Callable[[], pip.Offer], wanted: Wanted, bench: Bench
) -> tuple[Path, Contents]:
    requirement = f"torch=={offer().version}"
    into = bench.keep(f"torch-{offer().version}")
    file = pip.download([requirement], into, dependencies=False, environ=bench.environ)[-1]
    folder = bench.room("libtorch")
    unpacked = unpack(file, folder, layout.place, bench.trust.algorithm(file.name))
    bench.trust.check(file.name, unpacked.digest, file.name)
    return folder, finish(folder, wanted, file.name, bench, links=None)


def _fetch(
    title: str,
    urls: Sequence[str],
    folder: Path,
    bench: Bench,
    *,
    sha256: str | None,
    algorithm: Algorithm,
) -> Unpacked:
    from fdl.libtorch.fetch.download import unpack_url

    with Progress(title) as progress:
        return unpack_url(
            urls,
            folder,
            select=layout.place,
            part=bench.keep("archive") / "archive.part",
            sha256=sha256,
            algorithm=algorithm,
            progress=progress,
            environ=bench.environ,
            typed=join(["fdl", *map(shown, sys.argv[1:])]),
        )
