"""A process follows its policy file: what a user reads in the log, and what comes into force."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.harness import until
from trimtab.policy import Policy, PolicyFile
from trimtab.process.policy_follower import follow

GOOD = "version: 1\npools:\n- {name: NAME, endpoints: [{address: '10.0.0.1:8000'}]}\n"


@asynccontextmanager
async def following(file: Path, take: Callable[[Policy], None], refused: Callable[[], None]) -> AsyncIterator[None]:
    policy_file = PolicyFile(file)
    policy_file.load()
    task = asyncio.create_task(follow(policy_file, take, refused))
    yield
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_new_policy_is_taken_and_a_bad_one_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trimtab.process.policy_follower._PERIOD_S", 0.01)
    file = tmp_path / "policy.yaml"
    taken: list[str] = []
    refused: list[None] = []

    def take(policy: Policy) -> None:
        taken.append(policy.pools[0].name)
        if taken[-1] == "b":
            raise ZeroDivisionError

    file.write_text(GOOD.replace("NAME", "a"))
    async with following(file, take, lambda: refused.append(None)):
        file.write_text(GOOD.replace("NAME", "b"))
        await until(lambda: taken == ["b"])
        file.write_text(GOOD.replace("NAME", "C"))
        await until(lambda: refused)
        file.write_text(GOOD.replace("NAME", "d"))
        await until(lambda: taken == ["b", "d"])
    assert refused == [None]
    failed, why, so = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert failed == "a new policy was not taken in"
    assert why.startswith(f'{file}:3:10: pools[0].name: "C" must be')
    assert so == "the policy file is not used; the last good policy stays in force"
