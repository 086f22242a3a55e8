"""Trimtab in front of two real vLLM servers, one three times as deep as the other. The last steps break one of them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest
import pytest_asyncio

from tests.harness import until
from tests.live.chats import Chat, chat, distinct_prompt, evenly
from tests.live.engines import NO_VLLM, Vllm, vllm_command
from tests.live.rig import Note, Rig, in_front_of, signal_table
from tests.live.tiny_model import CONTEXT, NAME, write_model

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(vllm_command() is None, reason=NO_VLLM),
]

SEQUENCES, QUEUED = 4, 12  # decoded at once; in one engine in all

# Probes begin with the steps that need them: to the engines' counters, which the others compare, one is a request.
PROBE_INTERVAL_S = 5.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory, note: Note) -> AsyncIterator[Rig[Vllm]]:
    folder = tmp_path_factory.mktemp("vllm")
    engines = [
        Vllm(write_model(folder / f"layers-{layers}", layers=layers), sequences=SEQUENCES, queued=QUEUED)
        for layers in (8, 24)
    ]
    started = time.monotonic()
    async with in_front_of(engines, folder, signals={"orca": True}) as rig:
        _, version, _ = await engines[0].ask("GET", "/version")
        note(f"vLLM {version['version']}: both healthy and behind Envoy after {time.monotonic() - started:.0f} s")
        yield rig


async def gained(engine: Vllm, before: dict[str, float], name: str) -> float:
    """What a counter of the engine's own page has gained."""
    return (await engine.metrics()).get(f"vllm:{name}", 0) - before.get(f"vllm:{name}", 0)


def all_whole(chats: list[Chat] | Any) -> bool:
    return all(each.whole for each in chats)


async def test_streamed_chats(rig: Rig[Vllm], note: Note) -> None:
    """All tokens arrive, the engines' own count of them is the client's, and both engines get work."""
    before = [await engine.metrics() for engine in rig.engines]
    chats = await evenly(16, 0.2, lambda number: chat(rig.trimtab.url, distinct_prompt(number, 40), 16))
    assert all_whole(chats), chats
    assert {(each.finish_reason, each.tokens) for each in chats} == {("length", 16)}
    split = [
        await gained(engine, page, "request_success_total") for engine, page in zip(rig.engines, before, strict=True)
    ]
    assert sum(split) == 16
    note(f"16 streamed chats: {split[0]:.0f} by the quick engine, {split[1]:.0f} by the slow one")
    assert all(split)


async def test_first_tokens_are_the_engines_own(rig: Rig[Vllm], note: Note) -> None:
    """The mean of the TTFT that was observed is that of vLLM's histogram within 20 % and 5 ms."""
    before = [(await engine.metrics(), await rig.first_tokens(engine)) for engine in rig.engines]
    for burst in range(8):
        chats = await asyncio.gather(
            *(chat(rig.trimtab.url, distinct_prompt(100 + 4 * burst + each, 200), 8) for each in range(4))
        )
        assert all_whole(chats), chats
    note("\n| engine | streams | TTFT by vLLM | TTFT observed |\n|---|---|---|---|")
    means = []
    for name, engine, (page, (count, total)) in zip(("quick", "slow"), rig.engines, before, strict=True):
        streams = await gained(engine, page, "time_to_first_token_seconds_count")
        assert streams > 0

        async def all_seen(engine: Vllm = engine, expected: float = count + streams) -> bool:
            return (await rig.first_tokens(engine))[0] == expected

        await until(all_seen, 5, "every first token")
        theirs = await gained(engine, page, "time_to_first_token_seconds_sum") / streams
        ours = ((await rig.first_tokens(engine))[1] - total) / streams
        note(f"| {name} | {streams:.0f} | {theirs * 1000:.1f} ms | {ours * 1000:.1f} ms |")
        means.append((ours, theirs))
    for ours, theirs in means:
        assert abs(ours - theirs) <= 0.2 * theirs + 0.005


async def test_every_signal(rig: Rig[Vllm], note: Note) -> None:
    """While there is work, all that this vLLM shows is known; adapters, which it has not, are unknown and say why."""

    async def work(engine: Vllm) -> None:
        """Straight to it: behind Trimtab the slow one may begin no stream between two readings of the command."""
        url = f"http://{engine.address}"
        await evenly(120, 0.5, lambda number: chat(url, distinct_prompt(200 + number, 40), 16))

    load = [asyncio.create_task(work(engine)) for engine in rig.engines]
    shown: Sequence[dict[str, Any]] = ()

    async def all_told() -> bool:
        nonlocal shown
        shown = await rig.signals()
        return all(each["signals"]["ttft"]["value"] for each in shown)

    await until(all_told, 60, "a TTFT of both")
    for task in load:
        task.cancel()
    await asyncio.wait(load)
    note("\n" + signal_table(shown, ("quick", "slow")))
    for each in shown:
        signals = dict(each["signals"])
        adapters = signals.pop("adapters")
        assert adapters == {"value": None, "why": "vllm:lora_requests_info is not on the page"}
        assert [name for name, row in signals.items() if row["value"] is None] == []
        assert {row["source"] for row in signals.values()} == {"scrape"}
        assert max(row["age_s"] for row in signals.values()) < 5
        assert signals["max_model_len"]["value"] == CONTEXT


