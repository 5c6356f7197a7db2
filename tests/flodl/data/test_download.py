"""Downloads from a real server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flodl.data import Mnist, cifar, mnist, shakespeare
from flodl.data.cifar import Cifar10
from flodl.data.download import RemoteFile, fetch
from flodl.data.shakespeare import Shakespeare
from flodl.errors import DataError
from tests import fork_server
from tests.flodl.data.test_parsers import images, labels, record

CONTENT = bytes(range(256)) * 1000


@dataclass
class Server:
    """Offers files, and misbehaves as told."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    shifted: bool = False
    cuts: int = 0
    """How many answers break off in the middle."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                asked = self.headers.get("Range")
                server.requests.append((name, asked))
                if name not in server.files:
                    self.send_error(404)
                    return
                content = server.files[name]
                start = 0
                if asked is not None and server.ranges:
                    start = int(asked.removeprefix("bytes=").removesuffix("-"))
                    if start >= len(content):
                        self.send_error(416)
                        return
                    self.send_response(206)
                    first = start + 1 if server.shifted else start
                    span = f"bytes {first}-{len(content) - 1}/{len(content)}"
                    self.send_header("Content-Range", span)
                else:
                    self.send_response(200)
                rest = content[start:]
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                if server.cuts:
                    server.cuts -= 1
                    rest = rest[: len(rest) // 2]
                self.wfile.write(rest)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    ours = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), ours.handler()) as http:
        ours.address = f"http://127.0.0.1:{http.server_port}/sets/"
        thread = threading.Thread(target=http.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield ours
        finally:
            http.shutdown()
            thread.join()


def remote(*folders: str, content: bytes = CONTENT, name: str = "data.bin") -> RemoteFile:
    return RemoteFile(name=name, folders=folders, sha256=hashlib.sha256(content).hexdigest())


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    server.files["data.bin"] = CONTENT
    for _ in range(2):
        path = fetch(remote(server.address), tmp_path / "new" / "folder")
        assert path.read_bytes() == CONTENT
    assert server.requests == [("data.bin", None)]
    assert listing(path.parent) == ["data.bin"]


def test_a_connection_that_is_cut_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.files["data.bin"] = CONTENT
    server.cuts = 2
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    assert server.requests == [
        ("data.bin", None),
        ("data.bin", "bytes=128000-"),
        ("data.bin", "bytes=192000-"),
    ]


def test_a_server_that_always_breaks_off_leaves_a_part_for_the_next_call(
    server: Server, tmp_path: Path
) -> None:
    server.files["data.bin"] = CONTENT
    server.cuts = 3
    with pytest.raises(DataError, match=r"the connection broke after 224,000 bytes"):
        fetch(remote(server.address), tmp_path)
    assert listing(tmp_path) == ["data.bin.part"]
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("data.bin", "bytes=224000-")
    assert listing(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("part", [b"", CONTENT[:999], CONTENT])
def test_a_part_is_continued(server: Server, tmp_path: Path, part: bytes) -> None:
    server.files["data.bin"] = CONTENT
    (tmp_path / "data.bin.part").write_bytes(part)
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("data.bin", f"bytes={len(part)}-" if part else None)]


def test_a_server_that_ignores_the_range_starts_the_file_again(
    server: Server, tmp_path: Path
) -> None:
    server.files["data.bin"] = CONTENT
    server.ranges = False
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:999])
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("data.bin", "bytes=999-")]


@pytest.mark.parametrize("part", [b"an older file", CONTENT + b"too much"])
def test_a_part_of_another_file_is_thrown_away(server: Server, tmp_path: Path, part: bytes) -> None:
    server.files["data.bin"] = CONTENT
    (tmp_path / "data.bin.part").write_bytes(part)
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("data.bin", f"bytes={len(part)}-"), ("data.bin", None)]


def test_another_part_than_asked_for_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["data.bin"] = CONTENT
    server.shifted = True
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:999])
    with pytest.raises(DataError, match="the answer holds another part than asked for"):
        fetch(remote(server.address), tmp_path)


def test_a_download_with_another_digest_is_refused_and_removed(
    server: Server, tmp_path: Path
) -> None:
    server.files["data.bin"] = b"<html>please log in</html>"
    with pytest.raises(DataError, match=r"/data\.bin: the download is another file.*SHA-256 is"):
        fetch(remote(server.address), tmp_path)
    assert listing(tmp_path) == []


def test_a_file_in_the_folder_that_is_another_one_is_refused_and_kept(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "data.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"data\.bin: it is not the file that belongs there"):
        fetch(remote(server.address), tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == b"mine"
    assert server.requests == []


def test_without_a_network_the_message_says_what_to_put_where(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http:
        port = http.server_port
    file = remote(f"http://127.0.0.1:{port}/")
    with pytest.raises(DataError) as refusal:
        fetch(file, tmp_path)
    text = str(refusal.value)
    assert f"http://127.0.0.1:{port}/data.bin: " in text
    assert "Connection refused" in text
    assert f"put it into {tmp_path} (SHA-256 {file.sha256})" in text


def test_the_next_address_is_tried_where_one_fails(server: Server, tmp_path: Path) -> None:
    server.files["data.bin"] = CONTENT
    elsewhere = server.address.replace("/sets/", "/sets/") + "absent-"
    assert fetch(remote(elsewhere, server.address), tmp_path).read_bytes() == CONTENT
    assert [name for name, _ in server.requests] == ["absent-data.bin", "data.bin"]

    with pytest.raises(DataError, match=r"absent-other\.bin: HTTP 404 Not Found"):
        fetch(remote(elsewhere, name="other.bin"), tmp_path)


def test_the_next_address_is_tried_where_one_has_another_file(
    server: Server, tmp_path: Path
) -> None:
    server.files = {"portal-data.bin": b"<html>please log in</html>", "data.bin": CONTENT}
    file = remote(server.address + "portal-", server.address)
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert listing(tmp_path) == ["data.bin"]


def test_a_file_in_a_folder_that_cannot_be_written_is_used(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(CONTENT)
    program = (
        "import filelock, os  # fetch imports it when nothing can be read any longer\n"
        "from flodl.data.download import RemoteFile, fetch\n"
        "if os.getuid() == 0:\n"
        "    os.setuid(65534)  # permissions do not bind root\n"
        f"file = RemoteFile(name='data.bin', folders=(), sha256={remote().sha256!r})\n"
        "print(fetch(file, '.'))\n"
    )
    tmp_path.chmod(0o555)
    try:
        run = fork_server.python("-c", program, cwd=tmp_path, torch=True, abrupt=True)
    finally:
        tmp_path.chmod(0o700)
    assert (run.returncode, run.stdout, run.stderr) == (0, "data.bin\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


def test_a_mirror_takes_the_place_of_the_addresses(server: Server, tmp_path: Path) -> None:
    server.files["data.bin"] = CONTENT
    file = remote("http://unreachable.invalid/")
    assert fetch(file, tmp_path, mirror=server.address.rstrip("/")).read_bytes() == CONTENT
    with pytest.raises(ValueError, match="mirror='file:///etc': give the address of a folder"):
        fetch(file, tmp_path, mirror="file:///etc")


def test_several_at_once_download_it_once(server: Server, tmp_path: Path) -> None:
    server.files["data.bin"] = CONTENT
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: fetch(remote(server.address), tmp_path), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert len(server.requests) == 1


def test_mnist_is_downloaded_and_parsed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"i.gz": gzip.compress(images()), "l.gz": gzip.compress(labels())}
    server.files.update(content)
    files = tuple(remote(name=name, content=data) for name, data in content.items())
    monkeypatch.setitem(mnist._FILES, "test", files)
    data = Mnist.download(tmp_path, "test", mirror=server.address)
    assert data.labels.tolist() == [0, 1]
    assert listing(tmp_path) == ["i.gz", "l.gz"]
    with pytest.raises(ValueError, match="split='valid': choose 'train' or 'test'"):
        Mnist.download(tmp_path, "valid")  # type: ignore[arg-type]


def test_cifar_is_downloaded_and_read_from_its_archive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        # Not in the order of their numbers.
        for number in (2, 1, 3, 4, 5):
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/data_batch_{number}.bin")
            entry.size = 3073
            archive.addfile(entry, io.BytesIO(record(number)))
    server.files["cifar.tar.gz"] = packed.getvalue()
    monkeypatch.setattr(cifar, "_ARCHIVE", remote(name="cifar.tar.gz", content=packed.getvalue()))
    data = Cifar10.download(tmp_path, mirror=server.address)
    assert data.labels.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(DataError, match=r"cifar\.tar\.gz: cannot be read: .*test_batch\.bin"):
        Cifar10.download(tmp_path, "test")
    with pytest.raises(ValueError, match="split='all'"):
        Cifar10.download(tmp_path, "all")  # type: ignore[arg-type]


def test_shakespeare_is_downloaded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["input.txt"] = b"hello world"
    file = remote(name="input.txt", content=b"hello world")
    monkeypatch.setattr(shakespeare, "_TEXT", file)
    assert Shakespeare.download(tmp_path, 4, mirror=server.address).data.shape == (2, 4)


def test_the_known_files_have_digests_and_addresses() -> None:
    known = [*mnist._FILES["train"], *mnist._FILES["test"], cifar._ARCHIVE, shakespeare._TEXT]
    assert len({file.sha256 for file in known}) == len(known) == 6
    for file in known:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert all(folder.startswith("https://") and folder[-1] == "/" for folder in file.folders)
