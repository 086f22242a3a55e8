"""How much to watch: the share of streamed attempts that keeps observation within its CPU budget."""

_LEAST_PERCENT = 0.5  # something is always watched, or nothing would be known of first tokens
# Parts of the budget: between the first and the whole of it the share stays, and a cut aims at the second.
_DEAD_BAND = 0.7
_AIM = 0.85
_RISE = 1.15  # per period; less than 1 / _DEAD_BAND, so a rise never ends above the budget
_DEEPEST_CUT = 0.25
_PERIOD_S = 2.0  # CPU time is counted in 10 ms ticks, and Envoy's change takes a moment to show


class SampleShare:
    """Lowers the share when observation uses more CPU than `budget_cores`, and raises it step by step.

    The share is a percentage between a floor of 0.5 and `max_percent`, where it starts; with a `max_percent`
    below the floor it stays there.
    """

    def __init__(self, budget_cores: float, max_percent: float) -> None:
        self._budget_cores = budget_cores
        self._max_percent = max_percent
        self._percent = max_percent
        self._period: tuple[float, float, float] | None = None  # when it began, and the counters then

    @property
    def percent(self) -> float:
        """The share in force."""
        return self._percent

    def limit(self, budget_cores: float, max_percent: float) -> None:
        """Go on with other limits. A share that was as high as it might be is so again."""
        self._budget_cores = budget_cores
        was_full = self._percent == self._max_percent
        self._max_percent = max_percent
        self._set(max_percent if was_full else self._percent)

    def update(self, now: float, cpu_seconds_total: float, watched_total: int) -> float:
        """The share to apply from `now` (any clock, in seconds) on, in percent.

        `cpu_seconds_total` and `watched_total` are counters, summed over the workers: the CPU time that
        observation has used, and the attempts that it has watched. When one of the three has gone back (a
        worker is gone, a clock was set) a new period begins and nothing changes.
        """
        reading = (now, cpu_seconds_total, watched_total)
        elapsed, cpu, watched = (new - old for new, old in zip(reading, self._period or reading, strict=True))
        if self._period is None or min(elapsed, cpu, watched) < 0:
            self._period = reading
        elif elapsed >= _PERIOD_S:
            self._period = reading
            use = cpu / elapsed / self._budget_cores
            if use > 1 and watched:  # else watching less would not help
                self._set(self._percent * max(_DEEPEST_CUT, _AIM / use))
            elif use < _DEAD_BAND:
                self._set(self._percent * _RISE)
        return self._percent

    def _set(self, percent: float) -> None:
        self._percent = min(self._max_percent, max(_LEAST_PERCENT, percent))
