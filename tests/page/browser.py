"""A page in a headless Chromium, driven by the DevTools protocol over a pipe: no library, no
port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
_READY = "new Promise(done => { const look = () => {0} ? done() : setTimeout(look, 10); look() })"


class Browser:
    """One tab. `events` are the protocol's events in their order."""

    def __init__(self, width: int = 1440, height: int = 900, *, dark: bool = False) -> None:
        self._folder = tempfile.mkdtemp(prefix="celedger-browser-")
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (their_in, their_out)]
        words = [
            PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-background-networking", "--remote-debugging-pipe",
            f"--user-data-dir={self._folder}", "about:blank",
        ]  # fmt: skip

        def arrange() -> None:  # Chromium reads descriptor 3 and writes 4
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            words, preexec_fn=arrange,  # noqa: PLW1509
            pass_fds=(3, 4), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (their_in, their_out, *ends):
            os.close(end)
        self._out, self._in = os.fdopen(our_out, "wb", 0), os.fdopen(our_in, "rb", 0)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def resize(self, width: int, height: int) -> None:
        phone = width < 700
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=phone,
        )  # fmt: skip
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def call(self, method: str, **params: object) -> Any:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = self._in.read(1 << 20)
            assert more, "the browser ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript, awaiting a promise, and return its value."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        self.run(_READY.replace("{0}", f"({condition})"))

    def open(self, address: str, *, until: str = "document.readyState === 'complete'") -> None:
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait(f"location.href.startsWith('file:') && ({until})")

    def outer_html(self, address: str) -> str:
        """Return what a page is with scripts switched off."""
        self.call("Emulation.setScriptExecutionDisabled", value=True)
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())
        root = self.call("DOM.getDocument", depth=-1)["root"]["nodeId"]
        text = self.call("DOM.getOuterHTML", nodeId=root)["outerHTML"]
        self.call("Emulation.setScriptExecutionDisabled", value=False)
        return str(text)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **text)

    def mouse(self, kind: str, x: float, y: float, *, button: str = "none") -> None:
        """`kind` is `mouseMoved`, `mousePressed` or `mouseReleased`."""
        pressed = int(button == "left" and kind != "mouseReleased")
        self.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=pressed,
            clickCount=int(kind != "mouseMoved"),
        )  # fmt: skip

    def drag(self, x: float, to: float, y: float) -> None:
        self.mouse("mousePressed", x, y, button="left")
        for at in (x + (to - x) / 2, to):
            self.mouse("mouseMoved", at, y, button="left")
        self.mouse("mouseReleased", to, y, button="left")

    def tap(self, x: float, y: float) -> None:
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def picture(self, path: Path) -> None:
        """Save all of the page as PNG."""
        height = self.run("document.documentElement.scrollHeight")
        width = self.run("innerWidth")
        self.resize(width, min(height, 12_000))
        shot = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))
        self.resize(width, 900)

    def problems(self) -> list[str]:
        """Return what the page complained of: exceptions, broken policies."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in kinds]

    def requests(self) -> list[str]:
        return [
            e["params"]["request"]["url"]
            for e in self.events
            if e.get("method") == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        with suppress(OSError):
            self._out.close()  # which ends it
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        self._in.close()
        shutil.rmtree(self._folder, ignore_errors=True)
