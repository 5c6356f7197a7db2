"""The browser of the tests itself."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .chromium import Browser

CONTENT = {
    "/first": b"<img src=/late.png>",
    "/second": b"<p>text</p><script src=/late.js></script>",
    "/late.js": b"window.isReady = true",
}


def test_a_page_is_open_when_it_is_loaded_and_not_when_the_one_before_is(browser: Browser) -> None:
    leaves = threading.Event()

    class Late(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # The first page is loaded while the second one is asked for.
            if self.path == "/late.png":
                leaves.wait(60)
            if self.path == "/second":
                leaves.set()
            if self.path in ("/second", "/late.js"):
                time.sleep(0.5)
            self.send_response(200)
            self.send_header(
                "Content-Type", "text/javascript" if "js" in self.path else "text/html"
            )
            self.end_headers()
            self.wfile.write(CONTENT.get(self.path, b""))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Late) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        own = f"http://127.0.0.1:{server.server_port}"
        browser.call("Page.navigate", url=f"{own}/first")
        browser.open(f"{own}/second")
        assert browser.evaluate("isReady") is True
        browser.open("about:blank")
        server.shutdown()
