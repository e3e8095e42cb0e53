"""The pages in a real Chromium: no request leaves them, axe-core finds nothing serious, and they fit their window.

`GPUGATE_SCREENSHOTS=docs/images` writes the pictures of the README there, from the recorded processes of an H200.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.trend_report import write_site
from gpugate.commands.trends import build_histories
from gpugate.report.pages.night import night_page
from gpugate.report.view import RunView
from gpugate.results.run import RunResult
from tests.engine.commands.test_history_page import HOSTILE, renamed
from tests.support.needed_programs import require
from tests.support.patience import HANGS_S
from tests.support.recorded_nights import Faults, recorded_night, simulated_nights
from tests.support.stored_runs import MACHINE, STARTED, case

# Each width once and each colour scheme once: a page fits by its width, and is accessible by its colours.
WINDOWS = pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)], ids=["390-light", "1280-dark"])
A4_WIDTH = 688  # CSS pixels between the margins
CASE = 'section[data-case="two-layer-net/all/cuda"]'
SCREENSHOTS = "GPUGATE_SCREENSHOTS"
PICTURE_HEIGHT = 1300
MOST_BYTES = 200_000  # of a picture
FAULTS = Faults(
    slower={"two-layer-net/all/cuda": 1.2, "video/segment/cuda-graph/cuda": 0.2},
    skipped={"video/decode-hevc/nvdec/cuda": "needs the package PyNvVideoCodec: pip install PyNvVideoCodec"},
    failed={"video/encode/nvjpeg/cuda": "nvjpeg failed while being built: RuntimeError: CUDA out of memory"},
    packages={"torch": "2.12.0"},
)


CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
AXE = Path(__file__).parents[3] / "data/axe/axe.min.js"
SERIOUS = ("serious", "critical")


def name_missing() -> str | None:
    """One sentence about what a test with Chromium lacks on this machine; None where it has all."""
    if not any(map(shutil.which, CHROMIUM)) or shutil.which(DRIVER) is None:
        return "Chromium or its driver is missing: apt-get install chromium chromium-driver"
    if importlib.util.find_spec("selenium") is None:
        return "the package selenium is missing: pip install -c constraints.txt selenium"
    return None


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

    def picture(self) -> bytes:
        """A PNG of the page as the window shows it."""
        return base64.b64decode(self.command("Page.captureScreenshot")["data"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with a profile of its own. Selenium's own downloader stays off: it is given both programs."""
    require(name_missing())
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(next(filter(None, map(shutil.which, CHROMIUM))))
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    for word in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"):
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which root's processes cannot have
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which(DRIVER))))
    driver.set_script_timeout(120)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file for each page, by name."""
    folder = tmp_path_factory.mktemp("pages")
    last, run = recorded_night(2), recorded_night(3, FAULTS, commit="0c3ffab91234")
    hostile = {name: case(f"{number}", 2.8) for number, name in enumerate(HOSTILE)}
    for name, made in hostile.items():
        made.case_id = made.workload = name
    contents = {
        "night": night_page(RunView(run), ("2026-11-24", last)),
        "hostile": night_page(RunView(RunResult(MACHINE, STARTED, 1, cases=hostile)), "no earlier night"),
    }
    for name, content in contents.items():
        (folder / f"{name}.html").write_bytes(content)
    return {name: folder / f"{name}.html" for name in contents}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of 60 nights of 96 cases on two machines."""
    nights = simulated_nights(60, second_machine=True)
    return write_site(tmp_path_factory.mktemp("site"), build_histories(nights, len(nights)))


