"""The pages in a real Chromium: no request leaves them, axe-core finds nothing serious, and they fit their window.

`GPUGATE_SCREENSHOTS=docs/images` also writes the pictures of the README, from the recorded processes of an H200.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugate.commands.compare.page import compare_page
from gpugate.report.last_night import LastNight, find_changes
from gpugate.report.pages.night import night_page
from gpugate.results.run import RunResult
from tests.engine.commands.test_compare_page import HOSTILE, compared
from tests.support.browser import Browser, open_browser, require_chromium
from tests.support.recorded_nights import Faults, recorded_night
from tests.support.stored_runs import MACHINE, STARTED, case

WIDTHS = (390, 1280)
SCREENSHOTS = "GPUGATE_SCREENSHOTS"
MOST_BYTES = 200_000  # of a picture
FAULTS = Faults(
    slower={"two-layer-net/all/cuda": 1.2, "video/segment/cuda-graph/cuda": 0.2},
    skipped={"video/decode-hevc/nvdec/cuda": "needs the package PyNvVideoCodec: pip install PyNvVideoCodec"},
    failed={"video/encode/nvjpeg/cuda": "nvjpeg failed while being built: RuntimeError: CUDA out of memory"},
    packages={"torch": "2.12.0"},
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    require_chromium()
    with open_browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file for each page, by name."""
    last, run = recorded_night(2), recorded_night(3, FAULTS, commit="0c3ffab91234")
    hostile = {name: case(f"{number}", 2.8) for number, name in enumerate(HOSTILE)}
    for name, made in hostile.items():
        made.case_id = made.workload = name
    contents = {
        "night": night_page(run, find_changes(LastNight("2026-11-24", last), run)),
        "hostile": night_page(RunResult(MACHINE, STARTED, 1, cases=hostile), None, "no earlier night"),
        "compare": compare_page(compared()),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, content in contents.items():
        (folder / f"{name}.html").write_bytes(content)
    return {name: folder / f"{name}.html" for name in contents}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["night", "hostile", "compare"])
def test_a_page_fits_its_window_is_accessible_and_requests_nothing(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.show(pages[name].as_uri(), width, dark)
    assert browser.overflow() == 0
    assert {url for url in browser.requests() if url != "data:,"} == {pages[name].as_uri()}
    assert browser.errors() == []
    assert browser.violations() == []


def test_hostile_names_are_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["hostile"].as_uri(), 1280)
    text = browser.run("return document.body.innerText")
    assert all(name in text for name in HOSTILE)
    assert browser.run("return document.scripts.length + document.images.length") == 0


def test_a_page_prints(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["night"].as_uri(), 1280)
    assert len(browser.command("Page.printToPDF")["data"]) > 10_000


def test_colours_follow_the_scheme_and_print_is_black_on_white(browser: Browser, pages: dict[str, Path]) -> None:
    read = "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
    seen = []
    for dark in (False, True):
        browser.show(pages["night"].as_uri(), 1280, dark)
        seen.append(tuple(browser.run(read)))
    browser.command("Emulation.setEmulatedMedia", {"media": "print"})
    printed = browser.run(read)
    browser.command("Emulation.setEmulatedMedia", {"media": ""})
    assert len(set(seen)) == 2
    assert printed == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]


def test_the_picture_of_the_readme_is_of_the_top_of_the_night_page(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["night"].as_uri(), 1280)
    keep_picture("night", browser.picture(1340))


def keep_picture(name: str, png: bytes) -> None:
    """Checks that a picture shows something, and writes it where SCREENSHOTS names a folder, in 64 colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    assert len(image.getcolors(1 << 24)) > 20
    small = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    assert len(small.getvalue()) < MOST_BYTES
    if os.environ.get(SCREENSHOTS):
        Path(os.environ[SCREENSHOTS], f"{name}.png").write_bytes(small.getvalue())
