"""Answers without model output, compared with what other endpoints gave to the same requests at the same time.

By one endpoint alone nobody can tell a bad caller from a bad endpoint: both make 404s. A bad caller's requests get no
output anywhere; a bad endpoint's would have got it elsewhere.
"""

from bisect import bisect_left, insort_right
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from operator import attrgetter

from trimtab.endpoint.snapshot import EndpointId

# An endpoint is suspected where its answers would come about by chance less often than this, if it were like the
# others. An endpoint is looked at with each answer, so a large pool would meet 1 in 1,000 several times a minute.
_CHANCE = 1e-6
# One that has never given output is more likely to be set up wrongly than one that has to be broken all of a sudden.
_CHANCE_UNPROVEN = 3e-4
# And its share without output is so many times what the others make probable.
_STANDS_OUT = 2.0
_LATEST = 24  # answers of an endpoint that are judged together
_LEAST_MISSING = 3
# An answer is compared with so many of other endpoints before it, and as many after it, within this time.
_NEAR = 16
_NEAR_S = 60.0
# Fewer answers to the same caller say nothing: then all callers of the same path and size are looked at.
_ENOUGH_OF_CALLER = 4
_STEPS = 4 * _NEAR  # answers that are looked at for that, where one endpoint gives nearly all
# Half an answer without output is imagined beside those that are seen, so that no share is 0.
_PRIOR = 0.5
_KINDS_MAX = 128  # the least recently used are forgotten
_KIND_MAX = 256  # answers that are kept of each

_HINTS = (
    ("404", "is the model loaded?"),
    ("401", "is its API key right?"),
    ("403", "is its API key right?"),
    ("text/html", "is another service on this port?"),
    ("30", "is its address right?"),
)


@dataclass(frozen=True, slots=True)
class RequestKind:
    """Requests that are alike: one that gets output from one endpoint should get it from every other."""

    path: str
    caller: str = ""  # empty: any
    size: int = 0  # of the prompt, as a power of 4

    @property
    def of_any_caller(self) -> "RequestKind":
        return RequestKind(self.path, size=self.size)


