"""A page in headless Chromium, driven over its DevTools protocol."""

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import aiohttp
from support.wait import patient

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab. Use it as an async context manager."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self.size = (width, height)
        self.errors: list[str] = []
        self.logged: list[str] = []
        self.requests: list[str] = []
        self._calls = 0

    async def __aenter__(self) -> Self:
        assert PROGRAM
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        flags += ["--remote-debugging-port=0", f"--user-data-dir={self._profile.name}", "--hide-scrollbars"]
        self._process = subprocess.Popen(  # noqa: ASYNC220  # starting one is quick
            [PROGRAM, *flags, f"--window-size={self.size[0]},{self.size[1]}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._session = aiohttp.ClientSession()
        port = await self._port(Path(self._profile.name) / "DevToolsActivePort")
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            tabs = await answer.json()
        target = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        self._socket = await self._session.ws_connect(target, max_msg_size=0)
        for domain in ("Page", "Runtime"):
            await self.call(f"{domain}.enable")
        width, height = self.size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._socket.close()
        await self._session.close()
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    async def _port(self, path: Path) -> int:
        async with asyncio.timeout(patient(60)):
            while True:
                lines = path.read_text().splitlines() if path.exists() else []  # noqa: ASYNC240  # a tiny file
                if lines:
                    return int(lines[0])
                assert self._process.poll() is None, "chromium ended"
                await asyncio.sleep(0.05)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One DevTools command; exceptions on the page are gathered in `errors` on the way."""
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": params})
        async for message in self._socket:
            data = json.loads(message.data)
            if data.get("method") == "Runtime.exceptionThrown":
                self.errors.append(data["params"]["exceptionDetails"]["text"])
            if data.get("method") == "Log.entryAdded":
                self.logged.append(data["params"]["entry"]["text"])
            if data.get("method") == "Network.requestWillBeSent":
                self.requests.append(data["params"]["request"]["url"])
            if data.get("id") == self._calls:
                assert "error" not in data, data
                return data["result"]
        raise AssertionError("chromium closed the connection")

    async def watch(self) -> None:
        """From now on gather what the console is told in `logged` and what is asked of the network."""
        for domain in ("Log", "Network"):
            await self.call(f"{domain}.enable")

    async def goto(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until(
            "document.readyState === 'complete' && location.href !== 'about:blank'", f"load {url}"
        )

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str, what: str, seconds: float = 30) -> Any:
        """Wait for an expression to be true; `what` names it when it never is."""
        allowed = patient(seconds)
        try:
            async with asyncio.timeout(allowed):
                while not (value := await self.run(script)):  # noqa: ASYNC110  # the page sets no event here
                    await asyncio.sleep(0.05)
                return value
        except TimeoutError:
            raise AssertionError(f"not within {allowed:g} s: {what}") from None

    async def screenshot(self, path: Path) -> bytes:
        data = base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(path.write_bytes, data)
        return data
