"""A device that is not there and a disk that is full end in one line that says what to do."""

from __future__ import annotations

import pytest
import torch

from flodl.hf import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertModel,
    SentenceTransformer,
)
from flodl.hf.matrix import all_cells, tiny_config
from tests.flodl.hf.batches import batch_of_ids
from tests.rows import each_row

CONFIG = tiny_config(all_cells()[0])
NO_DEVICE = r"device='gpu' is not a device: use 'cpu', 'cuda', 'cuda:1' or 'auto'$"
NO_CUDA = r"device='cuda': this torch \(\S+\) sees 0 CUDA devices; use 'cpu' or install a CUDA"
ENTRIES = {
    "encoder": lambda device: AutoModel.from_pretrained("nowhere/at-all", device=device),
    "head": lambda device: AutoModelForSequenceClassification.from_pretrained(
        "nowhere/at-all", device=device
    ),
    "embed": lambda device: SentenceTransformer("nowhere/at-all", device=device),
    "by place": lambda device: BertModel.from_pretrained("nowhere/at-all", device=device),
    "fresh": lambda device: BertModel.from_config(CONFIG, device=device),
    "fresh head": lambda device: BertForMaskedLM.from_config(CONFIG, device=device),
    "batch": lambda device: batch_of_ids(torch.ones(1, 2).long(), torch.ones(1, 2).long()).to(
        device
    ),
}


@each_row("entry", ENTRIES)
def test_what_is_not_a_device_is_refused_in_one_line(monkeypatch, entry):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=NO_DEVICE) as raised:
        ENTRIES[entry]("gpu")
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@each_row("entry", ENTRIES)
def test_cuda_without_a_device_is_refused_in_one_line(monkeypatch, entry):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=NO_CUDA) as raised:
        ENTRIES[entry]("cuda")
    assert "\n" not in str(raised.value)


FULL = """
import sys
import huggingface_hub.file_download as download

def full(url, temp_file, **options):
    # What the kernel says is real: nothing can be written to this device.
    with open("/dev/full", "wb") as file:
        file.write(b"x" * 100_000)

fetch = download.http_get

def get(url, temp_file, **options):
    wanted = sys.argv[1] in (options.get("displayed_filename") or url)
    return (full if wanted else fetch)(url, temp_file, **options)

download.http_get = get
from flodl.hf.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


def test_a_full_disk_during_a_download_is_one_line_with_a_remedy(hub, repo_folder, tmp_path):
    file = "config.json"
    hub.add_repo("owner/name", repo_folder("one", {"config.json": CONFIG.to_json_string()}))
    out = str(tmp_path / "out")
    words = ["export", "--hub", "owner/name", "--out", out]
    done = hub.python(FULL, tmp_path, file, *words)
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert lines == [
        f"error: no space is left on the disk of {tmp_path}/hf-home/hub for {file} of owner/name: "
        "free some there, or pass cache_dir= (or set HF_HOME) to use another disk"
    ]
    assert "Traceback" not in done.stderr
