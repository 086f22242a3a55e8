"""`trimtab up` in front of running engines, and what it and they say."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp

from tests.harness import until
from tests.live.engines import Engine
from tests.live.tiny_model import NAME
from tests.system.stack import Trimtab, running
from trimtab.lab.local_stack import on_free_ports
from trimtab.observation.kinds import Verdict

E = TypeVar("E", bound=Engine)
Note = Callable[[str], None]


@dataclass
class Rig(Generic[E]):
    """One pool of engines behind a real Envoy."""

    engines: Sequence[E]
    trimtab: Trimtab

    async def endpoint(self, engine: E) -> dict[str, Any]:
        """What `/endpoints` says of it."""
        return (await self.trimtab.endpoints(NAME))[engine.address]

    async def metric(self, name: str, engine: E | None = None, **labels: str) -> float:
        """One of Trimtab's own, summed over the engines if none is given."""
        return await self.trimtab.metric(name, **labels, **({"endpoint": engine.address} if engine else {}))

    async def verdicts(self) -> Counter[str]:
        """How many refusals and errors were read so far, by verdict."""
        return Counter(
            {
                verdict.value: int(seen)
                for verdict in Verdict
                if (seen := await self.metric("trimtab_rejections_total", verdict=verdict.value))
            }
        )

    async def change(self, **pool: Any) -> None:
        """Change fields of the pool while it runs, and wait until that is in force."""
        before = await self.metric("trimtab_policy_reloads_total")
        self.trimtab.policy["pools"][0] |= pool
        self.trimtab.write_policy()

        async def reloaded() -> bool:
            return await self.metric("trimtab_policy_reloads_total") > before

        await until(reloaded, 10, "the policy to be read again")

    async def first_tokens(self, engine: E) -> tuple[float, float]:
        """Count and sum [s] of the times to first token that Trimtab saw."""
        return (
            await self.metric("trimtab_ttft_seconds_count", engine),
            await self.metric("trimtab_ttft_seconds_sum", engine),
        )

    async def ask(self, method: str, path: str, **request: Any) -> tuple[int, Any, Mapping[str, str]]:
        """A request that is not streamed, through Envoy: status, body and headers of the answer."""
        async with (
            aiohttp.ClientSession(self.trimtab.url) as session,
            session.request(method, path, **request) as answer,
        ):
            return answer.status, await answer.json(content_type=None), dict(answer.headers)

    async def signals(self) -> Sequence[dict[str, Any]]:
        """What `trimtab signals` shows of each engine, in their order."""
        shown = json.loads(await self._run("signals", "--json"))
        endpoints = {each["name"]: each for each in shown["pools"][NAME]["endpoints"]}
        return [endpoints[engine.address] for engine in self.engines]

    async def _run(self, command: str, *arguments: str) -> bytes:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trimtab.cli", command, "-p", str(self.trimtab.policy_file), *arguments),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        return output


@asynccontextmanager
async def in_front_of(
    engines: Sequence[E], folder: Path, *, listen: Mapping[str, Any] | None = None, **pool: Any
) -> AsyncIterator[Rig[E]]:
    """Start the engines, wait for them, and put Trimtab in front of them."""
    policy = on_free_ports()
    policy["listen"] |= listen or {}
    policy["pools"] = [{"name": NAME, "endpoints": [{"address": engine.address} for engine in engines], **pool}]
    async with running(*engines):
        await asyncio.gather(*(engine.wait_healthy() for engine in engines))
        trimtab = Trimtab(folder, "up", policy)
        async with running(trimtab):
            await trimtab.wait_serving()
            yield Rig(engines, trimtab)


def signal_table(shown: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """What `trimtab signals` showed, as a Markdown table with a column for each engine."""
    lines = [f"| signal | {' | '.join(names)} | read from |", "|---|" + "---|" * (len(names) + 1)]
    for signal in shown[0]["signals"]:
        read = [each["signals"][signal] for each in shown]
        place = read[0].get("metric") or read[0].get("why") or read[0]["source"]
        lines.append(f"| {signal} | {' | '.join(_shown(each['value']) for each in read)} | {place} |")
    ages = [row["age_s"] for each in shown for row in each["signals"].values() if row["value"] is not None]
    return "\n".join([*lines, f"\nThe oldest was {max(ages):.1f} s old."])


def _shown(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case dict() if "p50" in value:
            return f"{value['mean'] * 1000:.0f} ms (mean of {value['count']:.0f})"
        case float() | int():
            return f"{value:.4g}" if value < 1e6 else f"{value:.0f}"
    return str(value)
