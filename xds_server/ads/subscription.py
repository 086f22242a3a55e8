"""What the client of one stream wants and has of one resource type, whichever protocol it speaks.

State of the world and delta differ in how a want is written down and how a response is packed. What is
wanted, what was sent, accepted and refused, and therefore what is due, is decided here, once for both.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from xds_server.ads.snapshot import Resource, TypeUrl

WILDCARD = "*"
_WILDCARD_TYPES = frozenset({TypeUrl.CDS, TypeUrl.LDS})
"""An empty first request means "everything" for these types; for the others it means "nothing yet"."""

_PACED_TYPES = frozenset({TypeUrl.EDS, TypeUrl.RTDS})
_MAX_UNANSWERED = 4
"""Responses of a paced type that may wait for an answer. These types change several times a second; a client that is
slower than that gets fewer and newer responses, where the transport alone would queue megabytes of old weights.
Clusters are never held back so: Envoy answers them only when all are warm, which may take a further change."""
_PATIENCE_S = 5.0
"""After so long an answer is no longer waited for: a client that answers nothing is still served, but slowly."""
_MAX_REMEMBERED = 64
"""Unanswered responses of one type that are remembered, so that such a client does not cost memory."""


@dataclass(frozen=True, slots=True)
class Push:
    """One response, before a protocol has put it into words."""

    type_url: TypeUrl
    nonce: str
    version: str  # stands for exactly these resources
    at: float  # seconds, on the caller's clock
    resources: tuple[Resource, ...]
    fresh: tuple[Resource, ...]  # of `resources`, those that the client did not have yet
    removed: tuple[str, ...]  # names that are not there (any more)


@dataclass(slots=True)
class _Held:
    """One resource as this client has it, from when it is first told of it until it is taken away."""

    sent: Resource | None = None  # the last one sent and not refused
    accepted: Resource | None = None  # the last good one
    refused: str = ""  # version that was refused when it was sent alone
    suspect: str = ""  # version that was refused in company, so it is not known which one was at fault
    due: bool = False  # the client waits for it although it has it
    told_absent: bool = False

    def lacks(self, resource: Resource) -> bool:
        return self.due or self.sent is None or self.sent.version != resource.version


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A response that is not answered yet, and what it was about: the client may have lost that meanwhile."""

    push: Push
    held: tuple[_Held, ...]  # one for each of the push's resources


