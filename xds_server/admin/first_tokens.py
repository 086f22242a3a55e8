"""Times to first token, from observations that come over several channels in any order."""

from trimtab.observation.kinds import AttemptEnded, AttemptStarted, FirstToken

Key = tuple[str, str, str]  # pool, address, request id

# What has no end by then has been lost; what has no counterpart by then never gets one.
_OPEN_MAX = 100_000
_LOOSE_MAX = 4_096


class FirstTokens:
    """Joins starts with first tokens. Each method returns the TTFT [s] if this piece completes it."""

    def __init__(self) -> None:
        self._open: dict[Key, float] = {}  # starts of attempts that have neither a token nor an end
        self._ended: dict[Key, float] = {}  # starts of streams that ended before their token was heard of
        self._tokens: dict[Key, float] = {}  # tokens before their start was heard of

    def started(self, seen: AttemptStarted) -> float | None:
        key = (seen.pool, seen.address, seen.request_id)
        token_at = self._tokens.pop(key, None)
        if token_at is not None:
            return _elapsed(seen.at, token_at)
        _put(self._open, key, seen.at, _OPEN_MAX)
        return None

    def token(self, seen: FirstToken) -> float | None:
        key = (seen.pool, seen.address, seen.request_id)
        started_at = self._open.pop(key, None) or self._ended.pop(key, None)
        if started_at is not None:
            return _elapsed(started_at, seen.at)
        _put(self._tokens, key, seen.at, _LOOSE_MAX)
        return None

    def ended(self, seen: AttemptEnded) -> float | None:
        key = (seen.pool, seen.address, seen.request_id)
        awaited = self._open.pop(key, None) is not None
        token_at = self._tokens.pop(key, None)
        if token_at is not None:
            return _elapsed(seen.started_at, token_at)
        if awaited and seen.streamed:
            _put(self._ended, key, seen.started_at, _LOOSE_MAX)
        return None


def _elapsed(started_at: float, token_at: float) -> float | None:
    """None if the token is older: it belongs to an earlier attempt of the request on the same endpoint."""
    return token_at - started_at if token_at >= started_at else None


def _put(pieces: dict[Key, float], key: Key, at: float, limit: int) -> None:
    pieces[key] = at
    if len(pieces) > limit:
        del pieces[next(iter(pieces))]
