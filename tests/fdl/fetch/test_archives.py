"""What archives unpack to, and which ones are refused."""

import contextlib
import io
import os
import random
import stat
import struct
import zipfile
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fdl.base.errors import FetchError
from fdl.base.progress import Progress
from fdl.libtorch.archive import Job, Options, Unpacked
from fdl.libtorch.download import unpack_url
from tests.fdl.fetch.archives import QUICK, expected, library, member, pack, tree
from tests.fdl.fetch.server import Server
from tests.rows import each_row


def everything(name: str) -> str:
    return name


def unpack(archive: bytes, folder: Path, *, select=everything, sha256=None, **limits) -> Unpacked:
    """Unpack an archive of this machine into `folder/out`."""
    file, target = folder / "a.zip", folder / "out"
    file.write_bytes(archive)
    target.mkdir()
    with Progress("unpacking a.zip") as progress:
        return Job(
            target=target,
            select=select,
            progress=progress,
            sha256=sha256,
            options=Options(**limits),
        ).unpack(file)


def fetch(archive: bytes, folder: Path, server: Server) -> Unpacked:
    """The same, as one stream from a server without ranges."""
    server.put("/a.zip", archive, ranges=False)
    target = folder / "out"
    target.mkdir()
    with Progress("a.zip") as progress:
        return unpack_url(
            [server.url("/a.zip")],
            Job(target=target, select=everything, progress=progress, options=QUICK),
            part=folder / "part",
            environ={},
        )


def test_a_file_of_this_machine_is_unpacked_and_stays(tmp_path):
    archive = pack(library())
    done = unpack(archive, tmp_path, sha256=sha256(archive).hexdigest())
    assert tree(tmp_path / "out") == expected(archive, everything)
    assert done.url == str(tmp_path / "a.zip")
    assert len(tree(tmp_path / "out")) == 125
    assert (tmp_path / "a.zip").read_bytes() == archive


def test_execute_bits_and_links_are_restored(tmp_path):
    unpack(pack(library()), tmp_path)
    out = tmp_path / "out" / "libtorch"
    assert os.access(out / "bin/tool", os.X_OK)
    assert not os.access(out / "build-version", os.X_OK)
    assert (out / "lib/libtorch.so").readlink() == Path("libtorch_cpu.so")


def test_what_is_not_selected_is_left_out(tmp_path):
    unpack(
        pack(library()),
        tmp_path,
        select=lambda name: "version" if name.endswith("build-version") else None,
    )
    assert tree(tmp_path / "out") == {"version": b"2.13.0+cpu\n"}
    assert (tmp_path / "out" / "version").stat().st_size == 11


def test_the_umask_holds(tmp_path):
    before = os.umask(0o027)
    try:
        unpack(pack([(member("tool", 0o777), b"")]), tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out" / "tool").stat().st_mode) == 0o750


def test_progress_counts_what_was_unpacked(tmp_path, capsys):
    unpack(pack(library()), tmp_path)
    assert capsys.readouterr().err.startswith("unpacking a.zip: 2.1 of 2.1 MB 100%")


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(FetchError, match=r"cannot read .*none\.zip: No such"), Progress("") as p:
        Job(target=tmp_path, select=everything, progress=p).unpack(tmp_path / "none.zip")


def test_a_wrong_digest_of_a_file_is_refused_and_the_file_stays(tmp_path):
    with pytest.raises(FetchError, match="is not the archive that is expected"):
        unpack(pack(library()), tmp_path, sha256="0" * 64)
    assert (tmp_path / "a.zip").exists()


NAMES = st.from_regex(r"[a-zA-Zé0-9_. -]{0,9}[a-z0-9]", fullmatch=True)
CONTENTS = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda n, seed: random.Random(seed).randbytes(n), st.integers(0, 700_000), st.just(1)
    ),
    st.builds(lambda n: b"flodl " * n, st.integers(0, 120_000)),
)
MEMBERS = st.lists(
    st.tuples(
        st.lists(NAMES, min_size=1, max_size=3).map("/".join),
        CONTENTS,
        st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda one: one[0].split("/")[0],
)


def pack_drawn(drawn, seekable: bool, zip64: bool) -> bytes:
    members = []
    for name, content, method, executable in drawn:
        info = member(name, 0o755 if executable else 0o600)
        info.compress_type = method
        members.append((info, content))
    return pack(members, seekable=seekable, zip64=zip64)


@settings(max_examples=80)
@given(MEMBERS, st.booleans(), st.booleans())
def test_any_archive_unpacks_as_python_reads_it(drawn, seekable, zip64):
    archive = pack_drawn(drawn, seekable, zip64)
    with TemporaryDirectory() as folder:
        done = unpack(archive, Path(folder))
        assert tree(Path(folder, "out")) == expected(archive, everything)
        assert done.sha256 == sha256(archive).hexdigest()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MEMBERS, st.booleans(), st.booleans())
