"""Replacing a file: the old content or the new, with its permissions."""

import stat

import pytest

from fdl.base.errors import FdlError
from fdl.base.files import put, rewrite


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


def test_a_new_file_gets_its_folder_and_the_permissions_asked_for(tmp_path):
    put(tmp_path / "a/b/new", b"text\n", 0o600)
    assert (tmp_path / "a/b/new").read_bytes() == b"text\n"
    assert mode(tmp_path / "a/b/new") == 0o600
    assert [one.name for one in (tmp_path / "a/b").iterdir()] == ["new"]


def test_an_existing_file_keeps_its_permissions_and_a_link_stays_one(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    put(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    assert mode(tmp_path / "real") == 0o640
    put(tmp_path / "real", b"newer", 0o600)
    assert mode(tmp_path / "real") == 0o600


def test_what_cannot_be_replaced_stays_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        put(tmp_path / "folder", b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_a_file_that_has_changed_meanwhile_is_left_alone(tmp_path):
    file = tmp_path / "file"
    file.write_text("theirs")
    with pytest.raises(FdlError, match="notes has changed meanwhile; nothing was written"):
        rewrite(file, b"read", b"ours", name="notes")
    assert file.read_text() == "theirs"
    with pytest.raises(FdlError, match="gone cannot be written: No such file"):
        rewrite(tmp_path / "gone", b"", b"ours", name="gone")
