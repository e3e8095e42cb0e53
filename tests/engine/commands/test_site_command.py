"""`gpugate site`: the files of a folder, their size, and every value of the nights in them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import main
from gpugate.commands.history.trends import MachineHistory, build_histories
from gpugate.commands.site import DATA, FINE_PARTS, INDEX, LIBRARIES, PARTS, document, site_page, write_site
from gpugate.results.night import Metric, Night
from tests.support.made_up_nights import nights, speedups
from tests.support.read_pages import Page, squeeze
from tests.support.simulated_years import LEVELS, simulated_nights

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
            cases={ids[name]: replace(case, case_id=ids[name]) for name, case in night.cases.items() if name in ids},
        )
        for night in found
    ]


def read_data(folder: Path) -> dict[str, Any]:
    text = (folder / DATA).read_text(encoding="ascii")
    found: dict[str, Any] = json.loads(text.removeprefix("window.gpugateTrends = ").removesuffix(";\n"))
    return found


def test_a_folder_of_nights_becomes_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights(tmp_path / "nights", {"fused": speedups(5)})
    assert main(["site", str(tmp_path / "site"), str(tmp_path / "nights")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'site' / INDEX}: open it in a browser\n"
    assert "Trends of 1 case" in Page((tmp_path / "site" / INDEX).read_bytes()).text
    (machine,) = read_data(tmp_path / "site")["machines"]
    assert len(machine["nights"]) == 5
    middle, distances, *_ = machine["cases"]["tiny/fused/cuda"]["speedup"]
    assert [middle * (1 + one / FINE_PARTS) for one in distances] == pytest.approx(speedups(5), rel=1e-4)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights(tmp_path / "nights", {"fused": speedups(2)})
    (tmp_path / "site").touch()
    assert main(["site", str(tmp_path / "site"), str(tmp_path / "nights")]) == 2
    assert "cannot be written (Not a directory): give a folder that can be" in capsys.readouterr().err


def test_every_value_is_in_the_data_to_a_hundredth_of_a_percent() -> None:
    found = simulated_nights(FEW)
    (machine,) = document(histories(found))["machines"]
    for case_id, series in machine["cases"].items():
        for name in ("speedup", "ms"):
            middle, *lists = series[name]
            for night, distance, low, high in zip(found, *lists, strict=True):
                median = middle * (1 + distance / FINE_PARTS)
                wanted = night.cases[case_id].estimate({"ms": "optimized_ms"}.get(name, name))
                assert median == pytest.approx(wanted.median, rel=1e-5)
                assert median * (1 - low / PARTS) == pytest.approx(wanted.low, rel=1e-4)
                assert median * (1 + high / PARTS) == pytest.approx(wanted.high, rel=1e-4)


def test_a_night_without_an_item_of_the_bill_has_no_value_of_its_series() -> None:
    found = simulated_nights(FEW)
    name, case = next(iter(found[0].cases.items()))
    billed = replace(case, metrics={**case.metrics, "kernel_ms": Metric(8.0)})
    found[0] = replace(found[0], cases={**found[0].cases, name: billed})
    (machine,) = document(histories(found))["machines"]
    nothing = [None] * (FEW - 1)
    assert machine["cases"][name]["kernel_ms"] == [8.0, [0, *nothing], [0, *nothing], [0, *nothing]]
    assert "cpu_ms" not in machine["cases"][name]
    assert '<option value="cpu_ms">CPU time</option>' in site_page(histories(found)).decode()


def test_a_case_that_some_nights_lack_names_its_nights() -> None:
    found = simulated_nights(FEW)
    name = next(iter(found[0].cases))
    found[3] = replace(found[3], cases={key: case for key, case in found[3].cases.items() if key != name})
    (machine,) = document(histories(found))["machines"]
    assert machine["cases"][name]["at"] == [number for number in range(FEW) if number != 3]
    assert all("at" not in series for key, series in machine["cases"].items() if key != name)


def test_software_commits_and_anchors_have_their_nights() -> None:
    found = simulated_nights(FEW)
    found[6:] = [replace(night, environment=replace(night.environment, driver="590.10")) for night in found[6:]]
    name, anchor = next((key, case.anchor_speedup) for key, case in found[0].cases.items())
    assert anchor is not None
    newest = found[-1].cases[name]
    higher = replace(newest, metrics={**newest.metrics, "anchor_speedup": Metric(2 * anchor)})
    found[-1] = replace(found[-1], cases={**found[-1].cases, name: higher})
    (machine,) = document(histories(found))["machines"]
    changed = [number for number, night in enumerate(machine["nights"]) if len(night) > 2]
    assert changed == [6]
    assert machine["nights"][6][2].endswith("-> 590.10")
    assert [night[1] for night in machine["nights"][:4]] == [found[number].version for number in range(4)]
    assert [number for number, _ in machine["cases"][name]["anchor"]] == [0, FEW - 1]


def test_level_changes_stand_in_the_page_and_in_the_data() -> None:
    found = histories(simulated_nights(260))
    (case_id,) = [name for name, (night, _) in LEVELS.items() if night < 250]
    page = Page(site_page(found))
    assert f"{case_id} on {found[0].machine}: level changed: speedup 1.08x ->" in page.text
    ((number, words),) = document(found)["machines"][0]["cases"][case_id]["marks"]
    assert abs(number - LEVELS[case_id][0]) < 5
    assert words.startswith("level changed")


def test_hostile_names_are_text_in_the_page_and_in_the_data(tmp_path: Path) -> None:
    write_site(tmp_path, histories(renamed(simulated_nights(FEW))))
    page = Page((tmp_path / INDEX).read_bytes())
    ours = re.compile(r"script( src=(vega/[\w-]+\.min|data|trends)\.js)?|form")
    assert [one for one in page.unsafe if not ours.fullmatch(one)] == []
    assert page.unsafe.count("script") == 5
    assert all(squeeze(name) in page.text for name in HOSTILE)
    assert "<b>machine</b>" in page.text
    assert list(read_data(tmp_path)["machines"][0]["cases"]) == list(HOSTILE)


def test_a_year_of_96_cases_has_at_most_two_megabytes(tmp_path: Path) -> None:
    found = simulated_nights(365)
    assert len(found[0].cases) == 96
    write_site(tmp_path, histories(found))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 2_000_000


def test_each_library_has_its_licence_beside_it(tmp_path: Path) -> None:
    write_site(tmp_path, histories(simulated_nights(2)))
    names = sorted(path.name for path in (tmp_path / LIBRARIES).iterdir())
    libraries = ("vega", "vega-embed", "vega-lite")
    assert names == sorted([*(f"{name}.LICENSE" for name in libraries), *(f"{name}.min.js" for name in libraries)])
    assert all("Copyright" in (tmp_path / LIBRARIES / f"{name}.LICENSE").read_text() for name in libraries)
