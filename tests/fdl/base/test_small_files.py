"""A file that cannot be read: as an empty text, and as an error that names it."""

import pytest

from fdl.base.errors import FdlError, LibtorchError, failing
from fdl.base.files import text_of


def test_a_text_that_cannot_be_read_is_empty(tmp_path):
    file = tmp_path / "notes.txt"
    assert text_of(file) == text_of(tmp_path) == ""
    file.write_bytes(b"caf\xe9")
    assert text_of(file) == "caf\ufffd"
    assert text_of(file, "strict") == ""
    file.write_text("café")
    assert text_of(file) == text_of(str(file), "strict") == "café"


def test_an_error_of_the_system_names_what_failed(tmp_path):
    with (
        pytest.raises(LibtorchError) as found,
        failing("notes.txt cannot be read", "make it", LibtorchError),
    ):
        (tmp_path / "notes.txt").read_bytes()
    assert found.value.message == "notes.txt cannot be read: No such file or directory"
    assert found.value.hint == "make it"
    assert found.value.__cause__ is None
    with pytest.raises(FdlError, match="cannot write x: "), failing("cannot write x"):
        tmp_path.write_bytes(b"")


def test_other_errors_stay_as_they_are():
    with pytest.raises(KeyError), failing("notes.txt cannot be read"):
        raise KeyError("a")
