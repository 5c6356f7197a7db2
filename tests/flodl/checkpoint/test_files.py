"""Files are replaced as a whole, and damaged or foreign ones are refused as such."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import signal
import stat
import threading
import zlib
from contextlib import contextmanager

import pytest
import torch

from flodl.checkpoint import (
    checkpoint_keys,
    checkpoint_metadata,
    checkpoint_version,
    digest,
    load_checkpoint,
    load_checkpoint_file,
    save_checkpoint_file,
)
from flodl.checkpoint.disk import Disk
from flodl.errors import CheckpointError
from tests.rows import each_row

TENSORS = {"a/weight": torch.arange(6.0).reshape(2, 3), "b/n": torch.tensor([1, 2])}


def model():
    return {name: torch.zeros_like(value) for name, value in TENSORS.items()}


def load(path):
    target = model()
    load_checkpoint_file(path, target.items(), [])
    return target


def holds_tensors(path):
    return all(torch.equal(value, TENSORS[name]) for name, value in load(path).items())


@pytest.fixture
def saved(tmp_path):
    return saved_in(tmp_path)


def saved_in(folder):
    path = folder / "model.fdl"
    save_checkpoint_file(path, TENSORS.items(), [])
    return path


@contextmanager
def disk_full_after(size):
    """The system itself refuses to let a file grow beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.case("runtime", 38)
