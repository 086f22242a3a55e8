"""A client that leaves while Envoy is still connecting: the engine never hears of it, and neither is it counted."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envoy.rig import running
from tests.harness import Body, until
from trimtab.observation.kinds import AttemptEnded, AttemptStarted, Outcome

pytestmark = pytest.mark.integration


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address at which connections are neither accepted nor refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        host, port = listener.getsockname()
        yield f"{host}:{port}"


async def test_a_client_that_leaves_before_there_is_a_connection_made_no_attempt(tmp_path: Path, deaf: str) -> None:
    pool = {"name": "p", "endpoints": [{"address": deaf}], "retries": {"attempts": 0}}
    async with running(tmp_path, [lambda number, call: Body()], pools=lambda engines: [pool]) as rig:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rig.chat(), 0.3)
        assert (await rig.chat()).status == 503
        await until(lambda: rig.seen(AttemptEnded), what="the attempt that timed out")
        assert [attempt.outcome for attempt in rig.seen(AttemptEnded)] == [Outcome.UNREACHABLE]
        assert rig.seen(AttemptStarted) == []
