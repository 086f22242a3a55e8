"""What waiting prompt tokens and running sequences cost on one endpoint, learned on line."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

_FORGET = 0.97  # per sample: the last thirty count most
_CLIP = 4.0  # a residual beyond so many mean absolute residuals is an outlier,
_SUSTAINED = 3  # unless so many in a row lie on the same side: then the endpoint has changed
_LEAST_COST = 1e-6


class CostModel:
    """`ttft ≈ a·(prompt tokens ahead) + b·(attempts in flight)`, both costs above 0.

    Recursive least squares with forgetting, without an intercept. Single outliers are clipped; a sustained change
    widens the model's uncertainty at once, because forgetting alone would take some thirty samples to follow.
    """

    __slots__ = ("_error", "_gain", "_side", "per_attempt_s", "per_kilotoken_s", "samples")

    def __init__(self, per_kilotoken_s: float, per_attempt_s: float) -> None:
        self.per_kilotoken_s = per_kilotoken_s
        self.per_attempt_s = per_attempt_s
        self.samples = 0
        self._error: float | None = None  # mean absolute residual, seconds
        self._side = 0  # outliers in a row on one side, signed
        self._gain = self._wide()

    def predict(self, kilotokens: float, attempts: float) -> float:
        """The TTFT behind so much work, seconds."""
        return self.per_kilotoken_s * kilotokens + self.per_attempt_s * attempts

    def learn(self, kilotokens: float, attempts: float, ttft_s: float) -> None:
        """Take in one TTFT with the load that its attempt met, itself included."""
        residual = self._plausible(ttft_s - self.predict(kilotokens, attempts))
        (p, q), (_, s) = self._gain
        u, v = p * kilotokens + q * attempts, q * kilotokens + s * attempts
        scale = _FORGET + kilotokens * u + attempts * v
        a = self.per_kilotoken_s + u / scale * residual
        b = self.per_attempt_s + v / scale * residual
        # A cost below 0 is noise: that one goes to its bound, and the other explains the whole sample.
        if b < _LEAST_COST and kilotokens > 0:
            a, b = a + (b - _LEAST_COST) * attempts / kilotokens, _LEAST_COST
        elif a < _LEAST_COST and attempts > 0:
            a, b = _LEAST_COST, b + (a - _LEAST_COST) * kilotokens / attempts
        self.per_kilotoken_s, self.per_attempt_s = max(a, _LEAST_COST), max(b, _LEAST_COST)
        (widest, _), (_, widest_b) = self._wide()
        p, q, s = (p - u * u / scale) / _FORGET, (q - u * v / scale) / _FORGET, (s - v * v / scale) / _FORGET
        # Forgetting what the samples do not speak of would let the uncertainty of it grow without end.
        self._gain = ((p, q), (q, s)) if p <= widest and s <= widest_b else self._wide()
        self.samples += 1

    def remember(self) -> dict[str, float]:
        """The costs, JSON-able."""
        return {"per_kilotoken_s": self.per_kilotoken_s, "per_attempt_s": self.per_attempt_s}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Begin with remembered costs; malformed ones are ignored."""
        a, b = memory.get("per_kilotoken_s"), memory.get("per_attempt_s")
        if isinstance(a, int | float) and isinstance(b, int | float) and isfinite(a + b) and min(a, b) > 0:
            self.per_kilotoken_s, self.per_attempt_s = float(a), float(b)

    def _plausible(self, residual: float) -> float:
        """The residual, clipped if it is a single outlier."""
        size = abs(residual)
        if self._error is None:
            self._error = size
            return residual
        limit = _CLIP * max(self._error, 1e-3)
        if size <= limit:
            self._side = 0
            self._error += 0.1 * (size - self._error)
            return residual
        side = 1 if residual > 0 else -1
        self._side = self._side + side if self._side * side > 0 else side
        if abs(self._side) < _SUSTAINED:
            return side * limit
        self._side = 0
        self._error = size
        self._gain = self._wide()
        return residual

    def _wide(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """An uncertainty as large as the costs themselves."""
        return (
            (max(self.per_kilotoken_s, 0.05) ** 2 * 100, 0.0),
            (0.0, max(self.per_attempt_s, 0.005) ** 2 * 100),
        )
