"""Two shells of one machine start the ranks of one training, at the same moment."""

import os
import subprocess
import sys

from tests.ports import kept_port


def test_the_launcher_that_is_later_joins_the_other(project, tmp_path):
    manifest = f"entry: {sys.executable} train.py\nddp: {{ranks: 1, nodes: 2}}\n"
    text = "import os\nprint(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": manifest, "train/train.py": text})
    with kept_port() as port:
        words = [sys.executable, "-m", "fdl", "train", "--rdzv", f"127.0.0.1:{port}"]
        shells = [
            subprocess.Popen(
                words, cwd=tmp_path, text=True, env={**os.environ, "CI": "1"},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for _ in range(2)
        ]  # fmt: skip
        said = [shell.communicate(timeout=120) for shell in shells]
    assert [shell.returncode for shell in shells] == [0, 0], said
    assert sorted(out for out, _ in said) == ["0 of 2\n", "1 of 2\n"]
