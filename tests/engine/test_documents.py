"""The documents lead somewhere: each link, path and `python -m` in them exists, and the README stays short."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.support.tiny_project import ROOT

DOCUMENTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("deploy/*.md"),
    *ROOT.glob("results/**/*.md"),
]


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_path_and_module_of_a_document_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!http)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    for path in re.findall(r"`((?:gpugate|workloads|tests|perf_tests|deploy|apps|tools)/[\w./-]*)`", text):
        assert (ROOT / path).exists() or document.is_relative_to(ROOT / "results"), path
    for module in re.findall(r"python -m ((?:gpugate|apps|tests|tools)[\w.]*)", text):
        assert importlib.util.find_spec(module), module


def test_the_readme_fits_on_two_screens() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 130