def test_a_save_that_fails_half_way_leaves_the_previous_file_and_nothing_else(saved):
    def interrupted():
        yield "a/weight", torch.zeros(2, 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint_file(saved, interrupted(), [])
    assert holds_tensors(saved)
    assert list(saved.parent.iterdir()) == [saved]

    with (
        disk_full_after(100_000),
        pytest.raises(CheckpointError, match=r"cannot write checkpoint .*model\.fdl: File too"),
    ):
        save_checkpoint_file(saved, [("a/weight", torch.zeros(1_000_000))], [])
    assert holds_tensors(saved)
    assert list(saved.parent.iterdir()) == [saved]


def test_tensors_that_another_thread_trains_on_do_not_replace_the_previous_file(saved, monkeypatch):
    weight, stop, trained = torch.zeros(8_000_000), threading.Event(), threading.Event()
    wrote = Disk.wrote

    def train():
        while not stop.is_set():
            weight[:4_000_000].add_(1)
            trained.set()

    def wrote_slowly(self, size):
        trained.clear()
        assert trained.wait(60)
        wrote(self, size)

    monkeypatch.setattr(Disk, "wrote", wrote_slowly)
    thread = threading.Thread(target=train)
    thread.start()
    try:
        with pytest.raises(CheckpointError, match="changed while they were saved; save a snapshot"):
            save_checkpoint_file(saved, [("w", weight)], [])
    finally:
        stop.set()
        thread.join()
    assert holds_tensors(saved)
    assert list(saved.parent.iterdir()) == [saved]


def test_a_name_as_long_as_the_file_system_allows(tmp_path):
    path = tmp_path / ("ä" * 125 + ".fdl")
    save_checkpoint_file(path, TENSORS.items(), [])
    assert holds_tensors(path)


def test_a_link_to_a_file_in_a_missing_folder_makes_the_folder_and_a_ring_of_links_is_refused(
    tmp_path,
):
    link, ring = tmp_path / "last.fdl", tmp_path / "ring.fdl"
    link.symlink_to("runs/7/model.fdl")
    save_checkpoint_file(link, TENSORS.items(), [])
    assert link.is_symlink()
    assert holds_tensors(tmp_path / "runs/7/model.fdl")
    ring.symlink_to(ring)
    with pytest.raises(CheckpointError, match=r"ring\.fdl: Too many levels of symbolic links"):
        save_checkpoint_file(ring, TENSORS.items(), [])
    assert ring.is_symlink()


def test_missing_parent_folders_are_created(tmp_path):
    path = tmp_path / "deep" / "down" / "model.fdl.gz"
    save_checkpoint_file(str(path), TENSORS.items(), [])
    assert holds_tensors(path)


def test_a_file_in_the_place_of_a_folder_is_reported(saved):
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*: (Not a dir|File ex)"):
        save_checkpoint_file(saved / "model.fdl", TENSORS.items(), [])


def test_a_folder_in_the_place_of_the_file_is_reported_and_kept(tmp_path):
    (tmp_path / "model.fdl").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*: Is a directory"):
        save_checkpoint_file(tmp_path / "model.fdl", TENSORS.items(), [])
    with pytest.raises(CheckpointError, match=r"cannot open checkpoint .*: Is a directory"):
        load(tmp_path / "model.fdl")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.fdl"]


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere\.fdl: No such file"):
        load(tmp_path / "nowhere.fdl")


def test_a_link_stays_a_link_and_permissions_follow_the_umask(tmp_path, saved):
    link = tmp_path / "last.fdl"
    link.symlink_to(saved.name)
    previous = os.umask(0o027)
    try:
        save_checkpoint_file(link, TENSORS.items(), [])
    finally:
        os.umask(previous)
    assert link.is_symlink()
    assert holds_tensors(link)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o640


def header_of(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def raw_container(text, body=b""):
    return len(text).to_bytes(8, "little") + text + body


def container(fields, body):
    return raw_container(json.dumps(fields).encode(), body)


def changed(data, **replacements):
    """The container with other fields; None removes one."""
    fields, body = header_of(data)
    fields = {key: value for key, value in (fields | replacements).items() if value is not None}
    return container(fields, body)


def entry(dtype="F32", shape=(2, 3), offsets=(16, 40)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def metadata(**extra):
    return {"format": "fdl", "fdl_version": "3"} | extra


DAMAGE = {
    "empty": lambda _: b"",
    "three bytes": lambda data: data[:3],
    "truncated header": lambda data: data[:50],
    "truncated body": lambda data: data[:-1],
    "no body": lambda data: data[: 8 + int.from_bytes(data[:8], "little")],
    "trailing byte": lambda data: data + b"\0",
    "pickle": lambda _: pickle.dumps({"a/weight": [1.0]}),
    "text": lambda _: b"loss=0.5\n" * 100,
    "huge header": lambda data: (1 << 62).to_bytes(8, "little") + data[8:],
    "header beyond the file": lambda data: (90_000_000).to_bytes(8, "little") + data[8:],
    "safetensors of others": lambda data: changed(data, __metadata__={"format": "pt"}),
    "a flipped bit of a value": lambda data: data[:-1] + bytes([data[-1] ^ 0x10]),
    "unknown digest": lambda data: changed(data, __metadata__=metadata(digest="sha1:00")),
    "no metadata": lambda data: changed(data, __metadata__=None),
    "metadata not strings": lambda data: changed(data, __metadata__=metadata(epoch=3)),
    "future version": lambda data: changed(data, __metadata__=metadata(fdl_version="4")),
    "no version": lambda data: changed(data, __metadata__={"format": "fdl"}),
    "long version": lambda data: changed(data, __metadata__=metadata(fdl_version="9" * 5000)),
    "strange version": lambda data: changed(data, __metadata__=metadata(fdl_version="²")),
    "aliases not JSON": lambda data: changed(data, __metadata__=metadata(aliases="{")),
    "aliases not names": lambda data: changed(data, __metadata__=metadata(aliases='{"c": 1}')),
    "alias to nothing": lambda data: changed(data, __metadata__=metadata(aliases='{"c": "d"}')),
    "alias of a stored name": lambda data: changed(
        data, __metadata__=metadata(aliases='{"b/n": "a/weight"}')
    ),
    "overlap": lambda data: changed(data, **{"a/weight": entry(offsets=(8, 32))}),
    "gap": lambda data: changed(data, **{"a/weight": entry(offsets=(24, 48))}),
    "range beyond the shape": lambda data: changed(data, **{"a/weight": entry(shape=(2, 2))}),
    "backward range": lambda data: changed(data, **{"a/weight": entry(offsets=(40, 16))}),
    "negative offset": lambda data: changed(data, **{"a/weight": entry(offsets=(-8, 16))}),
    "negative size": lambda data: changed(data, **{"a/weight": entry(shape=(-2, -3))}),
    "enormous size": lambda data: changed(
        data, **{"a/weight": entry(shape=(0, 1 << 70), offsets=(16, 16))}
    ),
    "overflowing size": lambda data: changed(
        data, **{"a/weight": entry(shape=(0, 1 << 62, 1 << 62), offsets=(16, 16))}
    ),
    "fractional size": lambda data: changed(data, **{"a/weight": entry(shape=(2.0, 3))}),
    "boolean size": lambda data: changed(data, **{"a/weight": entry(shape=(True, 6))}),
    "too many dimensions": lambda data: changed(
        data, **{"a/weight": entry(shape=(1,) * 1000, offsets=(16, 20))}
    ),
    "unknown dtype": lambda data: changed(data, **{"a/weight": entry(dtype="F31")}),
    "dtype not text": lambda data: changed(data, **{"a/weight": entry(dtype=[])}),
    "three offsets": lambda data: changed(data, **{"a/weight": entry(offsets=(16, 40, 40))}),
    "entry not a mapping": lambda data: changed(data, **{"a/weight": [1, 2]}),
    "entry with more": lambda data: changed(data, **{"a/weight": entry() | {"crc": 1}}),
    "header not a mapping": lambda _: container([1], b""),
    "nested header": lambda _: raw_container(b"[" * 100_000),
    "header not UTF-8": lambda data: data[:8] + b"\xff" * (len(data) - 8),
    "long number": lambda _: raw_container(b'{"__metadata__":{},"a":' + b"9" * 9000 + b"}"),
    "name twice": lambda _: raw_container(b'{"__metadata__":{},"__metadata__":{}}'),
}


@pytest.mark.case("runtime", 40)
@each_row("kind", DAMAGE)
@each_row("packed", [False, True], ids=["plain", "gz"])
def test_damaged_and_foreign_files_are_refused_and_change_nothing(tmp_path, kind, packed):
    saved = saved_in(tmp_path)
    data = DAMAGE[kind](saved.read_bytes())
    saved.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    target = model()
    with pytest.raises(CheckpointError, match=r"checkpoint .*model\.fdl"):
        load_checkpoint_file(saved, target.items(), [])
    with saved.open("rb") as stream, pytest.raises(CheckpointError):
        load_checkpoint(stream, target.items(), [])
    assert all(value.count_nonzero() == 0 for value in target.values())


def test_a_damaged_file_says_what_to_do(saved):
    saved.write_bytes(saved.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"is truncated: .* restore the file from a copy"):
        load(saved)
    with pytest.raises(CheckpointError, match="is truncated"):
        checkpoint_keys(saved)


def test_a_flipped_bit_in_a_tensor_is_found_and_the_names_can_still_be_read(saved):
    sound = saved.read_bytes()
    for position in (len(sound) - 40, len(sound) - 1):
        flipped = bytearray(sound)
        flipped[position] ^= 1
        saved.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"is damaged: its checksum is crc32:"):
            load(saved)
    assert checkpoint_keys(saved) == ["b/n", "a/weight"]


def test_a_flipped_bit_anywhere_in_a_header_is_found(saved):
    sound = saved.read_bytes()
    _, body = header_of(sound)
    # Under another name it is no digest, and the file one that never had any.
    key = sound.index(b'"digest"')
    for position in set(range(len(sound) - len(body))) - set(range(key, key + len('"digest"'))):
        flipped = bytearray(sound)
        flipped[position] ^= 1 << position % 7
        saved.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            load(saved)


def test_the_digest_is_the_checksum_that_zlib_computes_of_a_file_with_a_blank_one(saved):
    digest = checkpoint_metadata(saved)["digest"]
    blank = saved.read_bytes().replace(digest.encode(), b"crc32:00000000")
    assert digest == f"crc32:{zlib.crc32(blank):08x}"


def test_a_file_without_a_digest_is_loaded_unchecked(saved):
    fields, body = header_of(saved.read_bytes())
    del fields["__metadata__"]["digest"]
    saved.write_bytes(container(fields, body))
    assert holds_tensors(saved)


def test_a_future_version_can_be_named_but_not_loaded(saved):
    saved.write_bytes(changed(saved.read_bytes(), __metadata__=metadata(fdl_version="4")))
    assert checkpoint_version(saved) == 4
    with pytest.raises(CheckpointError, match="has container version 4; this flodl reads 3"):
        load(saved)


def test_the_order_of_the_header_is_free_as_the_safetensors_library_shuffles_it(saved):
    fields, body = header_of(saved.read_bytes())
    saved.write_bytes(container(dict(reversed(fields.items())), body))
    assert holds_tensors(saved)
    assert checkpoint_keys(saved) == ["b/n", "a/weight"]  # file order is the order of the bytes


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_compressed_bomb_is_read_only_as_far_as_its_header_promises(saved, packed):
    bomb = gzip.compress(saved.read_bytes() + bytes(50_000_000))
    saved.write_bytes(bomb)
    with pytest.raises(CheckpointError, match="has data after its last tensor"):
        load(saved)
    # A lying length field must not reserve what it claims.
    lying = changed(
        gzip.decompress(bomb)[:10_000],
        **{"a.weight": entry(shape=(1 << 40,), offsets=(16, 16 + (1 << 42)))},
    )
    saved.write_bytes(gzip.compress(lying) if packed else lying)
    with pytest.raises(CheckpointError, match="is truncated"):
        load(saved)


@each_row("before", [0, 64, 5], ids=["at its start", "aligned", "unaligned"])
@each_row("buffering", [0, -1], ids=["raw", "buffered"])
def test_a_stream_of_a_file_is_read_from_its_position_to_its_end(tmp_path, before, buffering):
    saved = saved_in(tmp_path)
    saved.write_bytes(b"x" * before + saved.read_bytes())
    target = model()
    with saved.open("rb", buffering=buffering) as stream:
        stream.seek(before)
        load_checkpoint(stream, target.items(), [])
        assert stream.read() == b""
    assert all(torch.equal(target[name], TENSORS[name]) for name in TENSORS)


def test_a_stream_of_a_file_larger_than_its_buffer_is_at_its_end_afterwards(tmp_path):
    big = torch.arange(100_000.0)
    save_checkpoint_file(tmp_path / "big.fdl", [("big", big)], [])
    target = torch.zeros(100_000)
    with (tmp_path / "big.fdl").open("rb") as stream:
        load_checkpoint(stream, [("big", target)], [])
        assert stream.read() == b""
    assert torch.equal(target, big)


def test_a_stream_that_unpacks_a_file_is_not_taken_for_the_file(saved):
    saved.write_bytes(gzip.compress(saved.read_bytes()))
    target = model()
    with gzip.open(saved) as packed, io.BufferedReader(packed) as stream:
        load_checkpoint(stream, target.items(), [])
    assert all(torch.equal(target[name], TENSORS[name]) for name in TENSORS)


@each_row("threads", [2, 3, 7])
def test_threads_that_share_a_checksum_find_the_same_one(threads, monkeypatch):
    monkeypatch.setattr(digest, "_WORTH_SPLITTING", 10)
    data = memoryview(os.urandom(1003))
    alone = digest.digest_of([b"header", data])
    assert alone == f"crc32:{zlib.crc32(b'header' + bytes(data)):08x}"
    assert digest.digest_of([b"header", data], threads) == alone
    monkeypatch.setattr(digest, "_combine", lambda: None)  # isal is not installed
    assert digest.digest_of([b"header", data], threads) == alone
