"""What is taken for a directory, what for a repository, and which weights of a directory count."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from flodl.hf.errors import CheckpointFormatError, PickleOnlyError
from flodl.hf.hub import locate
from flodl.hf.source import Access, Directory, WeightFiles
from tests import fork_server
from tests.flodl.hf.profiles import without, without_sockets
from tests.rows import each_row

INDEX = "model.safetensors.index.json"


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    for name in ("b.safetensors", "a.safetensors"):
        (folder / name).write_bytes(b"weights")
    (folder / INDEX).write_text(
        json.dumps({"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}})
    )
    return folder


# What is what


@pytest.mark.parametrize("kind", [str, Path])
def test_an_existing_directory_is_taken_as_it_is(checkpoint, kind):
    found = locate(kind(checkpoint))
    assert (found.name, found.commit, found.is_local) == (str(checkpoint), None, True)
    assert found.file("config.json") == checkpoint / "config.json"
    assert found.text("config.json") == '{"model_type": "bert"}'


def test_a_directory_goes_before_a_repository_of_that_name(checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    assert locate("checkpoint").file("config.json") == Path("checkpoint/config.json")


def test_the_home_directory_may_be_written_as_a_tilde(checkpoint, monkeypatch):
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    assert locate("~/checkpoint").name == str(checkpoint)


def test_a_symbolic_link_to_a_file_elsewhere_is_followed(checkpoint, tmp_path):
    (tmp_path / "blob").write_text("vocabulary")
    (checkpoint / "vocab.txt").symlink_to(tmp_path / "blob")
    assert locate(checkpoint).text("vocab.txt") == "vocabulary"


NO_REPOSITORIES = [
    *("./absent", "../absent", "/absent/model", "~/absent", "~nobody-has-this-name/model"),
    *("a/b/c", "a//b", "owner/", "owner/name/", "a\\b", "C:\\models", "-a", "owner/na me", ""),
    *("https://huggingface.co/owner/name", "owner/../name", "x" * 5000, "a\nb", "owner/name\n"),
]


def test_what_can_only_be_a_path_is_never_looked_for_on_the_network():
    program = without("huggingface_hub") + without_sockets() + _LOCATE_EACH
    done = fork_server.python(
        "-c", program, stdin=json.dumps(NO_REPOSITORIES), torch=True, abrupt=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [[source, "FileNotFoundError"] for source in NO_REPOSITORIES]


_LOCATE_EACH = """
import json, sys
from pathlib import Path
from flodl.hf.hub import locate

def outcome(source):
    try:
        return str(locate(source))
    except Exception as error:
        return type(error).__name__

