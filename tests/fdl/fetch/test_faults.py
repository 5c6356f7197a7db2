"""Servers and networks that fail, and calls that go on where another one ended."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from fdl.base.errors import FetchError
from tests.fdl.fetch.archives import LARGEST_ENDING, QUICK, expected, library, pack
from tests.waiting import at_some_pace, wait_for

ARCHIVE = pack(library())
DIGEST = sha256(ARCHIVE).hexdigest()
TREE = expected(ARCHIVE)
OTHER = pack(library(seed=1))

# One failure is one too many: what ends a call, and leaves its part to the next one.
IMPATIENT = replace(QUICK, attempts=1)


def some(offsets: list[int]) -> list[object]:
    """Three of these for every run of the tests; the slow suite has the rest."""
    return [pytest.param(one, marks=pytest.mark.slow) if n > 2 else one
            for n, one in enumerate(offsets)]  # fmt: skip


def held(part: Path) -> int:
    """How many bytes of an archive are there, and may be continued."""
    return part.stat().st_size if part.with_name(f"{part.name}.json").exists() else 0


def test_an_archive_is_fetched_once_and_unpacked(server, fetch):
    server.put("/a.zip", ARCHIVE)
    done = fetch(server.url("/a.zip"), sha256=DIGEST)
    assert fetch.tree == TREE
    assert (done.sha256, done.url) == (DIGEST, server.url("/a.zip"))
    assert len(fetch.tree) == len(TREE)
    assert sum(map(len, fetch.tree.values())) > 4_000_000
    assert server.sent == len(ARCHIVE)
    assert not fetch.part.exists()
    assert not fetch.journal.exists()


def test_a_server_without_ranges_sends_one_stream(server, fetch):
    server.put("/a.zip", ARCHIVE, ranges=False)
    assert fetch(server.url("/a.zip"), sha256=DIGEST).sha256 == DIGEST
    assert fetch.tree == TREE
    assert [request.status for request in server.requests] == [200]


def test_a_stream_of_unknown_length_is_unpacked_when_it_has_ended(server, fetch):
    server.put("/a.zip", ARCHIVE, ranges=False, sized=False)
    assert fetch(server.url("/a.zip")).sha256 == DIGEST
    assert fetch.tree == TREE


def test_a_directory_longer_than_the_first_request_is_fetched_whole(server, fetch):
    members = [(f"libtorch/{'long' * 20}{n}", b"x") for n in range(2000)]
    archive = pack(members)
    server.put("/a.zip", archive)
    fetch(server.url("/a.zip"), options=QUICK)
    assert fetch.tree == expected(archive)
    assert server.sent == len(archive)


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "stream"])
def test_an_archive_smaller_than_the_first_request(server, fetch, ranges):
    archive = pack([("libtorch/lib/a.so", b"small")])
    server.put("/a.zip", archive, ranges=ranges)
    fetch(server.url("/a.zip"))
    assert fetch.tree == {"lib/a.so": b"small"}


@pytest.mark.parametrize("offset", some(random.Random(4).sample(range(1, len(ARCHIVE)), 20)))
def test_a_connection_cut_anywhere_is_taken_up_within_the_call(server, fetch, offset):
    server.put("/a.zip", ARCHIVE, cuts=[offset])
    assert fetch(server.url("/a.zip")).sha256 == DIGEST
    assert fetch.tree == TREE
    assert server.sent <= len(ARCHIVE) + (offset if offset > len(ARCHIVE) - 66_000 else 0)


@pytest.mark.parametrize(
    "offset", some(random.Random(5).sample(range(1, len(ARCHIVE) - 66_000), 20))
)
def test_a_call_that_was_cut_off_is_continued_by_the_next(server, fetch, offset):
    server.put("/a.zip", ARCHIVE, cuts=[offset])
    with pytest.raises(FetchError, match="the connection broke off") as error:
        fetch(server.url("/a.zip"), options=IMPATIENT)
    assert "what was fetched is kept" in error.value.hint
    before, kept = server.sent, held(fetch.part)
    # The end at least; the connection at the beginning may have been told to stop before its
    # first bytes came, however far the other one was.
    assert kept >= LARGEST_ENDING
    assert fetch(server.url("/a.zip"), sha256=DIGEST).sha256 == DIGEST
    assert fetch.tree == TREE
    assert server.sent - before == len(ARCHIVE) - kept


def test_one_connection_keeps_everything_up_to_the_cut(server, fetch):
    server.put("/a.zip", ARCHIVE, cuts=[1_555_641])
    with pytest.raises(FetchError, match="the connection broke off"):
        fetch(server.url("/a.zip"), options=IMPATIENT)
    assert held(fetch.part) == LARGEST_ENDING + 1_555_641
    before = server.sent
    assert fetch(server.url("/a.zip"), sha256=DIGEST).sha256 == DIGEST
    assert server.sent - before == len(ARCHIVE) - LARGEST_ENDING - 1_555_641


def test_many_cuts_are_no_failure_as_long_as_something_arrives(server, fetch):
    cuts = sorted(random.Random(6).sample(range(len(ARCHIVE)), 40))
    server.put("/a.zip", ARCHIVE, cuts=cuts)
    assert fetch(server.url("/a.zip")).sha256 == DIGEST


def test_the_end_of_an_archive_may_come_in_many_pieces(server, fetch):
    tail = 1 << 20
    start = len(ARCHIVE) - tail
    server.put("/a.zip", ARCHIVE, cuts=[start + 60_000 * (place + 1) for place in range(12)])
    assert fetch(server.url("/a.zip"), options=replace(QUICK, tail=tail)).sha256 == DIGEST
    assert server.sent == len(ARCHIVE)


BIG_TAIL = replace(QUICK, tail=1 << 20)


def killed(server, fetch, options, enough):
    """Kill a call as soon as the server has sent that many bytes, and the call has met them."""
    target = fetch.folder / "killed"
    target.mkdir()
    argv = [sys.executable, "-c", CHILD, server.url("/a.zip"), str(target), str(fetch.part)]
    chosen = repr({"tail": options.tail})
    with subprocess.Popen([*argv, chosen], stderr=subprocess.DEVNULL) as child:
        while not enough() and child.poll() is None:
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)


def test_a_killed_call_keeps_the_part_of_the_end_that_it_had(server, fetch):
    """The end is asked for first: on a slow line, it takes minutes."""
    # However busy the machine is, the rest does not come before the call is killed.
    stop = len(ARCHIVE) - 600_000
    resource = server.put("/a.zip", ARCHIVE, drip=(20_000, 0.01), stall=stop)
    killed(server, fetch, BIG_TAIL, lambda: held(fetch.part) > 300_000)
    kept = held(fetch.part)
    assert 300_000 < kept < 1 << 20
    resource.drip = None
    server.settle()
    before = server.sent
    assert fetch(server.url("/a.zip"), options=BIG_TAIL).sha256 == DIGEST
    assert server.sent - before == len(ARCHIVE) - kept


def test_a_slow_line_is_written_down_every_second(server, fetch):
    stop = len(ARCHIVE) - BIG_TAIL.tail + 60_000
    server.put("/a.zip", ARCHIVE, drip=(2_000, 0.1), stall=stop)
    killed(server, fetch, BIG_TAIL, lambda: held(fetch.part) > 10_000)
    assert 10_000 < held(fetch.part) < 100_000


def test_a_directory_that_was_cut_off_is_continued(server, fetch):
    members = [(f"libtorch/{'long' * 20}{n}", b"x") for n in range(2000)]
    archive = pack(members)
    server.put("/a.zip", archive, cuts=[len(archive) - 200_000])
    with pytest.raises(FetchError, match="the connection broke off"):
        fetch(server.url("/a.zip"), options=IMPATIENT)
    kept, before = held(fetch.part), server.sent
    assert kept > LARGEST_ENDING
    fetch(server.url("/a.zip"), options=QUICK)
    assert fetch.tree == expected(archive)
    assert server.sent - before == len(archive) - kept


def test_a_call_that_gets_nothing_does_not_claim_to_keep_it(server, fetch):
    server.put("/a.zip", ARCHIVE, cuts=[len(ARCHIVE) - LARGEST_ENDING] * 20)
    with pytest.raises(FetchError, match="the connection broke off") as found:
        fetch(server.url("/a.zip"), options=IMPATIENT)
    assert found.value.hint == "check the network and type the same command again"


def test_a_call_that_keeps_something_says_so(server, fetch):
    server.put("/a.zip", ARCHIVE, cuts=[1_000_000] * 20)
    with pytest.raises(FetchError, match="the connection broke off") as found:
        fetch(server.url("/a.zip"), options=IMPATIENT)
    assert found.value.hint == (
        "check the network and type the same command again; what was fetched is kept"
    )


def test_a_stream_that_is_cut_off_begins_anew(server, fetch, capsys):
    server.put("/a.zip", ARCHIVE, ranges=False, cuts=[1_000_000, 2_000_000])
    assert fetch(server.url("/a.zip")).sha256 == DIGEST
    assert fetch.tree == TREE
    assert "from the beginning: the server cannot continue" in capsys.readouterr().err


def test_a_stream_that_always_breaks_off_is_given_up(server, fetch):
    server.put("/a.zip", ARCHIVE, ranges=False, cuts=[1_000_000] * 50)
    with pytest.raises(FetchError, match="again and again"):
        fetch(server.url("/a.zip"))


def test_a_server_that_ignores_ranges_later_makes_the_next_call_begin_anew(server, fetch):
    resource = server.put("/a.zip", ARCHIVE, cuts=[1_000_000])
    with pytest.raises(FetchError):
        fetch(server.url("/a.zip"), options=IMPATIENT)
    # How much of what was in flight is kept depends on when each connection hears of the end.
    assert held(fetch.part) > 0
    resource.ranges = False
    assert fetch(server.url("/a.zip")).sha256 == DIGEST
    assert fetch.tree == TREE


@pytest.mark.parametrize("validator", ["etag", "modified", "length"])
def test_an_archive_that_changed_between_two_calls_is_fetched_anew(
    server, fetch, capsys, validator
):
    known = {
        "etag": {},
        "modified": {"etag": "", "modified": "Wed, 01 Jan 2025 00:00:00 GMT"},
        "length": {"etag": ""},
    }[validator]
    server.put("/a.zip", ARCHIVE, cuts=[1_000_000], **known)
    with pytest.raises(FetchError):
        fetch(server.url("/a.zip"), options=IMPATIENT)
    assert held(fetch.part) > 0
    if known.get("modified"):
        known["modified"] = "Thu, 02 Jan 2025 00:00:00 GMT"
    server.put(
        "/a.zip", OTHER + b"" if validator != "length" else pack(library(1_900_000)), **known
    )
    done = fetch(server.url("/a.zip"))
    content = server.resources["/a.zip"].content
    assert done.sha256 == sha256(content).hexdigest()
    assert fetch.tree == expected(content)
    assert "from the beginning: the server has another file now" in capsys.readouterr().err


def test_an_archive_that_changes_between_two_chunks_is_fetched_anew(server, fetch):
    def swap(number: int) -> None:
        if number == 1:
            server.put("/a.zip", OTHER)
            resource.content, resource.etag = OTHER, server.resources["/a.zip"].etag

    resource = server.put("/a.zip", ARCHIVE, before=swap)
    assert fetch(server.url("/a.zip")).sha256 == sha256(OTHER).hexdigest()
    assert fetch.tree == expected(OTHER)


def test_an_archive_that_changes_all_the_time_is_given_up(server, fetch):
    def swap(number: int) -> None:
        resource.etag = f'"{number}"'

    resource = server.put("/a.zip", ARCHIVE, before=swap)
    with pytest.raises(FetchError, match="another file now, again and again"):
        fetch(server.url("/a.zip"))


def test_a_weak_tag_is_compared_but_not_sent(server, fetch):
    resource = server.put("/a.zip", ARCHIVE, etag='W/"1"', cuts=[1_000_000])
    with pytest.raises(FetchError):
        fetch(server.url("/a.zip"), options=IMPATIENT)
    fetch(server.url("/a.zip"))
    assert not any("If-Range" in request.headers for request in server.requests)
    resource.cuts = [1_000_000]
    with pytest.raises(FetchError):
        fetch(server.url("/a.zip"), options=IMPATIENT)
    server.put("/a.zip", OTHER, etag='W/"2"')
    assert fetch(server.url("/a.zip")).sha256 == sha256(OTHER).hexdigest()


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "stream"])
@pytest.mark.parametrize("offset", [500, 1_500_000, len(ARCHIVE) - 400])
def test_an_altered_byte_is_refused_and_nothing_is_kept(server, fetch, ranges, offset):
    altered = bytearray(ARCHIVE)
    altered[offset] ^= 0x10
    server.put("/a.zip", bytes(altered), ranges=ranges)
    with pytest.raises(FetchError):
        fetch(server.url("/a.zip"), sha256=DIGEST)
    assert not fetch.part.exists()
    assert not fetch.journal.exists()


def test_a_wrong_digest_names_both(server, fetch):
    server.put("/a.zip", OTHER)
    with pytest.raises(FetchError) as error:
        fetch(server.url("/a.zip"), sha256=DIGEST.upper())
    assert DIGEST in error.value.message
    assert sha256(OTHER).hexdigest() in error.value.message
    assert "nothing was installed" in error.value.hint
    assert not fetch.part.exists()


def test_what_is_not_there_is_said_with_its_address(server, fetch):
    with pytest.raises(FetchError, match=r"http://127\.0\.0\.1:\d+/b\.zip answers 404 Not Found"):
        fetch(server.url("/b.zip?token=secret"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "stream"])
@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/zip"])
def test_a_web_page_is_no_archive(server, fetch, kind, ranges):
    page = b"<html>please log in</html>" * 9000
    server.put("/a.zip", page, kind=kind, ranges=ranges)
    with pytest.raises(FetchError, match=r"web page|not send a zip archive|not a zip archive"):
        fetch(server.url("/a.zip"))
    assert not fetch.part.exists()
    assert fetch.tree == {}


def test_passing_failures_are_tried_again(server, fetch):
    failures = [(500, {}), (503, {"Retry-After": "0"}), (429, {"Retry-After": "nonsense"})]
    server.put("/a.zip", ARCHIVE, failures=failures)
    assert fetch(server.url("/a.zip")).sha256 == DIGEST
    assert [request.status for request in server.requests[:3]] == [500, 503, 429]


def test_a_server_that_never_recovers_is_given_up(server, fetch):
    server.put("/a.zip", ARCHIVE, failures=[(503, {"Retry-After": "3600"})] * 20)
    with pytest.raises(FetchError, match="503 Service Unavailable \\(4 attempts\\)"):
        fetch(server.url("/a.zip"))
    assert len(server.requests) == QUICK.attempts


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "stream"])
def test_a_connection_that_falls_silent_is_given_up_and_taken_up(server, fetch, ranges):
    server.put("/a.zip", ARCHIVE, ranges=ranges, stall=1_200_000)
    # A busy machine may be silent as well, and again.
    options = replace(QUICK, stall_timeout=0.5, attempts=100)
    assert fetch(server.url("/a.zip"), options=options).sha256 == DIGEST
    assert fetch.tree == TREE


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "stream"])
def test_a_slow_drip_is_waited_for(server, fetch, ranges):
    archive = pack(library(100_000))

    def fetched_once(factor: float) -> bool:
        before = server.sent
        server.put("/a.zip", archive, ranges=ranges, drip=(8_000, 0.02 * factor))
        fetch(server.url("/a.zip"), options=replace(QUICK, stall_timeout=0.3 * factor))
        assert fetch.tree == expected(archive)
        return server.sent - before == len(archive)

    at_some_pace(fetched_once)


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "stream"])
def test_a_server_that_drips_for_ever_is_given_up_and_what_came_is_kept(server, fetch, ranges):
    resource = server.put("/a.zip", ARCHIVE, ranges=ranges, drip=(100, 0.02))
    with pytest.raises(FetchError, match=r"only \d+ bytes arrived in 0 s") as error:
        fetch(server.url("/a.zip"), options=replace(QUICK, watched=0.3))
    assert "type the same command again" in error.value.hint
    resource.drip = None
    assert fetch(server.url("/a.zip")).sha256 == DIGEST


def test_the_next_address_is_tried(server, fetch, capsys):
    server.put("/page.zip", b"<html></html>", kind="text/html")
    server.put("/a.zip", ARCHIVE)
    done = fetch(server.url("/no.zip"), server.url("/page.zip"), server.url("/a.zip"))
    assert done.url == server.url("/a.zip")
    assert fetch.tree == TREE
    assert "404 Not Found; trying the next address" in capsys.readouterr().err


def test_all_addresses_are_named_when_none_works(server, fetch):
    with pytest.raises(FetchError, match=r"none of 2 addresses .*/1\.zip.*; .*/2\.zip"):
        fetch(server.url("/1.zip"), server.url("/2.zip"))


def test_nobody_listens(fetch):
    with pytest.raises(FetchError, match=r"cannot fetch http://127\.0\.0\.1:9/a\.zip: .*refused"):
        fetch("http://127.0.0.1:9/a.zip")


@pytest.mark.parametrize("url", ["ftp://example.org/a.zip", "nonsense", "http://[bad/a.zip"])
def test_an_address_of_another_kind_is_refused(fetch, url):
    with pytest.raises(FetchError):
        fetch(url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "{",
        '{"source": 1, "version": ["", "", 1], "prefix": 0, "tail": 1}',
    ],
)
def test_a_journal_that_makes_no_sense_counts_as_none(server, fetch, text):
    server.put("/a.zip", ARCHIVE, cuts=[1_000_000])
    with pytest.raises(FetchError):
        fetch(server.url("/a.zip"), options=IMPATIENT)
    fetch.journal.write_text(text)
    assert fetch(server.url("/a.zip")).sha256 == DIGEST


def test_a_journal_that_claims_more_than_there_is_counts_as_none(server, fetch):
    server.put("/a.zip", ARCHIVE, cuts=[1_000_000])
    with pytest.raises(FetchError):
        fetch(server.url("/a.zip"), options=IMPATIENT)
    with fetch.part.open("r+b") as file:
        file.truncate(500_000)
    assert fetch(server.url("/a.zip")).sha256 == DIGEST


CHILD = """
import os, sys
from dataclasses import replace
from pathlib import Path
from fdl.libtorch.archive import Job
from fdl.libtorch.download import unpack_url
from fdl.base.progress import Progress
from tests.fdl.fetch.archives import QUICK, inside
url, target, part, *options = sys.argv[1:]
options = replace(QUICK, **eval(options[0])) if options else QUICK
with Progress("archive") as progress:
    job = Job(target=Path(target), select=inside, progress=progress, options=options)
    unpack_url([url], job, part=Path(part), environ=os.environ)
