"""How many of a pool's streams are watched for their first token, and so what silence means."""

from math import ceil, inf, log

from trimtab.stats.fading import FadingShare

HALF_LIFE_S = 10.0
# The chance of calling an endpoint silent although all of its waiting streams are merely unwatched.
_FALSE_ALARM = 0.05
# An ext_proc worker that is back is found by Envoy, and has read what waited for it, within so long.
_RECOVERY_S = 1.0


class SamplingConfidence:
    """Learned from streams that were answered in full: was their first token seen?

    Watching is sampled under a flood, and stops while its service is away. A stream without a token then
    proves nothing; several together do.
    """

    __slots__ = ("_read", "_seen", "missed_until")

    def __init__(self) -> None:
        self._seen = FadingShare(HALF_LIFE_S)
        self._read = FadingShare(HALF_LIFE_S)  # unary answers, which in a gated pool are sampled where streams are not
        self.missed_until = -inf

    def miss(self, at: float) -> None:
        """An ext_proc worker was away, or stopped, until `at`."""
        self.missed_until = max(self.missed_until, at + _RECOVERY_S)

    def missed(self, started_at: float) -> bool:
        """Whether the first token of an attempt may have gone unseen, or was read long after it came."""
        return started_at < self.missed_until

    def add(self, at: float, seen: bool) -> None:
        self._seen.add(at, float(seen), 1.0)

    def add_answer(self, at: float, seen: bool) -> None:
        """A unary answer came, and was read or not."""
        self._read.add(at, float(seen), 1.0)

    def leaves_out(self, now: float, streamed: bool) -> bool:
        """Whether some answers go unread as a matter of course."""
        share = self._seen if streamed else self._read
        return share.share(now, prior_hits=1.0, prior_total=1.0) < 1.0 - _FALSE_ALARM

    def silent_rank(self, now: float) -> int:
        """How many waiting streams must be older than a wait before that wait is believed.

        With a share c watched, m speaking streams all go unseen with a chance of (1 - c)^m. With all
        watched it is 0: the oldest stream itself is believed.
        """
        unseen = 1.0 - self._seen.share(now, prior_hits=1.0, prior_total=1.0)
        if unseen <= _FALSE_ALARM:
            return 0
        return ceil(log(_FALSE_ALARM) / log(unseen)) - 1
