"""A real browser for tests: Chromium without a window, driven over two pipes."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from tests import typed

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """Return the path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser; whatever it says on its console is kept."""

    def __init__(self, binary: str, profile: Path) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self._profile = profile
        self._ids = itertools.count(1)
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        # The protocol wants descriptors 3 and 4; ours start high so that the moves cannot collide.
        ours_out, theirs_in = _pipe()
        theirs_out, ours_in = _pipe()
        argv = [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = os.open(os.devnull, os.O_RDWR)
        moves = [(quiet, 0), (quiet, 1), (quiet, 2), (theirs_out, 3), (theirs_in, 4)]
        self._pid = os.posix_spawn(
            binary,
            argv,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, old, new) for old, new in moves],
            setsid=True,
        )
        for descriptor in (theirs_in, theirs_out, quiet):
            os.close(descriptor)
        self._in, self._out = ours_in, ours_out
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def close(self) -> None:
        """End the browser with all its processes."""
        os.close(self._in)
        os.close(self._out)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == number:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return dict(reply["result"])

    def open(
        self, page: Path | str, *, width: int = 1400, height: int = 900, dark: bool = False
    ) -> None:
        """Show a file or an address, and return once its scripts have run."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        url = page if isinstance(page, str) else page.as_uri()
        # The page before may just be loaded, too.
        loader = self.call("Page.navigate", url=url)["loaderId"]
        loaded = {"loaderId": loader, "name": "load"}
        while not any(loaded.items() <= event["params"].items() for event in self._events):
            self._receive()
        self.settle()
        typed.opened(self._seen)

    def _seen(self) -> str:
        """The page as a person sees it, for a test that failed: its text, and a picture."""
        picture = self._profile.with_name(f"page-{next(self._ids)}.png")
        try:
            where, text = self.evaluate("[location.href, document.body.innerText]")
            self.screenshot(picture)
        except (AssertionError, OSError) as problem:
            return f"nothing: {problem}"
        return "\n".join([where, f"picture: {picture}", text, *self.console])

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window's inside in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def settle(self) -> None:
        """Wait until the page has drawn two more frames."""
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def evaluate(self, expression: str) -> Any:
        """Return the JSON value of an expression in the page."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Press the left button at one place and release it at another."""
        held = {"button": "left", "buttons": 1}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, clickCount=1, **held)
        for part in (0.5, 1.0):
            at = {"x": x + part * (to_x - x), "y": y + part * (to_y - y)}
            self.call("Input.dispatchMouseEvent", type="mouseMoved", **at, **held)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=to_x, y=to_y, button="left")
        self.settle()

    def double_click(self, x: float, y: float) -> None:
        """Click twice with the left button."""
        for clicks in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                press = {"button": "left", "clickCount": clicks}
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **press)
        self.settle()

    def press(self, key: str, *, shift: bool = False) -> None:
        """Type one key."""
        held: dict[str, Any] = {"modifiers": 8 if shift else 0}
        if key == "Enter":
            held |= {"windowsVirtualKeyCode": 13, "text": "\r"}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **held)
        self.settle()

    def wait_for(self, expression: str, timeout: float = 60) -> None:
        """Wait until an expression in the page is true."""
        deadline = time.monotonic() + timeout
        while not self._holds(expression):
            assert time.monotonic() < deadline, f"never true: {expression}; {self.console}"
            time.sleep(0.02)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({expression})"))
        except AssertionError:
            return False  # the page is being loaded anew, and what is asked for is not there yet

    def screenshot(self, file: Path) -> None:
        """Write what the window shows as PNG."""
        shot = self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self, timeout: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._out], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            read = os.read(self._out, 1 << 16)
            assert read, "the browser has ended"
            self._buffer += read
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method is None:
            return
        self._events.append(message)
        if method == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(one.get("value")) for one in params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


def _pipe() -> tuple[int, int]:
    ends = []
    for low in os.pipe():
        ends.append(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(low)
    return ends[0], ends[1]