"""


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(
            n / 30 + random.Random(n).random() / 30, marks=() if n % 6 == 1 else pytest.mark.slow
        )
        for n in range(30)
    ],
)
def test_a_killed_process_is_continued_by_the_next(server, fetch, share):
    resource = server.put("/a.zip", ARCHIVE, drip=(40_000, 0.002))
    target = fetch.folder / "killed"
    target.mkdir()
    argv = [sys.executable, "-c", CHILD, server.url("/a.zip"), str(target), str(fetch.part)]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as child:
        while server.sent < share * len(ARCHIVE) and child.poll() is None:
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
    kept = held(fetch.part)
    resource.drip = None
    # What the dead process was still being sent has to end before it is counted.
    server.settle()
    before = server.sent
    assert fetch(server.url("/a.zip"), sha256=DIGEST).sha256 == DIGEST
    assert fetch.tree == TREE
    assert server.sent - before == len(ARCHIVE) - kept
    assert sorted(path.name for path in fetch.part.parent.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_too_small_is_noticed_before_the_archive_is_fetched(
    server, fetch, small_disk
):
    server.put("/a.zip", ARCHIVE)
    (small_disk / "filler").write_bytes(bytes(3_000_000))
    with pytest.raises(
        FetchError, match=r"needs 4\.\d MB and has 3\.\d MB left: 1\.\d MB are mis"
    ) as error:
        fetch(server.url("/a.zip"), target=small_disk / "target")
    assert "the archive takes 2.1 MB more and its files 4." in error.value.message
    assert server.sent < 70_000


def test_a_disk_that_fills_up_meanwhile_keeps_the_part(server, fetch, small_disk):
    def fill(number: int) -> None:
        if number == 1:
            with filler.open("wb", 0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(100_000))

    filler = small_disk / "filler"
    resource = server.put("/a.zip", ARCHIVE, before=fill)
    with pytest.raises(FetchError, match="the disk is full: cannot write") as error:
        fetch(server.url("/a.zip"), target=small_disk / "target")
    assert "is kept" in error.value.hint
    filler.unlink()
    resource.before = None
    before, kept = server.sent, held(fetch.part)
    assert kept > 0
    fetch(server.url("/a.zip"))
    assert fetch.tree == TREE
    assert server.sent - before == len(ARCHIVE) - kept


def test_a_disk_that_fills_up_under_a_large_member_leaves_no_thread_behind(
    server, fetch, small_disk
):
    def fill(number: int) -> None:
        if number == 1:
            with (small_disk / "filler").open("wb", 0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(100_000))

    content = random.Random(0).randbytes(5_500_000)
    server.put("/a.zip", pack([("large.so", content)]), before=fill)
    with pytest.raises(FetchError, match=r"the disk is full: cannot write .*large\.so"):
        fetch(server.url("/a.zip"), target=small_disk / "target", select=lambda name: name)
    assert not [one for one in threading.enumerate() if one.name.startswith("fetch")]


def test_a_disk_that_fills_up_under_the_part_says_so(server, fetch, small_disk):
    server.put("/a.zip", pack(library(7_000_000)), ranges=False, sized=False)
    with pytest.raises(FetchError, match=r"the disk is full: cannot write .*archive\.part"):
        fetch(server.url("/a.zip"), part=small_disk / "archive.part")


def test_an_interrupt_ends_all_threads_and_keeps_the_part(server, fetch):
    """Ctrl-C reaches the caller at once, though the server is silent."""
    server.put("/a.zip", ARCHIVE, stall=1_000_000)
    target = fetch.folder / "target"
    target.mkdir()
    argv = [sys.executable, "-c", CHILD, server.url("/a.zip"), str(target), str(fetch.part)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as child:
        wait_for(lambda: server.sent >= 1_000_000)
        os.kill(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert held(fetch.part) > 0


def test_a_server_that_stays_silent_is_given_up_with_the_command_that_resumes(server, fetch):
    def silent(number: int) -> None:
        resource.stall = 300_000 if number else None

    def given_up_when_silent(factor: float) -> bool:
        patient = replace(QUICK, stall_timeout=0.2 * factor, watched=0.5 * factor, attempts=50)
        found = rf"only \d+ bytes arrived in {patient.watched:.0f} s"
        with pytest.raises(FetchError, match=found) as error:
            fetch(server.url("/a.zip"), options=patient, typed="fdl libtorch install cpu")
        if held(fetch.part) < LARGEST_ENDING + 300_000:
            return False
        assert error.value.hint == (
            "check the network and type the same command again; what was fetched is kept: "
            "fdl libtorch install cpu"
        )
        return True

    resource = server.put("/a.zip", ARCHIVE, before=silent)
    at_some_pace(given_up_when_silent)
    resource.before = resource.stall = None
    kept, before = held(fetch.part), server.sent
    assert fetch(server.url("/a.zip")).sha256 == DIGEST
    assert server.sent - before == len(ARCHIVE) - kept