def test_any_archive_unpacks_alike_from_a_stream(server, drawn, seekable, zip64):
    archive = pack_drawn(drawn, seekable, zip64)
    with TemporaryDirectory() as folder:
        fetch(archive, Path(folder), server)
        assert tree(Path(folder, "out")) == expected(archive, everything)


SMALL_ARCHIVE = pack(
    [
        *[(f"include/{n}.h", b"#pragma once\n" * n) for n in range(9)],
        (member("lib/l.so", kind=stat.S_IFLNK), b"../include/1.h"),
    ]
)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.integers(0, len(SMALL_ARCHIVE) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, len(SMALL_ARCHIVE)),
    st.booleans(),
)
def test_a_damaged_archive_never_ends_in_anything_but_an_error_of_its_own(changes, end, truncate):
    damaged = bytearray(SMALL_ARCHIVE)
    for offset, value in changes:
        damaged[offset] = value
    with TemporaryDirectory() as folder:
        with contextlib.suppress(FetchError):
            unpack(bytes(damaged[:end] if truncate else damaged), Path(folder))
        inside = {path.relative_to(folder).parts[0] for path in Path(folder).rglob("*")}
        assert inside <= {"a.zip", "out"}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(SMALL_ARCHIVE) - 1), st.integers(1, 255))
def test_a_damaged_stream_never_ends_in_anything_but_an_error_of_its_own(server, offset, change):
    damaged = bytearray(SMALL_ARCHIVE)
    damaged[offset] ^= change
    with TemporaryDirectory() as folder:
        with contextlib.suppress(FetchError):
            fetch(bytes(damaged), Path(folder), server)
        assert [path.name for path in Path(folder).iterdir()] == ["out"]


@settings(max_examples=100)
@given(st.binary(max_size=400))
def test_random_bytes_are_no_archive(data):
    with TemporaryDirectory() as folder, pytest.raises(FetchError, match="not a zip archive"):
        unpack(data, Path(folder))


def raw(name: str) -> zipfile.ZipInfo:
    """A member with a name that Python's own module would have mended."""
    info = member("x")
    info.filename = name
    return info


def link(name: str, to: str) -> tuple[zipfile.ZipInfo, bytes]:
    return member(name, kind=stat.S_IFLNK), to.encode()