async def test_prefix_hits(rig: Rig[Vllm], note: Note) -> None:
    """The same long prompt again and again: nearly all of it is in the cache, and that is seen."""
    prompt = distinct_prompt(300, 200)
    first = await chat(rig.trimtab.url, prompt, 4)
    for _ in range(11):
        assert all_whole([await chat(rig.trimtab.url, prompt, 4)])

    async def hit() -> bool:
        rates = [(await rig.endpoint(engine))["prefix_hit_rate"] for engine in rig.engines]
        return max(rate or 0 for rate in rates) > 0.5

    await until(hit, 10, "a prefix hit rate above one half")
    rates = [(await rig.endpoint(engine))["prefix_hit_rate"] for engine in rig.engines]
    note(f"\nprefix hit rate, 12 times one prompt of {first.prompt_tokens} tokens: {rates}")


async def test_load_in_answers_headers(rig: Rig[Vllm], note: Note) -> None:
    """vLLM tells its queue and cache in a header when it is asked; we read it, and the client does not get it."""
    asked = {"model": NAME, "max_tokens": 24, "ignore_eos": True, "messages": [{"role": "user", "content": "hello"}]}
    wish = {"endpoint-load-metrics-format": "TEXT"}
    _, _, headers = await rig.engines[0].ask("POST", "/v1/chat/completions", json=asked, headers=wish)
    note(f"\nasked directly: `endpoint-load-metrics: {headers['endpoint-load-metrics']}`")
    told = set()
    for _ in range(12):
        status, body, headers = await rig.ask("POST", "/v1/chat/completions", json=asked)
        assert (status, body["usage"]["completion_tokens"]) == (200, 24)
        assert "endpoint-load-metrics" not in {name.lower() for name in headers}
        for engine in rig.engines:
            origins = (await rig.endpoint(engine))["signal_origins"]
            told |= {(signal, origin["metric"]) for signal, origin in origins.items() if origin["source"] == "orca"}
    assert told == {
        ("waiting", "named_metrics.num_requests_waiting"),
        ("kv_usage", "named_metrics.kv_cache_usage_perc"),
    }


@pytest.mark.parametrize("gate", [False, True])
async def test_a_full_engine_is_saturated(rig: Rig[Vllm], note: Note, gate: bool) -> None:
    """Far more than both take at once: every refusal of vLLM is read as saturation, and it ends with the burst.

    vLLM looks at its queue before its 200 and again after it, so part of what it refuses are streams that have begun.
    """
    if gate:
        await rig.change(gate={"enabled": True})
    read_before = await rig.verdicts()
    before = [await engine.metrics() for engine in rig.engines]
    chats = await asyncio.gather(*(chat(rig.trimtab.url, distinct_prompt(400 + each, 40), 48) for each in range(48)))
    refused = [
        await gained(engine, page, "admission_rejections_total")
        for engine, page in zip(rig.engines, before, strict=True)
    ]
    assert sum(refused) > 0

    async def all_read() -> bool:
        return (await rig.verdicts() - read_before).total() >= sum(refused)

    await until(all_read, 5, "every refusal to be read")
    verdicts = await rig.verdicts() - read_before
    whole, broken = [each for each in chats if each.whole], [each for each in chats if not each.whole]
    in_stream = [each for each in broken if each.status is None]
    note(
        f"\n{len(chats)} streams at once, gate {'on' if gate else 'off'}, the engines take {QUEUED} each: "
        f"{len(whole)} whole; vLLM refused {refused} attempts, verdicts {dict(verdicts)}; the clients got "
        f"{len(broken) - len(in_stream)} times 503 and {len(in_stream)} times 200 with an error event"
    )
    assert verdicts == {"saturated": sum(refused)}
    assert len(whole) >= QUEUED
    assert {each.status for each in broken} <= {503, None}
    if gate:
        assert in_stream == []
        await rig.change(gate={"enabled": False})
    else:
        assert all("currently busy" in each.error for each in broken)
    await until(lambda: _serves(rig), 30, "an answer after the burst")


