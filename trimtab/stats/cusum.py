"""Has what is measured changed, or was that an outlier? A cumulative sum test on logarithms of ratios.

Source: E. S. Page, Continuous inspection schemes, Biometrika 41 (1954); two-sided, with each sample's evidence capped.
"""

# In natural logarithms of measured over expected. A ratio within e^0.6 says nothing;
_SLACK = 0.6
# none says more than this, so one sample alone never is a change;
_CAP = 1.2
# and so much evidence on one side is: three samples that are far off, more that are less so.
_ENOUGH = 1.7


class ChangeTest:
    """Watches the logarithm of measured over expected, sample by sample."""

    __slots__ = ("_evidence", "_logs", "_samples")

    def __init__(self) -> None:
        self._evidence = 0.0  # signed: above 0 for more than expected
        self._logs = 0.0  # of the samples that the evidence is from
        self._samples = 0

    def factor(self, log_ratio: float) -> float | None:
        """Take in a sample. Once they show a change: its size, as a logarithm; the test begins anew."""
        side = 1.0 if self._evidence + log_ratio > 0 else -1.0
        held = max(0.0, side * self._evidence)
        evidence = held + min(_CAP, side * log_ratio) - _SLACK
        if evidence <= 0:
            self._evidence, self._logs, self._samples = 0.0, 0.0, 0
            return None
        if not held:
            self._logs, self._samples = 0.0, 0
        self._evidence = side * evidence
        self._logs += log_ratio
        self._samples += 1
        if evidence <= _ENOUGH:
            return None
        change = self._logs / self._samples
        self._evidence, self._logs, self._samples = 0.0, 0.0, 0
        return change