sources = json.load(sys.stdin)
assert outcome(Path("owner/name")) == "FileNotFoundError"
print(json.dumps([[source, outcome(source)] for source in sources]))
"""


@pytest.mark.parametrize("source", ["bert-base-uncased", "owner/name", "a/B_c.d-1", "_x/9"])
def test_what_can_be_a_repository_needs_huggingface_hub(source):
    program = f"from flodl.hf.hub import locate\nlocate({source!r})"
    done = fork_server.python(
        "-c", without("huggingface_hub") + without_sockets() + program, torch=True, abrupt=True
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "flodl.hf.errors.MissingDependencyError: the package huggingface_hub is not installed: "
        'run pip install "flodl[hf]"'
    )


def test_a_missing_directory_is_told_how_repositories_are_written():
    with pytest.raises(FileNotFoundError, match=r"no directory './absent'.*owner/name"):
        locate("./absent")


def test_the_address_of_a_repository_is_told_what_to_give_instead():
    with pytest.raises(FileNotFoundError, match="of an address, give only the repository"):
        locate("https://huggingface.co/owner/name")


def test_the_path_of_a_file_is_told_which_directory_to_give(checkpoint):
    with pytest.raises(NotADirectoryError, match=f"probably {checkpoint}$"):
        locate(checkpoint / "model.safetensors")


# Access


@each_row("subfolder", ["..", "a/../b", "/a", "a//b", "./a", "a\\b", "C:a", "a\0b", "../", "/"])
def test_a_subfolder_that_leads_outside_is_refused(subfolder):
    with pytest.raises(ValueError, match="not a folder inside the checkpoint"):
        Access(subfolder=subfolder)


@each_row("revision", ["../main", "", "a//b", "/refs", "a\nb"])
def test_a_revision_that_could_be_another_path_is_refused(revision):
    with pytest.raises(ValueError, match="not a branch, a tag or a commit"):
        Access(revision=revision)


@each_row("token", ["", "hf_secret\n", "hf_secret x", "hf_sécret"])
def test_a_token_that_cannot_be_sent_is_refused_without_being_shown(token):
    with pytest.raises(ValueError, match="token is empty, or holds") as raised:
        Access(token=token)
    assert "hf_" not in str(raised.value)


def test_the_token_is_not_part_of_what_is_printed():
    assert "hf_secret" not in repr(Access(token="hf_secret"))
    assert Access(token="hf_secret").token == "hf_secret"


@each_row("subfolder", ["inner", "inner/"])
def test_a_subfolder_is_where_the_files_are(tmp_path, subfolder):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "config.json").write_text("inner")
    (tmp_path / "config.json").write_text("outer")
    found = locate(tmp_path, Access(subfolder=subfolder))
    assert found.text("config.json") == "inner"
    assert found.name == str(tmp_path / "inner")


def test_a_missing_subfolder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no subfolder 'inner'"):
        locate(tmp_path, Access(subfolder="inner"))


# Files


def test_a_file_that_is_not_there_is_none(checkpoint):
    found = locate(checkpoint)
    (checkpoint / "folder").mkdir()
    assert found.file("tokenizer.json") is None
    assert found.text("tokenizer.json") is None
    assert found.file("folder") is None


def test_a_file_in_a_folder_of_the_checkpoint_is_found(checkpoint):
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling" / "config.json").write_text("{}")
    assert locate(checkpoint).text("1_Pooling/config.json") == "{}"


def test_a_required_file_that_is_not_there_is_an_error(checkpoint):
    found = locate(checkpoint)
    assert found.require("config.json") == checkpoint / "config.json"
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer.json"):
        found.require("tokenizer.json")


@each_row("name", ["../secret", "/etc/passwd", "a/../../secret", "a\\..\\b", ""])
def test_a_name_that_leads_outside_is_refused(checkpoint, name):
    (checkpoint.parent / "secret").write_text("secret")
    for ask in (locate(checkpoint).file, locate(checkpoint).text, locate(checkpoint).require):
        with pytest.raises(CheckpointFormatError, match="not the name of a file inside"):
            ask(name)


def test_text_that_is_not_utf_8_is_refused_by_the_name_of_its_file(checkpoint):
    (checkpoint / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(CheckpointFormatError, match=r"config.json is not text in UTF-8"):
        locate(checkpoint).text("config.json")


# Weights


def test_a_single_file_goes_before_an_index(checkpoint):
    (checkpoint / INDEX).write_text("broken")
    assert locate(checkpoint).weight_files() == WeightFiles((checkpoint / "model.safetensors",))


def test_shards_come_in_the_order_of_their_names(sharded):
    assert locate(sharded).weight_files() == WeightFiles(
        (sharded / "a.safetensors", sharded / "b.safetensors"), sharded / INDEX
    )


def test_no_weights_at_all_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no weights: neither model.safetensors nor"):
        locate(tmp_path).weight_files()


BAD_SHARDS = [
    *("../a.safetensors", "/tmp/a.safetensors", "inner/a.safetensors", "..\\a.safetensors"),
    *("C:a.safetensors", "inner\\a.safetensors", "..", ".", "", "a.bin", "a.safetensors/"),
    "a\0.safetensors",
]


@pytest.mark.case("hf", 21)
@each_row("name", BAD_SHARDS)
def test_a_shard_that_is_no_file_beside_the_index_is_refused(sharded, name):
    (sharded.parent / "a.safetensors").write_bytes(b"weights of another")
    (sharded / "inner").mkdir(exist_ok=True)
    (sharded / "inner" / "a.safetensors").write_bytes(b"weights")
    (sharded / "a.bin").write_bytes(b"pickle")
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(CheckpointFormatError) as raised:
        locate(sharded).weight_files()
    assert str(sharded / INDEX) in str(raised.value)
    assert "plain name of a safetensors file" in str(raised.value)


@each_row(
    "text",
    [
        *("", "{", "[]", "1", "null", "{}", '{"weight_map": null}', '{"weight_map": {}}'),
        *('{"weight_map": ["a.safetensors"]}', '{"weight_map": {"x": 1}}', "[" * 100_000),
        *('{"weight_map": {"x": ["a.safetensors"]}}', '{"weight_map": {"x": 1, "y": "a"}}'),
        '{"weight_map": {"x": "\\ud800.safetensors"}}',
    ],
)
def test_a_broken_index_is_refused_by_its_name(sharded, text):
    (sharded / INDEX).write_text(text)
    with pytest.raises(CheckpointFormatError) as raised:
        locate(sharded).weight_files()
    assert str(sharded / INDEX) in str(raised.value)


@given(st.binary(max_size=60))
def test_no_index_raises_anything_else(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("index")
    (folder / INDEX).write_bytes(content)
    with pytest.raises(CheckpointFormatError):
        Directory(folder).weight_files()


def test_a_key_in_two_shards_is_refused_with_both_names(sharded):
    (sharded / INDEX).write_text(
        '{"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "x": "b.safetensors"}}'
    )
    with pytest.raises(
        CheckpointFormatError,
        match=r"'x' is in it twice, as 'a.safetensors' and as 'b.safetensors'",
    ):
        locate(sharded).weight_files()


def test_a_missing_shard_is_named_with_its_index(sharded):
    (sharded / "b.safetensors").unlink()
    with pytest.raises(CheckpointFormatError) as raised:
        locate(sharded).weight_files()
    assert str(sharded / INDEX) in str(raised.value)
    assert "b.safetensors, which is missing" in str(raised.value)


def test_a_shard_of_a_name_that_no_file_can_have_is_missing(sharded):
    name = "x" * 300 + ".safetensors"
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(CheckpointFormatError, match=f"{name}, which is missing"):
        locate(sharded).weight_files()


class _Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "the pickle was run")


@pytest.mark.case("hf", 20)
@each_row("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_a_directory_of_pickles_names_the_command_and_runs_none(tmp_path, name):
    ran = tmp_path / "ran"
    folder = tmp_path / "only pickles"
    folder.mkdir()
    (folder / name).write_bytes(pickle.dumps(_Harmful(ran)))
    with pytest.raises(PickleOnlyError) as raised:
        locate(folder).weight_files()
    assert str(raised.value).splitlines()[-1].strip() == f"fdl flodl-hf convert '{folder}'"
    assert not ran.exists()


def test_a_directory_that_has_gone_is_named_without_a_subfolder(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(f"there is no directory {tmp_path}/x")):
        Directory(tmp_path / "x")
