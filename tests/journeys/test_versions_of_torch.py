"""The optimizers of every version of torch that pyproject.toml allows do without its compiler.

The Python files of another version's optimizers take the place of the installed ones. They come
from the smallest wheel of that version.
"""

from __future__ import annotations

import sys
import zipfile

import pytest

from tests.flodl.nn.test_without_compiler import PROGRAM, check
from tests.journeys.person import clean, finished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VERSIONS = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.14.1")
PLATFORMS = ("macosx_11_0_arm64", "macosx_14_0_arm64")

OTHER_VERSION = """
import importlib.util, sys
import torch
folder = FOLDER

def load(name, file):
    path = f"{folder}/{file}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

for name in [name for name in sys.modules if f"{name}.".startswith("torch.optim.")]:
    del sys.modules[name]
torch._compile = load("torch._compile", "torch/_compile.py")
torch._disable_dynamo = torch._compile._disable_dynamo
torch.optim = load("torch.optim", "torch/optim/__init__.py")
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_seven_optimizers_do_the_same_without_loading_the_compiler(version, tmp_path):
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    words += [word for one in PLATFORMS for word in ("--platform", one)]
    words += ["--python-version", "3.11", "--only-binary", ":all:", "--dest", str(tmp_path)]
    finished([*words, f"torch=={version}"], env=clean(tmp_path), limit=500)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        wanted = [one for one in file.namelist() if one.startswith(("torch/optim/", "torch/_comp"))]
        file.extractall(tmp_path, wanted)
    wheel.unlink()
    check(OTHER_VERSION.replace("FOLDER", repr(str(tmp_path))) + PROGRAM)