HOSTILE = {
    "climbs": [(raw("../evil"), b"")],
    "climbs inside": [(raw("a/../../evil"), b"")],
    "absolute": [(raw("/etc/evil"), b"")],
    "drive": [(raw("C:/evil"), b"")],
    "drive relative": [(raw("C:evil"), b"")],
    "backslash": [(raw("..\\evil"), b"")],
    "empty part": [(raw("a//b"), b"")],
    "dot": [(raw("./a"), b"")],
    "control character": [(raw("a\nb"), b"")],
    "twice": [("a", b"1"), ("a", b"2")],
    "file and folder": [("a", b"1"), ("a/b", b"2")],
    "folder and file": [("a/b", b"2"), ("a", b"1")],
    "link outside": [link("a", "../evil")],
    "link outside from below": [link("a/b/c", "../../../evil")],
    "absolute link": [link("a", "/etc/passwd")],
    "link over a link": [link("a/b", ".."), link("c", "a/b/../evil")],
    "through a link": [link("a", "b"), ("a/evil", b"")],
    "endless link": [link("a", "b" * 5000)],
    "empty link": [link("a", "")],
    "device": [(member("a", kind=stat.S_IFCHR), b"")],
    "pipe": [(member("a", kind=stat.S_IFIFO), b"")],
    "folder that is a file": [(member("a", kind=stat.S_IFDIR), b"x")],
    "bomb": [("a", bytes(30_000_000))],
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_nothing_lands_outside(tmp_path, server, name):
    archive = pack(HOSTILE[name])
    for way in ("file", "stream"):
        folder = tmp_path / way
        folder.mkdir()
        with pytest.raises(FetchError, match="the archive is refused: its member") as error:
            unpack(archive, folder) if way == "file" else fetch(archive, folder, server)
        assert "a place you trust" in error.value.hint
        assert not any("evil" in path.name for path in tmp_path.rglob("*"))
        assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_member_is_refused_even_if_nobody_wants_it(tmp_path):
    with pytest.raises(FetchError, match=r"'\.\./evil' would be unpacked outside"):
        unpack(pack(HOSTILE["climbs"]), tmp_path, select=lambda _: None)


def test_a_destination_outside_is_refused_as_well(tmp_path):
    with pytest.raises(FetchError, match="outside"):
        unpack(pack([("a", b"")]), tmp_path, select=lambda name: f"../{name}")


def test_links_that_stay_inside_are_taken(tmp_path):
    members = [("lib/a.so.1", b"x"), link("lib/a.so", "a.so.1"), link("bin/a", "../lib/a.so")]
    unpack(pack(members), tmp_path)
    assert (tmp_path / "out/bin/a").read_bytes() == b"x"


def test_the_sum_of_all_members_is_limited(tmp_path):
    members = [(f"{n}", random.Random(n).randbytes(1000)) for n in range(10)]
    with pytest.raises(FetchError, match="would unpack to"):
        unpack(pack(members), tmp_path, largest_total=9_999)


def test_a_stream_that_grows_beyond_the_limit_is_stopped(tmp_path, server):
    """Nothing tells the size of these members before they are unpacked."""
    archive = pack([("a", bytes(300_000_000)), ("b", b"x" * 300_000)], seekable=False)
    with pytest.raises(FetchError, match="over 1000 times"):
        fetch(archive, tmp_path, server)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*/a")) < 280_000_000
    assert not any(tmp_path.rglob("*/b"))


def altered(archive: bytes, field: int, value: bytes, *, local: int | None = None) -> bytes:
    """The first directory entry with other bytes at an offset; its local header at another."""
    changed = bytearray(archive)
    begin = archive.rindex(b"PK\1\2")
    changed[begin + field : begin + field + len(value)] = value
    if local is not None:
        changed[local : local + len(value)] = value
    return bytes(changed)


ONE = pack([("one", random.Random(1).randbytes(400_000))])


@each_row(
    ("archive", "message"),
    [
        (altered(ONE, 8, b"\x01\x00", local=6), "is encrypted"),
        (altered(ONE, 10, b"\x0c\x00", local=8), "packed in a way fdl does not know"),
        (altered(ONE, 16, b"\0\0\0\0", local=14), "size or its checksum"),
        (altered(ONE, 24, struct.pack("<I", 300_000), local=22), "larger than the"),
        (altered(ONE, 24, struct.pack("<I", 500_000), local=22), "size or its checksum"),
        (altered(ONE, 46, b"two"), "disagree"),
        (altered(ONE, 42, b"\x01\0\0\0"), "damaged|overlaps"),
        (ONE[:-1], "does not end like"),
        (ONE[1000:], "directory is not where"),
        (b"junk" + ONE, "directory is not where"),
    ],
)
def test_each_kind_of_damage_is_named(tmp_path, archive, message):
    with pytest.raises(FetchError, match=message) as error:
        unpack(archive, tmp_path)
    assert error.value.hint


def test_members_that_overlap_are_refused(tmp_path):
    """Two entries of the directory for the same bytes, as bombs do it."""
    first = io.BytesIO(pack([("aaa", b"x" * 500), ("bbb", b"x" * 500)]))
    data = bytearray(first.getvalue())
    second = data.rindex(b"PK\1\2")
    data[second + 42 : second + 46] = bytes(4)
    with pytest.raises(FetchError, match="overlaps the one after it"):
        unpack(bytes(data), tmp_path)


def test_an_archive_with_stored_members_behind_a_pipe_is_unpacked_by_its_directory(
    tmp_path, server
):
    info = member("a")
    info.compress_type = zipfile.ZIP_STORED
    archive = pack([(info, b"PK\3\4" * 100), ("b", b"x")], seekable=False)
    fetch(archive, tmp_path, server)
    assert tree(tmp_path / "out") == {"a": b"PK\3\4" * 100, "b": b"x"}


def test_a_member_that_the_directory_does_not_know_is_not_unpacked(tmp_path, server):
    """Its header stands in the stream, but an archive is what its directory says."""
    data = pack([("gone", b"old"), ("kept", b"new")])
    begin = data.index(b"PK\1\2")
    second = data.index(b"PK\1\2", begin + 1)
    ending = bytearray(data[data.index(b"PK\5\6") :])
    ending[8:12] = struct.pack("<2H", 1, 1)
    ending[12:16] = struct.pack("<I", len(data) - second - len(ending))
    archive = data[:begin] + data[second : len(data) - len(ending)] + bytes(ending)
    fetch(archive, tmp_path, server)
    assert tree(tmp_path / "out") == {"kept": b"new"}


def test_a_path_of_2000_folders_is_refused(tmp_path):
    with pytest.raises(FetchError, match="is in more than 100 folders"):
        unpack(pack([(member("libtorch/" + "d/" * 2000 + "x"), b"x")]), tmp_path)