@WINDOWS
@pytest.mark.parametrize("name", ["night", "hostile"])
def test_a_page_fits_its_window_is_accessible_and_requests_nothing(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.show(pages[name].as_uri(), width, dark)
    assert browser.overflow() == 0
    assert {url for url in browser.requests() if url != "data:,"} == {pages[name].as_uri()}
    assert browser.errors() == []
    assert browser.violations() == []


def test_a_page_prints_on_a4(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["night"].as_uri(), A4_WIDTH)
    browser.command("Emulation.setEmulatedMedia", {"media": "print"})
    too_wide = browser.overflow()
    browser.command("Emulation.setEmulatedMedia", {"media": ""})
    assert too_wide == 0
    assert len(browser.command("Page.printToPDF")["data"]) > 10_000


def test_the_site_draws_fits_is_accessible_and_requests_its_own_files_alone(browser: Browser, site: Path) -> None:
    browser.show(site.as_uri(), 390, dark=True)
    browser.run(f"document.querySelector('{CASE}').scrollIntoView()")
    browser.wait_until(f"return document.querySelector('{CASE} .chart svg') !== null")
    requested = {url for url in browser.requests() if url != "data:,"}
    scripts = ("vega/vega.min.js", "vega/vega-lite.min.js", "vega/vega-embed.min.js", "data.js", "trends.js")
    assert requested == {site.as_uri(), *((site.parent / name).as_uri() for name in scripts)}
    assert browser.overflow() == 0
    assert browser.errors() == []
    assert browser.violations() == []


def test_the_filter_stands_in_the_address(browser: Browser, site: Path) -> None:
    browser.show(f"{site.as_uri()}#case=two-layer-net&machine=nvidia-h200-140-gib-500-w&show=ms", 1280)
    shown = (
        "return [...document.querySelectorAll('section.case')].filter(one => !one.hidden).map(one => one.dataset.case)"
    )
    assert browser.run(shown) == [
        f"two-layer-net/{name}/cuda" for name in ("all", "cuda-graph", "no-sync", "pinned-async")
    ]
    cases = browser.run("return document.querySelectorAll('section.case').length")
    assert browser.run("return document.getElementById('count').textContent") == f"4 of {cases} cases"
    machines = "return [...document.querySelectorAll('tr[data-machine]')].filter(one => !one.hidden).length"
    assert browser.run(machines) == cases
    browser.run(
        "const field = document.getElementById('case');field.value = 'No-Sync'; field.dispatchEvent(new Event('input'))"
    )
    assert browser.run(shown) == ["two-layer-net/no-sync/cuda"]
    assert browser.run("return location.hash") == "#case=No-Sync&machine=nvidia-h200-140-gib-500-w&show=ms"
    browser.run("location.hash = ''")
    browser.wait_until(f"return document.getElementById('count').textContent === '{cases} of {cases} cases'")


def test_the_table_beside_a_chart_has_the_same_values(browser: Browser, site: Path) -> None:
    browser.show(f"{site.as_uri()}#case=two-layer-net/all/", 1280)
    browser.wait_until(f"return document.querySelector('{CASE} .chart svg') !== null")
    browser.run(f"document.querySelector('{CASE} details').open = true")
    browser.wait_until(f"return document.querySelector('{CASE} details tbody') !== null")
    rows = browser.run(
        f"const rows = [...document.querySelectorAll('{CASE} details tbody tr')];"
        "return rows.map(one => [...one.cells].map(cell => cell.textContent))"
    )
    drawn = browser.run(f"return document.querySelector('{CASE}').view.view.data('source_0')")
    nights = simulated_nights(60, second_machine=True)
    assert len(rows) == len(drawn) == len(nights)
    wanted = {(f"{one.started:%Y-%m-%d %H:%M}", one.machine): one.cases["two-layer-net/all/cuda"] for one in nights}
    for when, machine, _, speedup, interval, recorded, ms, *_ in rows:
        case = wanted[when, machine]
        assert float(speedup) == pytest.approx(case.speedup.median, rel=2e-3)
        assert [float(end) for end in interval.split("..")] == pytest.approx(
            [case.speedup.low, case.speedup.high], rel=2e-3
        )
        assert float(recorded) == pytest.approx(case.value("recorded_speedup"), rel=2e-3)
        assert float(ms) == pytest.approx(case.per_step_ms.median, rel=2e-3)


def test_the_hours_below_a_chart_are_those_of_the_table(browser: Browser, tmp_path: Path) -> None:
    evening = datetime(2026, 11, 29, 21, tzinfo=timezone.utc)
    nights = [replace(run, started=evening + timedelta(hours=place)) for place, run in enumerate(simulated_nights(3))]
    browser.show(f"{write_site(tmp_path, build_histories(nights, 3)).as_uri()}#case=two-layer-net/all/", 1280)
    browser.wait_until(f"return document.querySelector('{CASE} .chart svg') !== null")
    labels = browser.run(f"return [...document.querySelectorAll('{CASE} .chart text')].map(one => one.textContent)")
    assert {"21:00", "22:00", "23:00"} <= set(labels)


def test_hostile_names_are_text_in_charts_too(browser: Browser, tmp_path: Path) -> None:
    page = write_site(tmp_path, build_histories(renamed(simulated_nights(12)), 12))
    browser.show(page.as_uri(), 1280)
    browser.wait_until("return document.querySelectorAll('.chart svg').length > 1")
    assert browser.errors() == []
    shown = browser.run("return [...document.querySelectorAll('section.case h3')].map(one => one.textContent)")
    assert sorted(shown) == sorted(HOSTILE)
    assert browser.run("return document.scripts.length") == 5


def test_without_scripts_the_newest_values_stand_in_the_site(browser: Browser, site: Path) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.show(site.as_uri(), 1280)
        text = browser.driver.find_element("tag name", "body").text
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "The charts and the filter need JavaScript." in text
    assert "two-layer-net/all/cuda" in text


def test_the_pictures_of_the_readme_show_their_pages(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    from PIL import Image

    nights = simulated_nights(260)
    trends = f"{write_site(tmp_path, build_histories(nights, len(nights))).as_uri()}#case=video/segment/cud"
    for name, url, charts in (("night", pages["night"].as_uri(), 0), ("trends", trends, 2)):
        browser.show(url, 1280, height=PICTURE_HEIGHT)
        browser.wait_until(f"return document.querySelectorAll('.chart svg').length === {charts}")
        image = Image.open(io.BytesIO(browser.picture())).convert("RGB")
        end = image.crop((0, PICTURE_HEIGHT * 9 // 10, 1280, PICTURE_HEIGHT))
        assert end.getcolors(1) is None, f"{name} is blank: the page was not drawn to the end of the picture"
        path = Path(os.environ.get(SCREENSHOTS, tmp_path), f"{name}.png")
        image.quantize(192, dither=Image.Dither.NONE).save(path, optimize=True)
        assert path.stat().st_size < MOST_BYTES
