"""Commands say what they download before they do, and what to type where they cannot."""

import re
import shutil

import pytest

from fdl.base.units import size_text
from flodl.hf import HeadKind, write_tiny_model
from flodl.hf.hub import PICKLED, SAFETENSORS, SENTENCE_FILES, needed
from tests.rows import each_row

READY = """
import sys
from flodl.hf.ready import announce, ready_source
from flodl.hf.head_kind import HeadKind
name, head = sys.argv[1:3]
if head:
    print(ready_source(name, HeadKind(head), again="fdl it -- tiny"))
else:
    announce(name, pickles=True)
"""
ANNOUNCED = r"downloading owner/name: (\d+) files?, (\S+ \S+), from (\S+) to (\S+)\n"


@pytest.fixture
def model(tmp_path):
    """A whole classifier in a folder, with files that nobody needs."""
    folder = write_tiny_model(tmp_path / "model", head=HeadKind.SEQCLS)
    (folder / "vocab.txt").write_text("[PAD]\n")
    (folder / "rust_model.ot").write_bytes(bytes(10_000))
    return folder


def pickled(folder):
    """The same model, with its weights only as a pickle."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def sent(hub):
    """Bytes of all files that were sent."""
    return sum(one.sent for one in hub.requests if one.path in set(hub.bodies()))


def test_a_download_is_announced_with_its_size_and_only_once(hub, model, tmp_path):
    hub.add_repo("owner/name", model)
    done = hub.python(READY, tmp_path, "owner/name", "seqcls")
    assert (done.returncode, done.stdout) == (0, "owner/name\n"), done.stderr
    told = re.fullmatch(ANNOUNCED, done.stderr)
    assert told is not None, done.stderr
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    # Nothing is left for a later announcement: the configuration came with the commit.
    lacking = [name for name in names if name != "config.json"]
    size = sum((model / name).stat().st_size for name in lacking)
    assert (told[1], told[2], told[3]) == ("3", size_text(size), hub.url)
    assert told[4] == str(tmp_path / "hf-home/hub")

    opened = """
import sys
from flodl.hf import AutoModelForSequenceClassification
AutoModelForSequenceClassification.from_pretrained("owner/name")
"""
    assert hub.python(opened, tmp_path).returncode == 0
    assert sent(hub) == size + (model / "config.json").stat().st_size
    again = hub.python(READY, tmp_path, "owner/name", "seqcls")
    assert (again.returncode, again.stdout, again.stderr) == (0, "owner/name\n", "")


@pytest.mark.slow
def test_pickles_are_announced_to_those_who_convert_them_and_refused_elsewhere(
    hub, model, tmp_path
):
    pickled(model)
    hub.add_repo("owner/name", model)
    refused = hub.python(READY, tmp_path, "owner/name", "seqcls")
    assert refused.returncode == 1
    assert "downloading" not in refused.stderr
    assert refused.stderr.endswith("    fdl flodl-hf convert owner/name\n")
    assert [path.rpartition("/")[2] for path in hub.bodies()] == ["config.json"]
    told = re.fullmatch(ANNOUNCED, hub.python(READY, tmp_path, "owner/name", "").stderr)
    assert told is not None
    size = (model / "pytorch_model.bin").stat().st_size
    assert (told[1], told[2]) == ("1", size_text(size))


def test_without_a_network_the_error_names_the_command_with_a_tiny_model(hub, tmp_path):
    done = hub.python(READY, tmp_path, "owner/name", "seqcls", HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "HF_HUB_OFFLINE forbids to fetch it" in done.stderr
    assert done.stderr.endswith("use a tiny model with random weights:\n    fdl it -- tiny\n")
    assert hub.requests == []


@pytest.mark.slow
def test_a_hub_that_lists_no_files_stops_nothing(hub, model, tmp_path):
    from tests.flodl.hf.fake_hub import Fault

    hub.add_repo("owner/name", model)
    hub.faults.append(Fault("/tree/", status=404, times=9))
    done = hub.python(READY, tmp_path, "owner/name", "seqcls")
    assert (done.returncode, done.stdout, done.stderr) == (0, "owner/name\n", "")


def test_a_tiny_model_is_made_in_the_playground_or_in_the_project(tmp_path, monkeypatch, capsys):
    from flodl.hf.ready import ready_source

    monkeypatch.setenv("FDL_PROJECT_ROOT", str(tmp_path))
    for folder in (tmp_path, tmp_path / "flodl-hf"):
        folder.mkdir(exist_ok=True)
        made = ready_source("tiny", HeadKind.MLM, again="")
        assert made == str(folder / "tiny/bert-mlm")
        assert capsys.readouterr().err == (
            f"{made} is a tiny model with random weights: its answers mean nothing\n"
        )
        shutil.rmtree(folder / "tiny")


def test_files_of_the_first_kind_of_weights_count():
    names = {
        *("config.json", "pytorch_model.bin", "vocab.txt", "added_tokens.json", "tf_model.h5"),
        *("model.safetensors.index.json", "model-00001-of-00002.safetensors"),
        *("model-00002-of-00002.safetensors", "model-extra.safetensors", "modules.json"),
    }
    shards = {name for name in names if name.startswith("model") and "-of-" in name}
    rest = {"config.json", "vocab.txt", "added_tokens.json"}
    assert needed(names, (SAFETENSORS, PICKLED)) == {
        *(rest | shards),
        "model.safetensors.index.json",
    }
    assert needed(names, (PICKLED,)) == {*rest, "pytorch_model.bin"}
    assert needed(names, (PICKLED,), tokenizer=False) == {"config.json", "pytorch_model.bin"}
    assert needed(names, (), more=SENTENCE_FILES) == {*rest, "modules.json"}
    assert needed({*names, "tokenizer.json"}, ()) == {"config.json", "tokenizer.json"}


@each_row(
    ("size", "text"),
    [(999, "999 bytes"), (1500, "1.5 kB"), (267_832_560, "267.8 MB"), (2_240_000_000, "2.2 GB")],
)
def test_sizes_are_in_the_units_of_the_pages_of_the_hub(size, text):
    assert size_text(size) == text
