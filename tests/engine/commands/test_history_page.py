"""`gpugate history --html`: the files of a folder, their size, and every value of the nights in them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import main
from gpugate.commands.trend_report import DATA, INDEX, LIBRARIES, site_page, write_document, write_site
from gpugate.commands.trends import MachineHistory, build_histories
from gpugate.results.run import Night
from tests.support.read_pages import Page, squeeze
from tests.support.recorded_nights import simulated_nights
from tests.support.stored_runs import nights, speedups

FEW = 12
HOSTILE = ("<script>alert(1)</script>", "x" * 300, "a 🚀 b", "</script>", '"><img src=x>', "\u2028")


def histories(found: list[Night]) -> list[MachineHistory]:
    return build_histories(found, len(found))


def renamed(found: list[Night]) -> list[Night]:
    """The nights with hostile names of the first cases and of the machine."""
    ids = dict(zip(found[0].cases, HOSTILE, strict=False))
    return [
        replace(
            night,
            machine="<b>machine</b>",
            cases={ids[name]: case for name, case in night.cases.items() if name in ids},
        )
        for night in found
    ]


def read_data(folder: Path) -> dict[str, Any]:
    text = (folder / DATA).read_text(encoding="ascii")
    found: dict[str, Any] = json.loads(text.removeprefix("window.gpugateTrends = ").removesuffix(";\n"))
    return found


def test_a_folder_of_nights_becomes_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    series = [*speedups(14), *speedups(8, 2.85, seed=2)]
    nights(tmp_path / "nights", {"fused": series})
    assert main(["history", str(tmp_path / "nights"), "--html", str(tmp_path / "site")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'site' / INDEX}: open it in a browser\n"
    text = Page((tmp_path / "site" / INDEX).read_bytes()).text
    assert "Trends of 1 case" in text
    assert "tiny/fused/cuda on nvidia-h200: level changed: speedup 3.00x -> 2.85x" in text
    (machine,) = read_data(tmp_path / "site")["machines"]
    assert len(machine["nights"]) == len(series)
    found = [median for median, _, _ in machine["cases"]["tiny/fused/cuda"]["speedup"]]
    assert found == pytest.approx(series, rel=1e-4)
    (tmp_path / "file").touch()
    assert main(["history", str(tmp_path / "nights"), "--html", str(tmp_path / "file")]) == 2
    assert "cannot be written (Not a directory): give a folder that can be" in capsys.readouterr().err


def test_the_document_has_every_value_and_the_nights_of_software_commits_and_records() -> None:
    found = simulated_nights(FEW)
    found[6:] = [replace(night, environment=replace(night.environment, driver="590.10")) for night in found[6:]]
    first, second = list(found[0].cases)[:2]
    recorded = found[0].cases[first].value("recorded_speedup")
    assert recorded is not None
    newest = {"recorded_speedup": (2 * recorded,), "kernel_ms": (8.0,)}
    last = found[-1].cases[first]
    last = last._replace(metrics={**last.metrics, **newest})
    found[-1] = replace(found[-1], cases={**found[-1].cases, first: last})
    found[3] = replace(found[3], cases={key: case for key, case in found[3].cases.items() if key != second})
    (machine,) = json.loads(write_document(histories(found)))["machines"]
    for case_id, series in machine["cases"].items():
        assert series["nights"] == [number for number in range(FEW) if case_id in found[number].cases]
        for number, values in zip(series["nights"], series["optimized_ms"], strict=True):
            assert values == list(found[number].cases[case_id].metrics["optimized_ms"])
    assert [number for number, night in enumerate(machine["nights"]) if night["changed"]] == [6]
    assert [night["version"] for night in machine["nights"]] == [night.version for night in found]
    assert machine["cases"][first]["recorded_speedup"] == [*[[recorded]] * (FEW - 1), [2 * recorded]]
    assert machine["cases"][first]["kernel_ms"] == [*[None] * (FEW - 1), [8.0]]
    assert "cpu_ms" not in machine["cases"][first]


def test_hostile_names_are_text_in_the_page_and_in_the_data(tmp_path: Path) -> None:
    write_site(tmp_path, histories(renamed(simulated_nights(FEW))))
    page = Page((tmp_path / INDEX).read_bytes())
    ours = re.compile(r"script( src=(vega/[\w-]+\.min|data|trends)\.js)?|form")
    assert [one for one in page.unsafe if not ours.fullmatch(one)] == []
    assert page.unsafe.count("script") == 5
    assert all(squeeze(name) in page.text for name in HOSTILE)
    assert "<b>machine</b>" in page.text
    assert list(read_data(tmp_path)["machines"][0]["cases"]) == list(HOSTILE)


def test_a_year_of_96_cases_has_at_most_3_4_megabytes(tmp_path: Path) -> None:
    """By a fifth of a year, and as a share of the recorded cases. The libraries have their licences beside them."""
    found = simulated_nights(73)
    share = 96 / len(found[0].cases)
    assert share <= 1
    write_site(tmp_path, histories(found))
    sizes = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    of_cases, of_nights = sizes.pop(tmp_path / "index.html"), sizes.pop(tmp_path / DATA)
    assert sum(sizes.values()) + share * (of_cases + 5 * of_nights) <= 3_400_000
    libraries = {path.name.partition(".")[0] for path in (tmp_path / LIBRARIES).iterdir()}
    assert all("Copyright" in (tmp_path / LIBRARIES / f"{name}.LICENSE").read_text() for name in libraries)


def test_a_page_of_few_nights_says_so_and_has_the_change_of_the_newest_one() -> None:
    before, now = simulated_nights(2)
    case_id, case = next(iter(now.cases.items()))
    slower = case._replace(metrics={**case.metrics, "speedup": (0.8 * before.cases[case_id].speedup.median,)})
    page = Page(site_page(histories([before, replace(now, cases={**now.cases, case_id: slower})])))
    assert "The nights are too few for level changes to be detected." in page.text
    assert "No level of any case changed." not in page.text
    assert "-20.0 %" in page.text
