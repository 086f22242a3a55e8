"""Leases: the attempts in flight to one incarnation of an endpoint, each taken once and given back once."""

from bisect import bisect_left, bisect_right, insort_right
from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from operator import attrgetter

from trimtab.endpoint.attempt import Attempt
from trimtab.observation.kinds import AttemptEnded, AttemptStarted

# An ended attempt is remembered, so that a second end, or a start that comes after the end, is known as such.
REMEMBER_ENDED_S = 10.0
REMEMBER_ENDED = 4096
# Far above any stream's limit: only a lost end that load reports did not heal meets it.
LEASE_MAX_AGE_S = 2 * 3600.0

_start = attrgetter("started_at")


class AgeQueue:
    """Attempts by their start. They come nearly in order, so adding is cheap; finding one is O(log n)."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: list[Attempt] = []

    def __len__(self) -> int:
        return len(self._line)

    def add(self, attempt: Attempt) -> None:
        if not self._line or self._line[-1].started_at <= attempt.started_at:
            self._line.append(attempt)
        else:
            insort_right(self._line, attempt, key=_start)

    def discard(self, attempt: Attempt) -> None:
        index = bisect_left(self._line, attempt.started_at, key=_start)
        while index < len(self._line) and self._line[index].started_at == attempt.started_at:
            if self._line[index] is attempt:
                del self._line[index]
                return
            index += 1

    def oldest(self, rank: int = 0) -> Attempt | None:
        """The oldest attempt, or the one that has `rank` attempts before it."""
        return self._line[rank] if rank < len(self._line) else None

    def before(self, started_at: float) -> list[Attempt]:
        """Those that started before `started_at`, oldest first."""
        return self._line[: bisect_left(self._line, started_at, key=_start)]

    def after(self, started_at: float) -> Iterator[Attempt]:
        """Those that started after `started_at`, oldest first; the queue must not change meanwhile."""
        return islice(self._line, self.until(started_at), None)

    def until(self, started_at: float) -> int:
        """How many started at `started_at` or before."""
        return bisect_right(self._line, started_at, key=_start)


class LeaseTable:
    """The leases of one incarnation, born at `born_at`: what started before belongs to another one.

    Every time that is taken in is the observation's own; `now` is when it arrived.
    """

    __slots__ = (
        "_born_at",
        "_by_request",
        "_ended",
        "_horizon",
        "_leases",
        "_others",
        "_prefilled_until",
        "_streams",
        "outstanding_prompt_bytes",
        "prompt_bytes_sent",
    )

    def __init__(self, born_at: float) -> None:
        self._born_at = born_at
        self._by_request: dict[str, list[Attempt]] = {}
        self._leases = AgeQueue()
        self._streams = AgeQueue()  # without a token, where one would be seen
        self._others = AgeQueue()  # where none would be: unary answers, and streams that were missed
        self._ended: list[tuple[float, Attempt]] = []  # by arrival; a deque would keep the blocks of a rush
        self._prefilled_until = -inf
        self._horizon = -inf  # what happened until then can no longer be told from a repetition
        self.outstanding_prompt_bytes = 0
        self.prompt_bytes_sent = 0  # in all, ever

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    @property
    def awaiting_token(self) -> int:
        return len(self._streams)

    @property
    def decoding(self) -> int:
        """Attempts in flight that are past their first token, as far as it is known."""
        return len(self._leases) - len(self._streams) - len(self._others)

    @property
    def newest_started_at(self) -> float | None:
        """When the newest of the attempts in flight was sent."""
        newest = self._leases.oldest(len(self._leases) - 1) if self._leases else None
        return newest.started_at if newest else None

    @property
    def request_ids(self) -> frozenset[str]:
        """The requests whose attempts are still known."""
        return frozenset(self._by_request)

    def start(self, started: AttemptStarted, *, missed: bool) -> Attempt | None:
        """Take a lease. None: the attempt is known already, or too old to be told from an ended one.

        `missed`: its first token may go unseen.
        """
        at, request_id = started.at, started.request_id
        if at < self._born_at or at <= self._horizon or self._find(request_id, at):
            return None
        self.outstanding_prompt_bytes += started.prompt_bytes or 0
        self.prompt_bytes_sent += started.prompt_bytes or 0
        attempt = Attempt(
            request_id,
            at,
            prompt_bytes=started.prompt_bytes,
            streamed=started.streamed,
            path=started.path,
            caller=started.caller,
            seen_to_start=True,
            outstanding_prompt_bytes=self.outstanding_prompt_bytes,
            leased=True,
            waiting=True,
            witness=bool(started.streamed) and not missed,
        )
        self._leases.add(attempt)
        self._queue_of(attempt).add(attempt)
        attempt.in_flight = len(self._leases)
        self._by_request.setdefault(request_id, []).append(attempt)
        return attempt

    def end(self, now: float, ended: AttemptEnded) -> Attempt | None:
        """Give a lease back. None: it was given back before, or belongs to an earlier incarnation.

        An end without a start is an attempt that started and ended at once.
        """
        attempt = self._find(ended.request_id, ended.started_at)
        if attempt is None:
            if ended.started_at < self._born_at or ended.at <= self._horizon:
                return None
            attempt = Attempt(
                ended.request_id, ended.started_at, streamed=ended.streamed, path=ended.path, caller=ended.caller
            )
            self._by_request.setdefault(ended.request_id, []).append(attempt)
            self._dump(now, attempt)
        elif attempt.ended is not None:
            return None
        else:
            self._release(now, attempt)
        attempt.ended = ended
        return attempt

    def newest(self, request_id: str, at: float, fits: Callable[[Attempt], bool]) -> Attempt | None:
        """The newest attempt of a request that had started by `at` and fits."""
        attempts = self._by_request.get(request_id, ())
        return max((a for a in attempts if a.started_at <= at and fits(a)), key=_start, default=None)

    def token_seen(self, attempt: Attempt, all_watched: bool) -> None:
        """An attempt showed its first token.

        Engines serve in the order of arrival. So an earlier attempt that would not have been seen to speak
        has most likely spoken too: those answered in one piece, and, unless all streams are watched,
        streams.
        """
        self._stop_waiting(attempt)
        for unseen in self._others.before(attempt.started_at):
            self._stop_waiting(unseen)
        if not all_watched:
            for unseen in self._streams.before(attempt.started_at):
                self._stop_waiting(unseen)

    def assume_prefilled(self, until: float) -> None:
        """The prompts of unary attempts that started by `until` are most likely computed.

        Nobody sees their first token. Until their ends they would count as prompts that wait, and an engine that
        generates long answers would pass for one that is slow to begin.
        """
        for attempt in self._others.after(self._prefilled_until):
            if attempt.started_at > until:
                break
            if attempt.streamed is False:
                attempt.is_prefilled = True
                self.outstanding_prompt_bytes -= attempt.prompt_bytes or 0
        self._prefilled_until = max(self._prefilled_until, until)

    def doubt(self, until: float) -> None:
        """The first tokens of streams that started before `until` may have gone unseen."""
        for stream in self._streams.before(until):
            self._streams.discard(stream)
            stream.witness = False
            self._others.add(stream)

    def wait(self, now: float, rank: int = 0) -> float:
        """Age [s] of the oldest stream without a token, or of the one with `rank` such streams before it."""
        waiting = self._streams.oldest(rank)
        return max(0.0, now - waiting.started_at) if waiting else 0.0

    def waiting_stream(self, since: float, rank: int = 0) -> Attempt | None:
        """The oldest stream without a token that started after `since`, or the one with `rank` such before it."""
        return self._streams.oldest(self._streams.until(since) + rank)

    def waiting_answer(self, since: float) -> Attempt | None:
        """The oldest prompt that started after `since` and waits for a unary answer."""
        return next((a for a in self._others.after(since) if a.streamed is False and a.prompt_bytes), None)

    def in_flight_at(self, at: float, since: float = -inf) -> int:
        """The leases held at a moment not long ago, by the times of starts and ends, not of their arrival.

        Those that started before `since` are left out.
        """
        count = max(0, self._leases.until(at) - self._leases.until(since))
        for arrived_at, attempt in reversed(self._ended):
            if arrived_at < at:
                break
            if attempt.seen_to_start and attempt.ended and since < attempt.started_at <= at < attempt.ended.at:
                count += 1
        return count

    def release_oldest(self, now: float, count: int, since: float) -> None:
        """Give back leases whose ends were lost, of those that started after `since`."""
        for _ in range(count):
            if oldest := self._leases.oldest(self._leases.until(since)):
                self._release(now, oldest)

    def tidy(self, now: float) -> None:
        """Forget what is old."""
        while (oldest := self._leases.oldest()) and oldest.started_at < now - LEASE_MAX_AGE_S:
            self._release(now, oldest)
        while self._ended and self._ended[0][0] <= now - REMEMBER_ENDED_S:
            self._forget_ended()

    def _find(self, request_id: str, started_at: float) -> Attempt | None:
        for attempt in self._by_request.get(request_id, ()):
            if attempt.started_at == started_at:
                return attempt
        return None

    def _queue_of(self, attempt: Attempt) -> AgeQueue:
        return self._streams if attempt.witness else self._others

    def _stop_waiting(self, attempt: Attempt) -> None:
        if attempt.waiting:
            attempt.waiting = False
            self._queue_of(attempt).discard(attempt)
            if not attempt.is_prefilled:
                self.outstanding_prompt_bytes -= attempt.prompt_bytes or 0

    def _release(self, now: float, attempt: Attempt) -> None:
        if attempt.leased:
            attempt.leased = False
            self._leases.discard(attempt)
            self._stop_waiting(attempt)
            self._dump(now, attempt)

    def _dump(self, now: float, attempt: Attempt) -> None:
        self._ended.append((now, attempt))
        if len(self._ended) > REMEMBER_ENDED:
            self._forget_ended()

    def _forget_ended(self) -> None:
        arrived_at, attempt = self._ended.pop(0)
        self._horizon = max(self._horizon, arrived_at)
        attempts = self._by_request[attempt.request_id]
        attempts.remove(attempt)
        if not attempts:
            del self._by_request[attempt.request_id]
            if not self._by_request:
                self._by_request.clear()  # an emptied dict keeps the table of a rush that is over
