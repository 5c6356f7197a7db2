"""How long an installation of libtorch takes: fdl beside curl and unzip, from the same server.

The archive has the layout of the official ones and is made from the wheel of torch. It is served
on the loopback device by another process, once with ranges and once without. Everybody gets the
same bytes in the same rounds: curl downloads and unzip unpacks in sequence, and `fdl libtorch
download` does all it does, the digest included, from the start of its interpreter to its end.

    python -m benchmarks.libtorch_install [--wheel PATH] [--rounds 7]
        [--output docs/benchmarks/libtorch_install.md]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.measure import (
    Bar,
    command_line,
    in_turns,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    seconds_of,
    spread,
    table,
)

TORCH = "2.13.0"

BASE = "curl, then unzip"

DISK = "fdl, wheel on disk"

BARS = {
    "fdl, server with ranges": Bar(1.0, earlier=(0.4, 0.35)),
    "fdl, server without ranges": Bar(1.0, earlier=(0.6,)),
    DISK: Bar(1.0, earlier=(0.25,)),
}
"""The most that each may take, as a share of curl and unzip."""

MEMORY = Path("/dev/shm")
"""Where to work: what a disk does meanwhile is not the question here. ext4 above all remembers
for minutes which files were deleted, and whoever creates many next pays for that."""

KEPT = ("torch/lib/", "torch/include/", "torch/share/", "torch/bin/")


def wheel(folder: Path) -> Path:
    """The wheel of torch, from the user's own index."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*argv, "--dest", str(folder), f"torch=={TORCH}"], check=True)
    return next(folder.glob("torch-*.whl"))


def make_archive(source: Path, archive: Path) -> None:
    """Pack what a wheel of torch has in common with libtorch, as `zip -r` would."""
    with (
        zipfile.ZipFile(source) as packed,
        zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as made,
    ):
        for info in packed.infolist():
            if info.filename.startswith(KEPT):
                name = f"libtorch/{info.filename.removeprefix('torch/')}"
                member = zipfile.ZipInfo(name, (2025, 1, 1, 0, 0, 0))
                member.external_attr = info.external_attr
                member.compress_type = zipfile.ZIP_DEFLATED
                with packed.open(info) as content, made.open(member, "w") as target:
                    shutil.copyfileobj(content, target, 1 << 20)
        made.writestr("libtorch/build-version", f"{TORCH}+cpu\n")


def _serve(archive: Path, *, ranges: bool, told: Connection) -> None:
    """Serve one file, out of the page cache and past this process's memory."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            size = archive.stat().st_size
            begin, end = 0, size
            match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if match and ranges:
                first, last = match.groups()
                begin = int(first) if first else max(0, size - int(last))
                end = min(size, int(last) + 1) if first and last else size
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
            else:
                self.send_response(200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            with archive.open("rb") as file:
                while begin < end:
                    count = min(end - begin, 1 << 20)
                    begin += os.sendfile(self.connection.fileno(), file.fileno(), begin, count)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told.send(server.server_port)
    server.serve_forever()


@contextmanager
def served(archive: Path, *, ranges: bool) -> Iterator[str]:
    """The address of an archive while it is served by another process."""
    here, there = multiprocessing.Pipe(duplex=False)
    arguments = {"archive": archive, "ranges": ranges, "told": there}
    process = multiprocessing.Process(target=_serve, kwargs=arguments, daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/libtorch.zip"
    finally:
        process.terminate()
        process.join()


def with_curl(url: str, folder: Path) -> None:
    """Download and unpack in sequence."""
    archive = folder / "libtorch.zip"
    subprocess.run(["curl", "-sSf", "-o", str(archive), url], check=True)
    subprocess.run(["unzip", "-q", str(archive), "-d", str(folder)], check=True)


def with_fdl(source: str, folder: Path, option: str = "--source") -> None:
    """Let fdl do both, or unpack a wheel on disk."""
    argv = [sys.executable, "-m", "fdl", "-q", "libtorch", "download", option, source]
    kept = {name: value for name, value in os.environ.items() if name != "FDL_ENV"}
    env = {**kept, "FLODL_HOME": str(folder / "home"), "NO_PROXY": "127.0.0.1"}
    subprocess.run(
        [*argv, "--path", str(folder / "libtorch")],
        cwd=folder,
        env=env,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def measured(
    subjects: Mapping[str, Callable[[Path], None]], folder: Path, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each subject in each round, without the removal of what it installed."""

    def install(name: str) -> float:
        target = Path(tempfile.mkdtemp(dir=folder))
        taken = seconds_of(partial(subjects[name], target))
        shutil.rmtree(target)
        return taken

    return in_turns(list(subjects), install, rounds)


def ticks() -> tuple[int, int]:
    """What the host of a virtual machine took of its processors, and all time, since the start."""
    try:
        counts = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return 0, 0
    return int(counts[7]), sum(map(int, counts))


def described(
    options: argparse.Namespace,
    seconds: Mapping[str, list[float]],
    archive: Path,
    folder: Path,
    stolen: float,
) -> str:
    """What is published."""
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
    unpacked = sum(member.file_size for member in members)
    rows = [
        [
            name,
            middle(times, ".2f"),
            f"{ratio:.2f}×",
            spread(ratios(times, seconds[BASE])),
            BARS[name].verdict(ratio) if name in BARS else "",
        ]
        for name, times in seconds.items()
        for ratio in [median_ratio(times, seconds[BASE])]
    ]
    return page(
        options,
        "Installing libtorch",
        f"{options.rounds} interleaved rounds, medians and the middle 80 %. "
        f"The archive has the layout of the official ones. It is made from the wheel of torch "
        f"{TORCH}: {len(members)} members, {archive.stat().st_size / 1e6:.0f} MB, unpacked "
        f"{unpacked / 1e6:.0f} MB. Another process serves it on the loopback device; "
        f"all files are in {folder}. The host took {stolen:.0%} of the processors meanwhile, "
        "which costs several threads more than one.",
        table(["way", "s", "of curl and unzip", "spread", "at most"], rows),
        "`fdl libtorch download` is timed from the start of its interpreter to its end. It reads "
        "the directory first, checks every member and the space on the disk, and keeps what it "
        "fetches for a later call. It computes the digest of the archive (SHA-256) and "
        "CRC-32 of every file. At the end it writes down what it has installed. "
        "curl and unzip check the CRC-32. fdl downloads, then unpacks, as they do.",
        packages=("flodl", "httpx2"),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("libtorch_install", __doc__, rounds=7)
    parser.add_argument("--wheel", type=Path, help="use this wheel instead of asking pip for one")
    parser.add_argument("--folder", type=Path, default=MEMORY if MEMORY.is_dir() else None)
    options = read_options(parser, argv, rounds=1)
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        archive = folder / "libtorch.zip"
        packed = options.wheel or wheel(folder)
        make_archive(packed, archive)
        with served(archive, ranges=True) as ranged, served(archive, ranges=False) as plain:
            subjects = {
                BASE: partial(with_curl, ranged),
                "fdl, server with ranges": partial(with_fdl, ranged),
                "fdl, server without ranges": partial(with_fdl, plain),
                DISK: partial(with_fdl, str(packed), option="--from"),
            }
            before = ticks()
            seconds = measured(subjects, folder, options.rounds)
            taken, passed = (now - then for now, then in zip(ticks(), before, strict=True))
        stolen = taken / max(passed, 1)
        text = described(options, seconds, archive, folder.parent, stolen)
        publish(text, options.output)


if __name__ == "__main__":
    main()
