"""Test of every sweep: its knee is where it was recorded, or next to it. The points are cases of their own."""


def test_the_knee_has_not_moved(sweep, gate):
    gate(sweep.knee)
