"""The seconds of a measurement, by activity."""

from gpugate.measurement.progress import Spent


def test_what_is_being_done_ends_where_the_next_begins() -> None:
    now = iter([0.0, 2.0, 2.0, 5.0, 5.0, 6.0, 6.0, 6.5]).__next__
    spent = Spent(clock=now)
    assert spent.seconds() == {}  # at 0
    spent.begin("building")  # asked at 2, begun at 2
    spent.begin("measuring")  # at 5
    spent.begin("building")
    assert spent.seconds() == {"building": 3.5, "measuring": 1.0}
