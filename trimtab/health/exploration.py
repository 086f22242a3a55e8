"""Half-open probes: an endpoint that is half open is sent one request soon, however small its share is."""

from collections.abc import Mapping, Sequence
from math import inf

from trimtab.endpoint.snapshot import EndpointId, EndpointView

# Of all requests no more than about one in so long is a half-open probe.
_PAUSE_S = 1.0
# A connection that is never made is not seen for a second: after so many requests, by its share, one was sent.
_ENOUGH = 1.0
# What an interval brings at most is forgotten as fast as `predicted_ttft` forgets a burst.
_HALF_LIFE_S = 20.0
# A share of nearly all would move the pool's work, and its floors must find room beside it.
_MOST = 0.4


class Exploration:
    """Chooses which half-open endpoint of a pool is tried next, and with what share.

    A floor of some per cent does not do it: each push makes Envoy begin its schedule anew, so where requests are rarer
    than pushes only the largest weights are picked. The share of a half-open probe is that of one request of what the
    next interval may bring, and it ends when an attempt is seen to be under way.
    """

    def __init__(self) -> None:
        self._at = -inf  # of the last step
        self._sent: dict[EndpointId, int] = {}  # bytes of prompts, until then
        self._peak = 0.0  # the most requests that an interval has brought, fading
        self._tried: EndpointId | None = None
        self._last: EndpointId | None = None  # that was tried
        self._tried_at = -inf
        self._expected = 0.0  # requests that it has got, by its share

    def choose(
        self, now: float, views: Sequence[EndpointView], half_open: frozenset[EndpointId]
    ) -> Mapping[EndpointId, float]:
        """The endpoint that is probed, if one is, with its share (0..0.4)."""
        came = self._follow(now, views)
        share = min(_MOST, 1.0 / max(1.0, self._peak))
        self._expected += share * came
        idle = [view.id for view in views if view.id in half_open and not view.in_flight]
        if self._tried not in idle or self._expected >= _ENOUGH:
            self._tried = None
            if not idle or now < self._tried_at + _PAUSE_S:
                return {}
            # In turn, so that one whose probe comes to nothing does not stand before the others.
            self._tried = self._last = next((id for id in idle if self._last and id > self._last), idle[0])
            self._expected = 0.0
        self._tried_at = now
        return {self._tried: share}

    def _follow(self, now: float, views: Sequence[EndpointView]) -> float:
        """How many requests came since the last step."""
        came = sum(
            max(0, view.prompt_bytes_sent - self._sent[view.id]) / view.prompt_bytes_mean
            for view in views
            if view.prompt_bytes_mean and view.id in self._sent
        )
        self._sent = {view.id: view.prompt_bytes_sent for view in views}
        kept = 0.5 ** (max(0.0, now - self._at) / _HALF_LIFE_S)
        self._at = now
        self._peak = max(self._peak * kept, came)
        return came
