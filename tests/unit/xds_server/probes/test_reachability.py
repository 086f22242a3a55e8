"""Addresses that stand in for pools: reachable, gone, back, no longer wanted."""

import asyncio
import logging
import socket

import pytest

from tests.harness import free_port, until
from trimtab.policy.model import Pool
from xds_server.probes import reachability
from xds_server.probes.reachability import Reachability


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "_PERIOD_S", 0.02)
    monkeypatch.setattr(reachability, "_CONNECT_S", 0.2)


def pool(*addresses: str) -> Pool:
    fallbacks = [{"address": address} for address in addresses]
    return Pool.model_validate({"name": "p", "endpoints": [{"address": "10.0.0.1:80"}], "fallbacks": fallbacks})


async def test_an_address_that_goes_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xds_server")
    port = free_port()
    address = f"127.0.0.1:{port}"
    reach = Reachability()
    assert reach.is_reachable("p", address), "nothing is known of it"
    reach.update(pool(address), ())
    await until(lambda: not reach.is_reachable("p", address))
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
    await until(lambda: reach.is_reachable("p", address))
    server.close()
    await server.wait_closed()
    await until(lambda: not reach.is_reachable("p", address))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    await reach.close()


async def test_one_that_takes_no_connection_is_not_waited_for() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = f"127.0.0.1:{full.getsockname()[1]}"
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        reach = Reachability()
        reach.update(pool(address), ())
        await until(lambda: not reach.is_reachable("p", address))
        reach.reconfigure([pool()])
        assert reach.is_reachable("p", address), "nothing is known of what is not watched"
        await reach.close()
        for filler in fillers:
            filler.close()


async def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    address = "no-such-host.invalid:80"
    reach = Reachability()
    reach.update(pool(address), ())
    await until(lambda: not reach.is_reachable("p", address))
    await reach.close()
