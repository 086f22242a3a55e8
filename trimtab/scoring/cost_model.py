"""What waiting prompt tokens and running sequences cost on one endpoint, learned on line."""

from collections.abc import Mapping
from math import exp, log
from typing import TypeGuard

from trimtab.scoring.config import remembered
from trimtab.stats.cusum import ChangeTest

_FORGET = 0.97  # per sample: the last thirty count most
_CLIP = 3.0  # a residual beyond so many mean absolute residuals is cut there
_LEAST_SPREAD = 0.1  # mean absolute residual, as a part of the prediction
_FIRST_SPREAD = 0.3
# How little is known of a cost at most, as a part of it: at the start, and after long forgetting.
_FIRST_DOUBT = 1.0
_MOST_DOUBT = 4.0
# A cost is at least this part of what it was first taken for. TTFTs cannot tell the two costs apart while prompts are
# alike; then one of them may wander, but never to nothing, where it would stay.
_LEAST_COST = 0.02
_MOST_COST_S = 1e6  # a memory of more is none
_LEAST_DOUBTED = 0.2  # a cost is doubted as if it were at least this part of what it was first taken for
_LEAST_TTFT_S = 0.005  # shorter ones differ by a step's luck, not by the load
_ERROR_ALPHA = 0.05
_LONGEST_LOG = 3.0  # a change is at most twentyfold at once

_Matrix = tuple[tuple[float, float], tuple[float, float]]


def is_memory(memory: object) -> TypeGuard[Mapping[str, float]]:
    """Whether this is what `CostModel.remember` gives."""
    if not isinstance(memory, Mapping):
        return False
    costs = [remembered(memory.get(name)) for name in ("per_kilotoken_s", "per_attempt_s")]
    return all(cost is not None and 0 < cost <= _MOST_COST_S for cost in costs)


class CostModel:
    """`ttft ≈ a·(prompt tokens ahead) + b·(attempts in flight)`, both costs above 0.

    Recursive least squares with forgetting, without an intercept, on residuals as parts of the prediction: TTFTs
    spread by a factor, and a long one must not teach more than many short ones. Outliers are cut. A sustained change
    moves both costs at once, because forgetting alone would take some hundred samples to follow.
    """

    __slots__ = (
        "_change",
        "_doubt",
        "_first_a",
        "_first_b",
        "_spread",
        "error",
        "per_attempt_s",
        "per_kilotoken_s",
        "samples",
    )

    def __init__(self, per_kilotoken_s: float, per_attempt_s: float) -> None:
        self.per_kilotoken_s = self._first_a = per_kilotoken_s
        self.per_attempt_s = self._first_b = per_attempt_s
        self.samples = 0
        self.error: float | None = None  # of predictions, mean |predicted - seen| / seen
        self._spread = _FIRST_SPREAD
        self._change = ChangeTest()
        self._doubt = self._wide(_FIRST_DOUBT)

    def predict(self, kilotokens: float, attempts: float) -> float:
        """The TTFT behind so much work, seconds."""
        return self.per_kilotoken_s * kilotokens + self.per_attempt_s * attempts

    def learn(self, kilotokens: float, attempts: float, ttft_s: float) -> float | None:
        """Take in one TTFT with the load that its attempt met, itself included.

        Returns the size of a sustained change, if this sample completes the proof of one: seen over predicted.
        """
        seen = max(ttft_s, _LEAST_TTFT_S)
        predicted = max(self.predict(kilotokens, attempts), _LEAST_TTFT_S)
        self._rate(abs(predicted - seen) / seen)
        change = self._change.factor(max(-_LONGEST_LOG, min(_LONGEST_LOG, log(seen / predicted))))
        if change is not None:
            self.per_kilotoken_s = max(_LEAST_COST * self._first_a, self.per_kilotoken_s * exp(change))
            self.per_attempt_s = max(_LEAST_COST * self._first_b, self.per_attempt_s * exp(change))
            self._doubt = self._wide(_FIRST_DOUBT)
            predicted = max(self.predict(kilotokens, attempts), _LEAST_TTFT_S)
        residual = self._cut((seen - self.predict(kilotokens, attempts)) / predicted)
        self._update(kilotokens / predicted, attempts / predicted, residual)
        self.samples += 1
        return None if change is None else exp(change)

    def dump(self) -> dict[str, float]:
        """The costs, JSON-able."""
        return {"per_kilotoken_s": self.per_kilotoken_s, "per_attempt_s": self.per_attempt_s}

    def restore(self, memory: Mapping[str, float]) -> None:
        """Begin with remembered costs. Raises ValueError unless `is_memory`."""
        if not is_memory(memory):
            raise ValueError(f"no costs: {memory!r}")
        self.per_kilotoken_s, self.per_attempt_s = float(memory["per_kilotoken_s"]), float(memory["per_attempt_s"])
        self._doubt = self._wide(_FIRST_DOUBT)

    def _update(self, kilotokens: float, attempts: float, residual: float) -> None:
        """One step of least squares, all in units of the prediction."""
        (p, q), (_, s) = self._doubt
        u, v = p * kilotokens + q * attempts, q * kilotokens + s * attempts
        scale = _FORGET * max(self._spread, _LEAST_SPREAD) ** 2 + kilotokens * u + attempts * v
        a = self.per_kilotoken_s + u / scale * residual
        b = self.per_attempt_s + v / scale * residual
        # A cost below its bound is noise: it stays there, and the other explains the whole sample.
        least_a, least_b = _LEAST_COST * self._first_a, _LEAST_COST * self._first_b
        if b < least_b and kilotokens > 0:
            a, b = a + (b - least_b) * attempts / kilotokens, least_b
        elif a < least_a and attempts > 0:
            a, b = least_a, b + (a - least_a) * kilotokens / attempts
        self.per_kilotoken_s, self.per_attempt_s = max(a, least_a), max(b, least_b)
        p, q, s = (p - u * u / scale) / _FORGET, (q - u * v / scale) / _FORGET, (s - v * v / scale) / _FORGET
        # Forgetting what the samples do not speak of would let the doubt about it grow without end.
        (most_p, _), (_, most_s) = self._wide(_MOST_DOUBT)
        self._doubt = ((p, q), (q, s)) if p <= most_p and s <= most_s else self._wide(_FIRST_DOUBT)

    def _cut(self, residual: float) -> float:
        limit = _CLIP * max(self._spread, _LEAST_SPREAD)
        cut = max(-limit, min(limit, residual))
        self._spread += _ERROR_ALPHA * (abs(cut) - self._spread)
        return cut

    def _rate(self, error: float) -> None:
        self.error = error if self.error is None else self.error + _ERROR_ALPHA * (error - self.error)

    def _wide(self, doubt: float) -> _Matrix:
        a = max(self.per_kilotoken_s, _LEAST_DOUBTED * self._first_a)
        b = max(self.per_attempt_s, _LEAST_DOUBTED * self._first_b)
        return ((doubt * a) ** 2, 0.0), (0.0, (doubt * b) ** 2)
