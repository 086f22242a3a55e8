"""The clock that requests are held against, while the system's clock is set."""

from ext_proc.request_clock import RequestClock


class Clocks:
    """A wall clock that somebody sets, and a monotonic one that nobody can."""

    def __init__(self) -> None:
        self.monotonic = 50.0
        self.set_by = 0.0
        self.clock = RequestClock(lambda: 1000.0 + self.monotonic + self.set_by, lambda: self.monotonic)

    def after(self, seconds: float, *, set_by: float = 0.0) -> float:
        self.monotonic += seconds
        self.set_by += set_by
        return self.clock.now()


def test_it_goes_with_the_clock_and_with_a_step_forward() -> None:
    it = Clocks()
    assert [it.after(0), it.after(10), it.after(1, set_by=5)] == [1050.0, 1060.0, 1066.0]


def test_a_step_back_makes_nothing_younger_and_is_forgotten_after_a_while() -> None:
    it = Clocks()
    it.after(0)
    assert it.after(1, set_by=-5) == 1051.0
    assert it.after(599) == 1650.0
    assert it.after(2) == 1647.0
    assert it.after(1) == 1648.0
