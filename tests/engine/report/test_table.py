"""One table in windows of several widths."""

from gpugate.report.table import Column, Table, columns
from gpugate.report.terminal import render_text

SIDES = (
    Column("case", left=True),
    Column("time", note="time: of a step"),
    Column("kernels", rank=2, note="kernels: of a step"),
    Column("launches", rank=1, note="launches: of a step"),
)
TABLE = Table("sides", SIDES, (("plain", "36 ms", "216", "216"), ("fused\n  vs plain", "4 ms", "62", "1")), ("a note",))


def lines(table: Table, width: int) -> list[str]:
    return render_text(table.rich(width), width, colour=False).splitlines()


def test_a_narrow_window_leaves_out_columns_and_names_them() -> None:
    assert lines(TABLE, 34)[2].split() == ["case", "time", "kernels"]
    assert lines(TABLE, 34)[8:] == ["kernels: of a step", "a note", "left out at 34 columns: launches"]
    assert lines(TABLE, 20)[2].split() == ["case", "time"]
    assert " ".join(lines(TABLE, 20)).endswith("left out at 20 columns: kernels, launches")


def test_then_names_give_way_before_figures_and_no_letter_is_lost() -> None:
    long = Table("", columns("name", "time"), (("abcdefghijklmnop", "4.00 ms"),))
    assert lines(long, 19)[2:] == ["abcdefghij  4.00 ms", "klmnop"]
    assert "".join(line[:6].strip() for line in lines(long, 14)[2:]) == "abcdefghijklmnop"
    assert max(map(len, lines(long, 5))) <= 5
