"""The page compares what a profiler counted with what a token must move."""

import sys
from pathlib import Path

from tools import bytes_of_token

COUNTED = """==PROF== Connected to process 7
"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"
"","","byte","byte"
"0","graph","2,500,000,000","3000000"
"""


def fake_profiler(folder: Path, output: str) -> str:
    path = folder / "ncu"
    path.write_text(f"#!{sys.executable}\nprint({output!r}, end='')\n")
    path.chmod(0o755)
    return str(path)


def test_the_bytes_of_a_launch_are_read_from_the_table_of_the_profiler(tmp_path: Path) -> None:
    assert bytes_of_token.count(fake_profiler(tmp_path, COUNTED), "int8") == (2.5e9, 3e6)


def test_the_page_has_a_row_for_each_rung(tmp_path: Path) -> None:
    page = bytes_of_token.page({"cuda-graph": (2.5e9, 3e6), "int8": (1.3e9, 2e6)}, "a GPU")
    assert "| cuda-graph | 2478 | 2500 | 3 | +0.9% |" in page
    assert "| int8 | 1242 | 1300 | 2 | +4.7% |" in page
