"""A headless Chromium for the tests of pages: its size, its colour scheme, its requests, and its screenshots."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.needed_programs import require
from tests.support.patience import HANGS_S

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
AXE = Path(__file__).parents[1] / "data/axe/axe.min.js"
SERIOUS = ("serious", "critical")


def name_missing() -> str | None:
    """One sentence about what a test with Chromium lacks on this machine; None where it has all."""
    if not any(map(shutil.which, CHROMIUM)) or shutil.which(DRIVER) is None:
        return "Chromium or its driver is missing: apt-get install chromium chromium-driver"
    if importlib.util.find_spec("selenium") is None:
        return "the package selenium is missing: pip install -c constraints.txt selenium"
    return None


def require_chromium() -> None:
    """Skips the test with the reason, or fails it in CI, where the machine lacks what it needs."""
    require(name_missing())


class Browser:
    """One window. `errors` and `requests` are of the pages since the last call."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def show(self, url: str, width: int, dark: bool = False, height: int = 900) -> None:
        """Opens a page in a window of this width, in CSS pixels, and waits until its scripts have run.

        On a busy machine the driver returns at times before that.
        """
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setDeviceMetricsOverride", size)
        self.command("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")
        self.requests()
        self.driver.get(url)
        self.wait_until("return location.href !== 'about:blank' && document.readyState === 'complete'")

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments or {})

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait_until(self, script: str) -> None:
        """Waits until the script returns a true value. Raises TimeoutException after HANGS_S."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, HANGS_S, poll_frequency=0.05).until(lambda _: self.run(script))

    def requests(self) -> list[str]:
        """The addresses that were requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def violations(self) -> list[str]:
        """The rules of axe-core that the page breaks seriously or worse, each with its first element."""
        self.run(AXE.read_text(encoding="utf-8"))
        ask = "const done = arguments[0]; axe.run({resultTypes: ['violations']}).then(found => done(found.violations))"
        found: Sequence[dict[str, Any]] = self.driver.execute_async_script(ask)
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found if one["impact"] in SERIOUS]

    def overflow(self) -> int:
        """CSS pixels by which the page is wider than its window."""
        return int(self.run("const page = document.documentElement; return page.scrollWidth - page.clientWidth"))

    def picture(self, height: int | None = None) -> bytes:
        """A PNG of the top of the page, by default of the whole page."""
        width, whole = self.run("const page = document.documentElement; return [page.clientWidth, page.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height or whole, "scale": 1}
        found = self.command("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        return base64.b64decode(found["data"])


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile in `folder`. Selenium's own downloader stays off: it is given both programs."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(next(filter(None, map(shutil.which, CHROMIUM))))
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    for word in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"):
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={folder / 'profile'}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which root's processes cannot have
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which(DRIVER))))
    driver.set_script_timeout(120)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
