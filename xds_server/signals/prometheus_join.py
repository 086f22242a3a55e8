"""Which series of an answer belong to which endpoints."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite, isnan, nan

from trimtab.endpoint.spec import EndpointSpec
from xds_server.signals.prometheus_query import Answer, Series

# The clocks of several servers behind one address may differ so much.
_AHEAD_S = 60.0


@dataclass(frozen=True, slots=True)
class Joined:
    """What an answer says of one endpoint. `value` None is UNKNOWN, and `error` says why."""

    value: float | None
    age_s: float = 0.0  # of the newest sample behind the value; of several metrics, the oldest of them
    error: str = ""


def join(answer: Answer, endpoints: Sequence[EndpointSpec], rules: Mapping[str, str]) -> Mapping[str, Joined]:
    """What an answer says of each endpoint, by address. `rules` are those of the policy."""
    places = _places(endpoints, rules)
    values = _by_endpoint(answer.values, places, rules)
    sampled_at = [_by_endpoint(times, places, rules) for times in answer.sampled_at]
    return {
        endpoint.address: _joined(
            answer.evaluated_at,
            values.get(endpoint.address, ()),
            [_newest(times[endpoint.address]) for times in sampled_at if endpoint.address in times],
            rules,
        )
        for endpoint in endpoints
    }


def _joined(now: float, values: Sequence[float], sampled_at: Sequence[float], rules: Mapping[str, str]) -> Joined:
    if not values:
        return Joined(None, error=f"no series whose {_shown(rules)}")
    if len(values) > 1:
        by = ", ".join(rules)
        return Joined(None, error=f"{len(values)} series; let the query make one of them, as in max by ({by}) (...)")
    if not isfinite(values[0]):
        return Joined(None, error=f"the value is {values[0]:g}")
    if not sampled_at:
        return Joined(None, error=f"its metrics have no sample now whose {_shown(rules)}")
    if not all(map(isfinite, sampled_at)) or max(sampled_at) - now > _AHEAD_S:
        return Joined(None, error="its newest sample is of no time that has been, by the server's clock")
    return Joined(values[0], max(0.0, now - min(sampled_at)))


def _newest(times: Sequence[float]) -> float:
    """NaN if one of them is, which `max` would pass over or not by their order."""
    return nan if any(map(isnan, times)) else max(times)


def _shown(rules: Mapping[str, str]) -> str:
    return " and ".join(f"{label} is the endpoint's {joined}" for label, joined in rules.items())


def _by_endpoint(
    series: Iterable[Series], places: Mapping[tuple[str, ...], Sequence[str]], rules: Mapping[str, str]
) -> Mapping[str, Sequence[float]]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one in series:
        place = tuple(_normal(one.labels.get(label, ""), joined) for label, joined in rules.items())
        for address in places.get(place, ()):
            found[address].append(one.value)
    return found


def _places(endpoints: Sequence[EndpointSpec], rules: Mapping[str, str]) -> Mapping[tuple[str, ...], Sequence[str]]:
    """The values of the labels that lead to endpoints, and to which."""
    names = Counter(endpoint.name for endpoint in endpoints)
    places: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for endpoint in endpoints:
        # A name with several addresses tells none of them from the others.
        is_one = names[endpoint.name] == 1
        for place in product(*(set(_words(endpoint, joined, is_one)) for joined in rules.values())):
            places[place].append(endpoint.address)
    return places


def _words(endpoint: EndpointSpec, joined: str, is_one: bool) -> Iterator[str]:
    if joined in ("address", "host"):
        yield _normal(endpoint.address, joined)
        if is_one or joined == "host":
            yield _normal(endpoint.name, joined)
    elif label := endpoint.labels.get(joined.removeprefix("labels.")):
        yield label


def _normal(text: str, joined: str) -> str:
    match joined:
        case "address":
            return text.lower()
        case "host":
            host = text.lower()
            if host.startswith("["):
                return host[1:].partition("]")[0]
            return host.partition(":")[0] if host.count(":") == 1 else host
    return text
