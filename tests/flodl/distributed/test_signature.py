"""What ranks compare before the first step, and how a difference is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from flodl.data import DataLoader
from flodl.errors import DistributedError
from flodl.ranks.group import LocalGroup
from flodl.ranks.signature import check_same, difference, reads_files, signature
from flodl.train.observers.digests import few_samples_digest
from tests import fork_server
from tests.flodl.distributed.ranks import RankError
from tests.ports import kept_port

BOTH = ("rank 0", "rank 1")

PROGRAM = """
import torch
from torch.utils.data import TensorDataset
from net import Net
from flodl import Trainer

data = TensorDataset(torch.zeros(8, 4), torch.zeros(8, 1))
trainer = Trainer.builder(
    Net, lambda p: torch.optim.SGD(p, lr=0.1), lambda m, b: m(b[0]).mean()
)
trainer.dataset(data).batch_size(2).num_epochs(1).run()
print("trained")
"""

NET = """
from torch import nn

def Net(device):
    return nn.Linear(4, 1, device=device)
"""


def _different(group):
    check_same(group, signature({"batch_size": 32 + group.rank, "seed": 42}))


def test_ranks_with_other_settings_are_told_which(ranks):
    with pytest.raises(RankError, match="batch_size is 32 on rank 0 and 33 on rank 1") as told:
        ranks(2, _different)
    assert DistributedError.__name__ in str(told.value)


def test_one_rank_has_nothing_to_compare():
    check_same(LocalGroup(), signature({"seed": 1}))


def test_another_version_of_a_package_is_named_with_the_command_that_installs_the_first_one():
    one = signature({})
    other = {**signature({}), "host": "beta", "packages": {**one["packages"], "torch": "2.0.0"}}
    told = difference(one, other, ("rank 0", "rank 3"))
    version = torch.__version__.partition("+")[0]
    assert f"torch is {version} on rank 0 ({one['host']}) and 2.0.0 on rank 3 (beta)" in told
    assert told.endswith(f"on beta: pip install torch=={version}")


def test_packages_and_modules_that_only_one_rank_has_loaded_are_not_compared():
    one = signature({"seed": 1})
    other = {**one, "packages": {"numpy": one["packages"]["numpy"]}, "code": {}}
    assert difference(one, other, BOTH) == difference(other, one, BOTH) == ""
    assert one["code"]
    assert "pytest" in one["packages"]


def test_files_are_compared_by_the_first_rank_of_each_of_several_hosts():
    launched = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    launched |= {"MASTER_ADDR": "alpha", "MASTER_PORT": "1"}
    assert reads_files(launched)
    assert not reads_files({**launched, "RANK": "3", "LOCAL_RANK": "1"})
    assert not reads_files({**launched, "WORLD_SIZE": "2", "RANK": "0"})
    assert not reads_files({})


def test_a_changed_sample_changes_the_digest_of_small_data():
    data = torch.arange(60.0).reshape(20, 3)
    changed = data.clone()
    changed[7, 1] = 0
    one, other = (
        few_samples_digest(DataLoader(TensorDataset(each), batch_size=2).resident)
        for each in (data, changed)
    )
    assert one != other
    assert len(one) == len(other) == 16
    assert few_samples_digest(()) == ""


def test_a_launcher_of_ones_own_over_two_hosts_is_told_which_file_differs(tmp_path: Path) -> None:
    programs = []
    with kept_port() as port:
        for rank, host in enumerate(("alpha", "beta")):
            folder = tmp_path / host
            folder.mkdir()
            (folder / "train.py").write_text(PROGRAM)
            (folder / "net.py").write_text(NET + "# of today\n" * rank)
            told = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
            told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "FLODL_HOST": host}
            told |= {"GLOO_SOCKET_IFNAME": "lo"}
            env = {**os.environ, **{name: str(value) for name, value in told.items()}}
            programs.append(fork_server.start("train.py", cwd=folder, env=env, torch=True))
        texts = [program.communicate(timeout=60) for program in programs]
    for _, err in texts:
        assert f"{tmp_path}/alpha/net.py on rank 0 (alpha)" in err
        assert f"{tmp_path}/beta/net.py on rank 1 (beta) differ" in err
        assert "git pull, or fdl --sync" in err