def request_kind(path: str, caller: str, prompt_bytes: int | None) -> RequestKind:
    """The kind of a request whose body has `prompt_bytes` (None: unknown)."""
    return RequestKind(path, caller, ((prompt_bytes or 0).bit_length() + 1) // 2)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One answer of one endpoint. `missing` says what came in the place of output; empty: output came."""

    at: float
    endpoint: EndpointId
    kind: RequestKind
    missing: str


_at = attrgetter("at")


class Peers:
    """The latest answers of a pool's endpoints. Times are Unix seconds.

    Only kinds of requests to which some endpoint gave output say anything, so nobody can fill the memory with others.
    """

    def __init__(self) -> None:
        self._by_kind: dict[RequestKind, list[Answer]] = {}  # each by time; the most recently used kind is the last
        self._without: dict[RequestKind, list[Answer]] = {}  # likewise, of kinds that got no output yet
        self._latest: dict[EndpointId, deque[Answer]] = {}  # those by which an endpoint is judged
        self._known: set[EndpointId] = set()
        self._proven: set[EndpointId] = set()  # endpoints that have given output
        self._news: set[EndpointId] = set()  # that gave no output since `suspects` was asked last

    def add(self, answer: Answer) -> None:
        """Take in an answer."""
        self._known.add(answer.endpoint)
        if self._is_telling(answer):
            self._latest.setdefault(answer.endpoint, deque(maxlen=_LATEST)).append(answer)
            if answer.missing:
                self._news.add(answer.endpoint)
        for kind in (answer.kind, answer.kind.of_any_caller):
            self._keep(kind, answer)
        if not answer.missing:
            self._proven.add(answer.endpoint)

    def prove(self, endpoint: EndpointId) -> None:
        """An endpoint is known to have given output before."""
        self._proven.add(endpoint)

    def forget(self, endpoint: EndpointId) -> None:
        """Drop what an endpoint that is gone has answered."""
        self._begin_anew(endpoint)
        self._known.discard(endpoint)
        self._proven.discard(endpoint)

    def give_output(self, endpoint: EndpointId, kind: RequestKind, at: float) -> bool | None:
        """Whether other endpoints gave output to such requests at about `at`. None: they had none to answer."""
        near = self._near(endpoint, kind, at)
        return sum(not answer.missing for answer in near) * 2 > len(near) if near else None

    def suspects(self) -> Iterator[tuple[EndpointId, str]]:
        """Endpoints without output where others give it, and why. Each is told once, and begins anew then."""
        for endpoint in sorted(self._news):
            if (why := self._why(endpoint, self._latest[endpoint])) is not None:
                yield endpoint, why
                self._begin_anew(endpoint)
        self._news.clear()

    def _begin_anew(self, endpoint: EndpointId) -> None:
        self._latest.pop(endpoint, None)
        self._news.discard(endpoint)

    def _is_telling(self, answer: Answer) -> bool:
        """Whether an answer says something of its endpoint.

        One without output does where others give output to such requests. Of a caller who has asked nobody else it does
        once: all that he asks may be bad.
        """
        if not answer.missing:
            return True
        if not self.give_output(answer.endpoint, answer.kind, answer.at):
            return False
        if self._near_of(answer.endpoint, answer.kind, answer.at):
            return True
        latest = self._latest.get(answer.endpoint, ())
        return not any(other.missing and other.kind == answer.kind for other in latest)

    def _keep(self, kind: RequestKind, answer: Answer) -> None:
        if answer.missing and kind not in self._by_kind:
            kinds, most = self._without, _NEAR
        else:
            kinds, most = self._by_kind, _KIND_MAX
        answers = kinds.pop(kind, None) or self._without.pop(kind, [])
        insort_right(answers, answer, key=_at)
        if len(answers) > most:
            del answers[0]
        kinds[kind] = answers
        if len(kinds) > _KINDS_MAX:
            del kinds[next(iter(kinds))]

    def _why(self, endpoint: EndpointId, latest: "deque[Answer]") -> str | None:
        """Why an endpoint is suspected; None if it is not."""
        missing = Counter(answer.missing for answer in latest if answer.missing)
        if missing.total() < _LEAST_MISSING:
            return None
        chances, others = [], set[Answer]()
        for answer in latest:
            near = self._near(endpoint, answer.kind, answer.at)
            others.update(near)
            chances.append(_chance(near))
        without = sum(bool(other.missing) for other in others)
        count = missing.total()
        if count <= _STANDS_OUT * sum(chances) or not self._is_unlikely(endpoint, count, chances, len(others)):
            return None
        ((what, _),) = missing.most_common(1)
        hint = next((f": {hint}" for text, hint in _HINTS if text in what), "")
        here = f"{missing.total()} of {len(latest)} requests got {what} here"
        return f"{here}, {without} of {len(others)} elsewhere{hint}"

    def _is_unlikely(self, endpoint: EndpointId, missing: int, chances: list[float], others: int) -> bool:
        if endpoint not in self._proven:
            return at_least(missing, chances) < _CHANCE_UNPROVEN
        mean = sum(chances) / len(chances)
        doubt = sqrt(mean * (1.0 - mean) / max(1, others))  # the standard error of that mean
        return at_least(missing, [min(1.0, chance + doubt) for chance in chances]) < _CHANCE

    def _near(self, endpoint: EndpointId, kind: RequestKind, at: float) -> list[Answer]:
        """Answers of other endpoints that came about when one came at `at`: to the same caller, or else to anybody.

        A caller who got no output from anybody else is compared with himself, however little he asked.
        """
        if self._known <= {endpoint}:
            return []
        near = self._near_of(endpoint, kind, at)
        if len(near) >= _ENOUGH_OF_CALLER or (near and all(other.missing for other in near)):
            return near
        return self._near_of(endpoint, kind.of_any_caller, at)

    def _near_of(self, endpoint: EndpointId, kind: RequestKind, at: float) -> list[Answer]:
        answers = self._by_kind.get(kind) or self._without.get(kind, [])
        here = bisect_left(answers, at, key=_at)
        near: list[Answer] = []
        before = range(here - 1, max(-1, here - 1 - _STEPS), -1)
        after = range(here, min(len(answers), here + _STEPS))
        for indices in (before, after):
            found = 0
            for index in indices:
                other = answers[index]
                if found == _NEAR or abs(other.at - at) > _NEAR_S:
                    break
                if other.endpoint != endpoint:
                    near.append(other)
                    found += 1
        return near


def _chance(near: list[Answer]) -> float:
    """The chance of an answer without output, by those of others; 1 where there are none."""
    without = sum(bool(other.missing) for other in near)
    return (without + _PRIOR) / (len(near) + _PRIOR)


def at_least(count: int, chances: list[float]) -> float:
    """The chance that `count` or more of independent events happen, each with its own chance."""
    by_count = [1.0] + [0.0] * count  # the chance of so many; the last: of as many or more
    for chance in chances:
        for number in range(count, 0, -1):
            stays = by_count[number] if number == count else by_count[number] * (1.0 - chance)
            by_count[number] = stays + by_count[number - 1] * chance
        by_count[0] *= 1.0 - chance
    return by_count[count]
