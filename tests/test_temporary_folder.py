"""A run of tests leaves no temporary files, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.rows import each_row
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[1]

RUN = """
import os, sys, tempfile
from pathlib import Path
import tests.conftest
Path(tempfile.mkdtemp(), "file").touch()
os.posix_spawn("/bin/sh", ["sh", "-c", 'touch "$TMPDIR/of-a-program"'], os.environ)
os.wait()
print(*sorted(os.listdir(tempfile.gettempdir())), flush=True)
sys.stdin.read()
"""


@each_row("number", [0, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_a_run(tmp_path: Path, number: int) -> None:
    env = {name: text for name, text in os.environ.items() if not name.startswith("FLODL_")}
    with subprocess.Popen(
        [sys.executable, "-c", RUN],
        cwd=ROOT,
        env={**env, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdout
        assert "of-a-program" in run.stdout.readline()
        run.send_signal(number)
        run.communicate()
    assert run.returncode == -number
    wait_for(lambda: not list(tmp_path.iterdir()))