class Subscription:
    """One type on one stream.

    `full`: every response holds all that the client wants of this type, and what is missing in it is gone.
    `tells_absence`: a response can say that a name does not exist (a full one always can).
    """

    def __init__(self, type_url: TypeUrl, *, full: bool, tells_absence: bool) -> None:
        self.type_url = type_url
        self.accepted_version = ""  # of the last response that was accepted
        self._refusal = ""  # why a response was refused the last time
        self._full = full
        self._tells_absence = tells_absence or full
        self._names: set[str] = set()
        self._wildcard = False
        self._asked = False
        self._named_before = False
        self._owes_answer = False  # a wildcard is answered even if there is nothing
        self._held: dict[str, _Held] = {}
        self._in_flight: dict[str, _InFlight] = {}
        self._refused_version = ""  # of a full response
        self._nonces = 0

    # --- what the client wants

    def want_exactly(self, names: Collection[str]) -> None:
        """Take the whole list of wanted names from a sotw request.

        The list counts even if the request's nonce is stale. Requests arrive in order, so the newest one
        tells what the client wants; and pushes that are faster than a round trip make every nonce stale.
        """
        self._named_before = self._named_before or bool(names)
        wildcard = WILDCARD in names or (self.type_url in _WILDCARD_TYPES and not self._named_before)
        wanted = set(names) - {WILDCARD}
        for name in wanted - self._names:
            self._held.pop(name, None)
        if wildcard and not self._wildcard:
            self._owes_answer = True
        self._names, self._wildcard = wanted, wildcard
        self._forget_unwanted()

    def want(self, subscribe: Collection[str], unsubscribe: Collection[str], known: Mapping[str, str]) -> None:
        """Take the changes of a delta request, and in the first one what the client has (name → version)."""
        first = not self._asked
        self._asked = True
        implicit = first and self.type_url in _WILDCARD_TYPES and not subscribe and not unsubscribe
        if WILDCARD in subscribe:
            self._held.clear()
        if implicit or WILDCARD in subscribe:
            self._wildcard = True
            self._owes_answer = not (first and known)  # one that reconnects with what it has waits for nothing
        for name in set(subscribe) - {WILDCARD}:
            # Sent again even if the client has it: it may have dropped it and come back meanwhile.
            self._names.add(name)
            self._held.pop(name, None)
        if first:
            for name, version in known.items():
                resource = Resource(name, version, b"")
                self._held[name] = _Held(sent=resource, accepted=resource)
        if WILDCARD in unsubscribe:
            self._wildcard = self._owes_answer = False
        for name in self._names.intersection(unsubscribe):
            self._names.discard(name)
            # Under a wildcard the client cannot know whether it still gets this one: it is told either way.
            self._held[name] = _Held(sent=Resource(name, "", b""))
        self._forget_unwanted()

    def _forget_unwanted(self) -> None:
        if not self._wildcard:
            self._held = {name: held for name, held in self._held.items() if name in self._names}

    def resend(self, names: Iterable[str]) -> None:
        """Send these again although the client has them: it waits for them anew."""
        for name in names:
            held = self._held.get(name)
            if held is not None and not held.told_absent:
                held.due, held.refused = True, ""

    # --- what the client answered

    def settle(self, nonce: str, refusal: str | None) -> Push | None:
        """Take an answer: None is an ACK, anything else the reason of a NACK.

        Returns the response that it answers; None if the nonce is not one that is waited for.
        """
        answered = self._in_flight.get(nonce)
        if answered is None:
            return None
        for earlier in list(self._in_flight):
            response = self._in_flight.pop(earlier)
            if response is answered:
                break
            self._accept(response)  # the client may fold several answers into the last
        if refusal is None:
            self._accept(answered)
            self.accepted_version = answered.push.version
        else:
            self._refuse(answered)
            self._refusal = refusal
        return answered.push

    def _accept(self, response: _InFlight) -> None:
        for resource, held in zip(response.push.resources, response.held, strict=True):
            held.accepted = resource

    def _refuse(self, response: _InFlight) -> None:
        push = response.push
        if self._full:
            self._refused_version = push.version
        for resource, held in zip(push.resources, response.held, strict=True):
            sent_again = any(resource in later.push.resources for later in self._in_flight.values())
            if held.sent != resource or sent_again:
                continue
            held.sent = held.accepted
            if self._full:
                continue
            if len(push.resources) == 1:
                held.refused = resource.version
            else:
                held.suspect = resource.version

    # --- what is due

    def next_addition(
        self, resources: Mapping[str, Resource], now: float, withheld: Callable[[Resource], bool]
    ) -> Push | None:
        """The next response that gives something to the client, or tells it that a name does not exist.

        `withheld` resources stay back for now. A refused response is not repeated: resources that were
        refused in company go out one by one, so that one bad resource does not hold the good ones back.
        """
        if self._has_enough(now):
            return None
        fresh, suspects, absent = self._lacking(resources, withheld)
        if self._full:
            if not (fresh or absent or self._owes_answer):
                return None
            return self._push(now, self._present(resources) + self._leaving(resources), fresh, absent)
        if absent:  # alone, since it would be refused together with whatever came with it
            return self._push(now, [], [], absent)
        if fresh or self._owes_answer:
            return self._push(now, fresh, fresh, [])
        return self._push(now, suspects[:1], suspects[:1], []) if suspects else None

    def _lacking(
        self, resources: Mapping[str, Resource], withheld: Callable[[Resource], bool]
    ) -> tuple[list[Resource], list[Resource], list[str]]:
        """What the client is to get in company, what alone, and which names it is to be told do not exist."""
        fresh: list[Resource] = []
        suspects: list[Resource] = []
        absent: list[str] = []
        for name in self._wanted(resources):
            resource, held = resources.get(name), self._held.get(name)
            if resource is None and held is not None and held.due and held.sent and held.sent.body:
                resource = held.sent  # it is going away, but not before what waits for it
            if resource is None:
                # What was accepted goes in its own time. What never was is taken back at once: nothing that
                # the client has refers to it, and a cluster whose assignment is gone would warm for long.
                if held is None or (held.accepted is None and not held.told_absent):
                    absent.append(name)
            elif held is None:
                if not withheld(resource):
                    fresh.append(resource)
            elif held.lacks(resource) and held.refused != resource.version and not withheld(resource):
                (suspects if held.suspect == resource.version else fresh).append(resource)
        return fresh, suspects, absent if self._tells_absence else []

    def gone(self, resources: Mapping[str, Resource]) -> list[str]:
        """What the client has and what is no longer there."""
        return [name for name, held in self._held.items() if held.sent is not None and name not in resources]

    def next_removal(self, resources: Mapping[str, Resource], now: float) -> Push | None:
        """The response that takes away what is gone."""
        gone = self.gone(resources)
        if not gone:
            return None
        if not self._tells_absence:
            for name in gone:
                del self._held[name]
            return None
        return self._push(now, self._present(resources) if self._full else [], [], gone)

    def behind(self, resources: Mapping[str, Resource]) -> bool:
        """Whether the client has yet to accept something of what it wants."""
        return bool(self._in_flight) or any(
            (held := self._held.get(resource.name)) is None or held.lacks(resource)
            for resource in self._present(resources)
        )

    def refusal(self, resources: Mapping[str, Resource]) -> str:
        """Why the client goes without something that it wants; empty if it has refused nothing of it."""
        for resource in self._present(resources):
            held = self._held.get(resource.name)
            if held is None or not held.lacks(resource):
                continue
            if self._refused_version or resource.version in (held.refused, held.suspect):
                return self._refusal
        return ""

    def awaits(self, name: str) -> bool:
        """Whether the client wants this name and has neither accepted nor refused any version of it yet."""
        if not self._wildcard and name not in self._names:
            return False
        held = self._held.get(name)
        return held is None or (held.accepted is None and not held.refused)

    def _has_enough(self, now: float) -> bool:
        if self.type_url not in _PACED_TYPES:
            return False
        waiting = sum(now - response.push.at < _PATIENCE_S for response in self._in_flight.values())
        return waiting >= _MAX_UNANSWERED

    def _wanted(self, resources: Mapping[str, Resource]) -> list[str]:
        return sorted(resources.keys() | self._held.keys() | self._names if self._wildcard else self._names)

    def _present(self, resources: Mapping[str, Resource]) -> list[Resource]:
        return [resources[name] for name in self._wanted(resources) if name in resources]

    def _leaving(self, resources: Mapping[str, Resource]) -> list[Resource]:
        return [held.sent for name, held in self._held.items() if held.sent and held.accepted and name not in resources]

    def _push(self, now: float, resources: list[Resource], fresh: list[Resource], removed: list[str]) -> Push | None:
        version = _version_of(resources)
        if self._full and version == self._refused_version:
            return None
        for resource in fresh:
            held = self._held.setdefault(resource.name, _Held())
            held.sent, held.due, held.told_absent = resource, False, False
            held.refused = held.suspect = ""
        for name in removed:
            self._held.pop(name, None)
            if name in self._names:
                self._held[name] = _Held(told_absent=True)
        self._owes_answer = False
        self._refused_version = ""
        self._nonces += 1
        push = Push(self.type_url, str(self._nonces), version, now, tuple(resources), tuple(fresh), tuple(removed))
        self._in_flight[push.nonce] = _InFlight(push, tuple(self._held[resource.name] for resource in resources))
        if len(self._in_flight) > _MAX_REMEMBERED:
            del self._in_flight[next(iter(self._in_flight))]
        return push


def _version_of(resources: Collection[Resource]) -> str:
    if len(resources) == 1:
        return next(iter(resources)).version
    parts = "".join(f"{resource.name} {resource.version}\n" for resource in resources)
    return hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()
