"""Tests see nothing of the shell, the home and the programs of whoever runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.surroundings import CLIENTS, of_machine

ROOT = Path(__file__).resolve().parents[1]

PROGRAMS = (*CLIENTS, "docker", "nvidia-smi", "xdg-open")

FILES = {
    ".gitconfig": "[commit]\n\tgpgsign = true\n[init]\n\tdefaultBranch = trunk\n[core]\n"
    "\thooksPath = /nonexistent\n\texcludesFile = ~/.ignore\n[color]\n\tui = always\n"
    "[diff]\n\tnoprefix = true\n\texternal = false\n",
    ".ignore": "*.yml\n*.py\n*.json\n",
    ".netrc": "default login ada password not-a-secret\n",
    ".pip/pip.conf": "[global]\nno-index = true\nrequire-virtualenv = true\n",
    ".config/flodl/config.json": "nonsense",
    ".ssh/config": "Host *\n  ProxyCommand false\n",
    ".bashrc": "exit 7\n",
    ".zshenv": "echo loud\n",
}

VARIABLES = """
    FDL_ENV=nope FDL_MEMORY=nope FDL_PLAN=/nope FDL_PROJECT_ROOT=/nope FDL_RUN_DIR=/nope
    FDL_SCHEMA_PROBE=1 FDL_SCHEMA_SECONDS=0.001 FLODL_COLOR=always FLODL_DEVICE=cuda:7
    FLODL_GUARDS=off FLODL_HOME=/nope FLODL_REHEARSE=1 FLODL_SIM_MS=500,500 FLODL_VERBOSITY=quiet
    SLURM_JOB_ID=7 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=3 SLURM_CONF=/nope PMI_RANK=1
    OMPI_COMM_WORLD_RANK=1 RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=1
    TORCHELASTIC_RUN_ID=x TORCHELASTIC_RESTART_COUNT=1 JOB_COMPLETION_INDEX=1 NCCL_DEBUG=INFO
    GLOO_SOCKET_IFNAME=eth7 TORCH_LOGS=+dynamo TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=7
    OMP_WAIT_POLICY=ACTIVE KMP_BLOCKTIME=infinite CUDA_VISIBLE_DEVICES=3 CUDA_HOME=/nope
    WANDB_MODE=online MLFLOW_TRACKING_URI=http://127.0.0.1:9 HF_HUB_OFFLINE=1 HF_HOME=/nope
    TRANSFORMERS_OFFLINE=1 LIBTORCH=/nope CMAKE_PREFIX_PATH=/nope MAX_JOBS=99 CFLAGS=-Wnope
    FORCE_COLOR=1 CLICOLOR_FORCE=1 COLUMNS=40 LINES=7 PAGER=false EDITOR=false BROWSER=false
    DISPLAY=:77 TERM=dumb SHELL=/bin/tcsh ZDOTDIR=/nope TZ=Asia/Kathmandu LC_ALL=C
    http_proxy=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9 ALL_PROXY=http://127.0.0.1:9
    PIP_NO_INDEX=1 PIP_REQUIRE_VIRTUALENV=1 UV_INDEX_URL=http://127.0.0.1:9 VIRTUAL_ENV=/nope
    CONDA_PREFIX=/nope SSH_AUTH_SOCK=/nope DOCKER_HOST=tcp://127.0.0.1:9 SSL_CERT_FILE=/nope
    XDG_STATE_HOME=/nope XDG_RUNTIME_DIR=/nope GIT_PAGER=false GIT_TRACE=1 LOGLEVEL=DEBUG
    PYTHONWARNINGS=default PYTHONUNBUFFERED=1 TYPER_USE_RICH=0 LR=9 DEVICE=x NAME=x
"""

PRINT = """
import json, os, shutil, subprocess, sys
from pathlib import Path
from tests.surroundings import hide, of_machine
hide(Path(sys.argv[1]))
if len(sys.argv) > 2:
    os.environ["OF_TEST"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1]])
git = subprocess.run(["git", "config", "--list"], capture_output=True, text=True)
print(json.dumps({
    "variables": dict(os.environ), "machine": dict(of_machine()), "git": git.stdout,
    "umask": os.umask(0), "found": [one for one in PROGRAMS if shutil.which(one)],
}))
"""


@pytest.fixture
def hostile(tmp_path):
    """The variables of somebody whose shell, home and programs are full of surprises."""
    home, programs = tmp_path / "home", tmp_path / "programs"
    for name, text in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text('#!/bin/sh\necho "nonsense of $0"\nexit 3\n')
        (programs / name).chmod(0o755)
    (programs / "mine").touch(0o755)
    own = dict(word.split("=", 1) for word in VARIABLES.split())
    path = f"{programs}{os.pathsep}{of_machine()['PATH']}"
    config = {"XDG_CONFIG_HOME": str(home / ".config"), "GIT_CONFIG_GLOBAL": f"{home}/.gitconfig"}
    return {**own, **config, "HOME": str(home), "PATH": path}


@pytest.mark.parametrize("again", [(), ("in a child process",)])
def test_nothing_of_the_machine_reaches_a_test(hostile, tmp_path, again):
    (tmp_path / "own").mkdir()
    program = f"PROGRAMS = {(*PROGRAMS, 'mine')!r}\n{PRINT}"
    kept = {"CI": "1", "UPDATE_SCREENS": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "own", *again],
        cwd=tmp_path, env={**hostile, **kept}, capture_output=True, text=True, umask=0o077,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    variables = seen["variables"]
    assert variables.pop("HOME") == str(tmp_path / "own/home")
    assert variables.pop("PATH").startswith(str(tmp_path / "own"))
    assert json.loads(variables.pop("FLODL_TESTS_MACHINE")) == seen["machine"]
    variables.pop("RUSTUP_HOME", None)
    assert variables == {
        **kept,
        **({"OF_TEST": "1"} if again else {}),
        "LANG": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1",
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "FDL_SCHEMA_SECONDS": "60",
    }  # fmt: skip
    assert seen["umask"] == 0o022
    assert seen["found"] == ["mine"]
    assert seen["git"] == "safe.directory=*\n"
    for name in ("HOME", "PATH", "PIP_NO_INDEX", "http_proxy", "CUDA_VISIBLE_DEVICES"):
        assert seen["machine"][name] == hostile[name]


SAMPLE = (
    "tests/fdl/complete", "tests/fdl/diagnose", "tests/fdl/inspect", "tests/fdl/manifest",
    "tests/fdl/test_environments.py", "tests/fdl/test_help.py", "tests/fdl/test_run.py",
    "tests/fdl/test_screens.py", "tests/fdl/test_update.py", "tests/fdl/batch/test_slurm.py",
    "tests/fdl/scaffold", "tests/fdl/run_directory/test_diff.py", "tests/flodl/test_log.py",
    "tests/flodl/monitor/media", "tests/flodl/distributed/test_environments.py",
    "tests/flodl/train/test_engines.py", "tests/test_first_walk.py",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(590)
def test_a_sample_of_the_tests_passes_there(hostile, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ROOT]
    paths = [ROOT / path for path in SAMPLE]
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" <&-', "bash", *words, "-c", ROOT / "pyproject.toml", *paths],
        cwd=tmp_path / "elsewhere",
        env={**hostile, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        umask=0o077,
    )
    assert done.returncode == 0, done.stdout[-20000:]
