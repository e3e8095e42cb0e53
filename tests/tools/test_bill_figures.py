"""The page about equal code and the bill alone agrees with the stored runs, the records, and the rules as they are."""

from tools.bill_figures import PAGE, write_page, write_share


def test_the_page_is_of_the_stored_runs_by_todays_rules() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run python -m tools.bill_figures"


def test_a_share_has_its_interval() -> None:
    assert write_share(0, 146) == ("0 of 146", "0..2.5 %")
