"""The page of the recorded cases' sharpness is that of the records and of the rules as they are."""

from tools.sharpness import PAGE, cases, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(cases()), "run python -m tools.sharpness"


def test_the_sharpest_case_is_first_and_either_check_may_catch_a_slowdown() -> None:
    found = cases()
    assert [one.detectable for one in found] == sorted(one.detectable for one in found)
    assert any(one.by_time < one.by_speedup for one in found)
    assert any(one.by_speedup < one.by_time for one in found)
