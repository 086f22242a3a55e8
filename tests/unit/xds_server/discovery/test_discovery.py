"""Discovery with a resolver that says what the test tells it to."""

import asyncio
import logging
import random
import socket
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.harness import until
from trimtab.policy.model import Policy
from trimtab.pool import EndpointSpec
from xds_server.discovery import Discovery
from xds_server.discovery.names import Names as KeptNames
from xds_server.discovery.resolver import Resolver


class Hurried(random.Random):
    """Pauses are a hundredth of what they are meant to be."""

    def uniform(self, a: float, b: float) -> float:
        return a / 100


class Names:
    """A resolver: name -> addresses, or an error to raise. A name that is not there is never answered."""

    def __init__(self, **answers: Sequence[str] | Exception) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.answers:
            await asyncio.Event().wait()
        answer = self.answers[host]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Told(list[tuple[str, tuple[EndpointSpec, ...]]]):
    def change(self, pool: str, endpoints: Sequence[EndpointSpec]) -> None:
        self.append((pool, tuple(endpoints)))

    def addresses(self, pool: str = "p") -> list[str] | None:
        """What the pool was last told."""
        last = [endpoints for name, endpoints in self if name == pool]
        return [endpoint.address for endpoint in last[-1]] if last else None


def policy(*addresses: str, **pools: Sequence[str]) -> Policy:
    named = pools or {"p": addresses}
    return Policy.model_validate(
        {
            "version": 1,
            "pools": [
                {"name": n, "models": [n], "endpoints": [{"address": a} for a in given]} for n, given in named.items()
            ],
        }
    )


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
async def discovery(told: Told, names: Names) -> AsyncIterator[Discovery]:
    discovery = Discovery(told.change, resolve=names, rng=Hurried())
    yield discovery
    await discovery.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_ip_literals_are_told_at_once(discovery: Discovery, told: Told, names: Names) -> None:
    spelled = ["10.0.0.1:80", "[::1]:8000", "[2001:DB8:0:0:0:0:0:1]:8000", "[::ffff:10.0.0.1]:80"]
    discovery.update(policy(*spelled))
    assert told.addresses() == ["10.0.0.1:80", "[::1]:8000", "[2001:db8::1]:8000", "[::ffff:10.0.0.1]:80"]
    assert [endpoint.name for endpoint in told[-1][1]] == spelled
    assert not names.asked


async def test_capacity_and_labels_come_along(discovery: Discovery, told: Told) -> None:
    text = {"version": 1, "pools": [{"name": "p", "endpoints": [{"address": "10.0.0.1:80", "capacity": 4}]}]}
    discovery.update(Policy.model_validate(text))
    assert told == [("p", (EndpointSpec("10.0.0.1:80", "10.0.0.1:80", 4, {}),))]
    text["pools"][0]["endpoints"][0] |= {"capacity": 5, "labels": {"gpu": "a100"}}
    discovery.update(Policy.model_validate(text))
    assert told[1:] == [("p", (EndpointSpec("10.0.0.1:80", "10.0.0.1:80", 5, {"gpu": "a100"}),))]


async def test_the_same_policy_again_tells_nothing(discovery: Discovery, told: Told) -> None:
    discovery.update(policy("10.0.0.1:80"))
    discovery.update(policy("10.0.0.1:80"))
    assert len(told) == 1