async def test_a_hung_engine(rig: Rig[Vllm], note: Note) -> None:
    """The quick engine's core is stopped: health is still 200, and nothing comes. Nothing is lost when it goes on."""
    hung = rig.engines[0]
    core = hung.core
    await rig.change(probe={"interval_s": PROBE_INTERVAL_S})
    await until(lambda: _serves(rig), 30, "an answer")
    core.send_signal(SIGSTOP)
    stopped_at = time.time()
    try:
        health = await hung.health()
        waiting_at = time.time()
        await until(lambda: _is_out(rig, hung), 2 * PROBE_INTERVAL_S + 1, "the hung engine to be out")
        out_s = time.time() - waiting_at
        reason = (await rig.endpoint(hung))["reason"]
        note(f"\nhung core, no traffic: /health {health}, out after {out_s:.1f} s: {reason}")
        load = asyncio.create_task(
            evenly(40, 0.5, lambda number: chat(rig.trimtab.url, distinct_prompt(500 + number, 20), 8))
        )
        shares = []
        for _ in range(10):
            await asyncio.sleep(2)
            shares.append(round((await rig.endpoint(hung))["share"], 3))
        seen = await rig.endpoint(hung)
        note(
            f"\nhung core under 2 streams/s: /health {health}, scraped age {seen['signals_age_s']:.1f} s, running "
            f"{seen['signals']['running']}, share every 2 s {shares}, in flight {seen['in_flight']}: {seen['reason']}"
        )
    finally:
        core.send_signal(SIGCONT)
    healed_at = time.time()
    chats = await load
    stuck = [each for each in chats if each.sent_at + 1 < healed_at < each.sent_at + (each.ttft_s or 0)]
    waits = [round(each.sent_at - stopped_at, 1) for each in stuck]
    note(f"of {len(chats)} streams {len(stuck)} met it, sent at {waits} s; all ended whole: {all_whole(chats)}")
    assert health == 200
    assert all_whole(chats), chats
    assert shares[-1] < 0.1
    assert stuck == []
    await until(lambda: _has_its_share(rig, hung), 90, "the healed engine to be back")
    note(f"it had its share back within {time.time() - healed_at:.0f} s")


async def test_a_killed_core(rig: Rig[Vllm], note: Note) -> None:
    """The quick engine's core dies with streams on it: they break with an error. Once it is gone no request fails."""
    dead = rig.engines[0]
    await until(lambda: _has_its_share(rig, dead), 90, "the quick engine to have its share")
    running = [asyncio.create_task(chat(rig.trimtab.url, distinct_prompt(600 + each, 20), 300)) for each in range(6)]

    async def decodes() -> bool:
        return (await dead.metrics())["vllm:num_requests_running"] > 0

    await until(decodes, 20, "a stream on the quick engine")
    dead.core.send_signal(SIGKILL)
    met = await evenly(4, 0.1, lambda number: chat(rig.trimtab.url, distinct_prompt(700 + number, 20), 8))

    async def gone() -> bool:
        return not dead.alive

    await until(gone, 20, "vLLM to end itself")
    waiting_at = time.time()
    await until(lambda: _is_out(rig, dead), 2 * PROBE_INTERVAL_S + 1, "the dead engine to be out")
    out_s = time.time() - waiting_at
    note(f"\nkilled core: out {out_s:.1f} s after it was gone: {(await rig.endpoint(dead))['reason']}")
    # One after the other: they have to be answered by the slow engine alone.
    broken, met_broken = ([each for each in chats if not each.whole] for chats in (await asyncio.gather(*running), met))
    after = [await chat(rig.trimtab.url, distinct_prompt(800 + number, 20), 4) for number in range(20)]
    seen = await rig.endpoint(dead)
    note(
        f"\nkilled core: {len(broken)} streams that it had broke with {Counter(each.error for each in broken)}; "
        f"of 4 sent while it died {len(met_broken)} failed with {Counter(each.error for each in met_broken)}; "
        f"of 20 after that {sum(not each.whole for each in after)}; {seen['state']}: {seen['reason']}"
    )
    assert broken
    assert all_whole(after), after
    assert seen["state"] != "up"


async def _serves(rig: Rig[Vllm]) -> bool:
    return (await chat(rig.trimtab.url, "hello", 1)).whole


async def _has_its_share(rig: Rig[Vllm], engine: Vllm) -> bool:
    """A third of the work, to a request more: an engine without work would not be tried again."""
    await chat(rig.trimtab.url, distinct_prompt(time.time_ns() % 100_000, 10), 4)
    return bool((await rig.endpoint(engine))["share"] > 1 / 3)


async def _is_out(rig: Rig[Vllm], engine: Vllm) -> bool:
    return not (await rig.endpoint(engine))["takes_work"]
