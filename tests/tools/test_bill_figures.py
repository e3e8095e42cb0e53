"""The page about equal code and the bill alone agrees with the stored runs, the records, and the rules as they are."""

from tools.bill_figures import PAGE, write_page


def test_the_page_is_of_the_stored_runs_by_todays_rules() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run python -m tools.bill_figures"
