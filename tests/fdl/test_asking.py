"""A question on the terminal."""

from __future__ import annotations

from tests.fdl.terminal import Terminal

# The signal arrives in another thread, so the one that reads is not interrupted: what it meets when
# Ctrl-C is pressed in the instant before it reads.
_READ_IS_NOT_INTERRUPTED = """
import signal, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from fdl.base.terminal import ask
try:
    ask("Name? ")
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_before_the_read_ends_a_question(tmp_path):
    with Terminal(cwd=tmp_path, program=_READ_IS_NOT_INTERRUPTED) as terminal:
        terminal.read_until("Name? ")
        terminal.press("\x03")
        assert terminal.finish() == 130