async def test_a_name_that_leads_to_no_machine_is_left_out_and_told_once(
    discovery: Discovery, told: Told, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    names.answers = {"good": ["10.0.0.2"], "sinkhole": ["0.0.0.0"], "many": ["224.0.0.1"]}
    for _ in range(2):
        discovery.update(policy("good:80", "sinkhole:80", "many:80"))
        await until(lambda: told)
    assert told.addresses() == ["10.0.0.2:80"]
    assert caplog.text.count("sinkhole:80 is left out: its address 0.0.0.0 is of no machine") == 1


async def test_a_fault_in_looking_up_a_name_ends_nothing(discovery: Discovery, told: Told, names: Names) -> None:
    names.answers = {"odd": ZeroDivisionError("odd")}
    discovery.update(policy("odd:80", "10.0.0.1:80"))
    await until(lambda: told)
    assert told.addresses() == ["10.0.0.1:80"]
    names.answers = {"odd": ["10.0.0.2"]}
    await until(lambda: told.addresses() == ["10.0.0.2:80", "10.0.0.1:80"])


async def test_a_pool_with_names_waits_until_each_was_tried(
    discovery: Discovery, told: Told, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    names.answers = {"good": ["10.0.0.2"], "bad": OSError("Name or service not known")}
    discovery.update(policy("10.0.0.1:80", "good:80", "bad:80"))
    assert told == []
    await until(lambda: told)
    assert told.addresses() == ["10.0.0.1:80", "10.0.0.2:80"]
    await until(lambda: names.asked.count("bad") > 3)
    assert [r.getMessage() for r in caplog.records] == [
        "bad does not resolve (Name or service not known): it is left out until it resolves"
    ]
    names.answers["bad"] = ["10.0.0.3"]
    await until(lambda: told.addresses() == ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"])
    assert len(told) == 2


async def test_an_unanswered_name_does_not_hold_the_pool_for_ever(
    discovery: Discovery, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xds_server.discovery.names._DEADLINE_S", 0.05)
    discovery.update(policy("10.0.0.1:80", "silent:80"))
    await until(lambda: told.addresses() == ["10.0.0.1:80"])


async def test_a_moved_name_moves_the_endpoint(discovery: Discovery, told: Told, names: Names) -> None:
    names.answers = {"gpu": ["10.0.0.1"]}
    discovery.update(policy("gpu:80"))
    await until(lambda: told.addresses() == ["10.0.0.1:80"])
    names.answers["gpu"] = ["10.0.0.9"]
    await until(lambda: told.addresses() == ["10.0.0.9:80"])
    assert told[-1][1][0].name == "gpu:80"


async def test_round_robin_dns_makes_no_new_endpoints(discovery: Discovery, told: Told, names: Names) -> None:
    names.answers = {"gpu": ["10.0.0.1", "10.0.0.2"]}
    discovery.update(policy("gpu:80"))
    await until(lambda: told)
    names.answers["gpu"] = ["10.0.0.2", "10.0.0.1"]
    await until(lambda: len(names.asked) >= 4)
    assert told.addresses() == ["10.0.0.1:80"] and len(told) == 1


@pytest.mark.parametrize("failure", [OSError("Temporary failure"), UnicodeError("label too long"), []])
async def test_the_last_good_address_is_kept(
    discovery: Discovery,
    told: Told,
    names: Names,
    failure: Sequence[str] | Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "xds_server")
    names.answers = {"gpu": ["10.0.0.1"]}
    discovery.update(policy("gpu:80"))
    await until(lambda: told)
    names.answers["gpu"] = failure
    asked = len(names.asked)
    await until(lambda: len(names.asked) >= asked + 4)
    names.answers["gpu"] = ["10.0.0.1"]
    await until(lambda: "gpu resolves again" in caplog.text)
    assert told.addresses() == ["10.0.0.1:80"] and len(told) == 1
    assert caplog.text.count("10.0.0.1 is kept") == 1


async def test_two_names_of_one_address(
    discovery: Discovery, told: Told, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    names.answers = {"a": ["10.0.0.1"], "b": ["10.0.0.1"]}
    discovery.update(policy("a:80", "b:80", "b:81", "10.0.0.1:81"))
    await until(lambda: told)
    await until(lambda: len(names.asked) >= 6)
    assert [(e.address, e.name) for e in told[-1][1]] == [("10.0.0.1:80", "a:80"), ("10.0.0.1:81", "b:81")]
    assert [r.getMessage() for r in caplog.records] == [
        "pool p: a:80 and b:80 are both 10.0.0.1:80: the first is used",
        "pool p: b:81 and 10.0.0.1:81 are both 10.0.0.1:81: the first is used",
    ]


async def test_one_name_in_two_pools_is_looked_up_once(discovery: Discovery, told: Told, names: Names) -> None:
    names.answers = {"gpu": ["10.0.0.1"]}
    discovery.update(policy(p=["gpu:80"], q=["gpu:80"]))
    await until(lambda: told.addresses("p") and told.addresses("q"))
    assert len(names.asked) == 1


async def test_gone_pools_and_names(discovery: Discovery, told: Told, names: Names) -> None:
    names.answers = {"gpu": ["10.0.0.1"]}
    discovery.update(policy(p=["gpu:80"], q=["10.0.0.2:80"]))
    await until(lambda: told.addresses("p"))
    discovery.update(policy(q=["10.0.0.2:80"]))
    assert told[-1] == ("p", ())
    asked = len(names.asked)
    await asyncio.sleep(0.2)
    assert len(names.asked) == asked


async def test_a_listener_that_fails_stops_nothing(names: Names, caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def fail(pool: str, endpoints: Sequence[EndpointSpec]) -> None:
        calls.append(pool)
        raise ZeroDivisionError

    names.answers = {"gpu": ["10.0.0.1"]}
    discovery = Discovery(fail, resolve=names, rng=Hurried())
    discovery.update(policy("gpu:80"))
    await until(lambda: calls)
    names.answers["gpu"] = ["10.0.0.2"]
    await until(lambda: len(calls) == 2)
    await discovery.close()
    assert "ZeroDivisionError" in caplog.text


async def test_the_system_resolver() -> None:
    resolve = Resolver()
    assert (await resolve("localhost"))[0] in {"127.0.0.1", "::1"}
    with pytest.raises(OSError):
        await resolve("no-such-host.invalid")


async def test_names_that_hang_hold_up_no_other(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the real resolver's own seam, since it was the loop's threads that hung names took."""
    asked: Counter[str] = Counter()
    let_go = threading.Event()

    def getaddrinfo(host: str, port: object, **kwargs: object) -> object:
        asked[host] += 1
        if host.startswith("slow"):
            let_go.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]

    monkeypatch.setattr("xds_server.discovery.names._DEADLINE_S", 1)
    monkeypatch.setattr("xds_server.discovery.resolver._USUAL_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    discovery = Discovery(told.change, rng=Hurried())
    try:
        hanging = [f"slow{number}:80" for number in range(200)]
        discovery.update(policy(p=hanging, q=["fast:80"]))
        await until(lambda: told.addresses("q") == ["10.0.0.1:80"])
        await until(lambda: told.addresses("p") == [])
        before = asked["fast"]
        await until(lambda: asked["fast"] > before + 3)
        assert {asked[name.removesuffix(":80")] for name in hanging} == {1}, "one thread for a name, however often"
        let_go.set()
        await until(lambda: len(told.addresses("p") or ()) == 1)  # all have one address
    finally:
        let_go.set()
        await discovery.close()


async def test_a_thousand_names_are_gone_over_once_not_at_each_try() -> None:
    looks = []
    answers = {f"gpu-{number}": ["10.0.0.1"] for number in range(1000)}
    resolver = Names(**answers)
    names = KeptNames(lambda: looks.append(len(resolver.asked)), resolver, Hurried())
    names.want(answers.keys())
    await until(lambda: len(resolver.asked) >= 3000)
    assert len(looks) == 1
    resolver.answers = {**answers, "gpu-7": ["10.0.0.2"], "gpu-8": OSError("no such name")}
    await until(lambda: len(looks) > 1)
    assert (names.address("gpu-7"), names.address("gpu-8"), len(looks)) == ("10.0.0.2", "10.0.0.1", 2)
    await names.close()


def followed(count: int) -> Policy:
    """Pools whose source is a file that is not there."""
    nowhere = {"file": {"path": "/nowhere"}}
    pools = [{"name": f"p{number}", "models": [f"m{number}"], "discovery": nowhere} for number in range(count)]
    return Policy.model_validate({"version": 1, "pools": pools})


async def test_a_remembered_endpoint_that_cannot_be_is_left_out(told: Told) -> None:
    good = {"host": "10.0.0.1", "port": 8000, "name": "good", "capacity": 2.5, "labels": {}, "uid": ""}
    bad = [
        {**good, "host": "10.0.0.2", **wrong} for wrong in ({"capacity": 0}, {"capacity": float("nan")}, {"port": 0})
    ]
    discovery = Discovery(told.change, known={"p0": [*bad, good]}, rng=Hurried())
    discovery.update(followed(1))
    await until(lambda: told.addresses("p0") == ["10.0.0.1:8000"])
    await discovery.close()


async def test_another_thread_may_ask_for_statuses_while_pools_come_and_go(told: Told) -> None:
    discovery, few, many = Discovery(told.change, rng=Hurried()), followed(1), followed(40)
    done, faults = threading.Event(), list[Exception]()

    def look() -> None:
        while not done.is_set():
            try:
                discovery.statuses()
            except RuntimeError as fault:
                faults.append(fault)

    interval_s = sys.getswitchinterval()
    thread = threading.Thread(target=look)
    try:
        sys.setswitchinterval(1e-6)
        thread.start()
        for _ in range(20):
            for policy in (many, few):
                discovery.update(policy)
                await asyncio.sleep(0)
    finally:
        done.set()
        sys.setswitchinterval(interval_s)
        thread.join()
        await discovery.close()
    assert not faults
