"""Trimtab in front of llama.cpp's own server, which has no histogram of first tokens and refuses nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.harness import until
from tests.live.chats import chat, distinct_prompt, evenly
from tests.live.engines import NO_LLAMACPP, LlamaCpp, llamacpp_python
from tests.live.rig import Note, Rig, in_front_of, signal_table
from tests.live.tiny_model import CONTEXT, NAME, write_model

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(llamacpp_python() is None, reason=NO_LLAMACPP),
]

SLOTS = 2
SHOWN = ("waiting", "running", "generated_tokens", "prompt_tokens", "prefix_queries", "prefix_hits", "prefix_hit_rate")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory, note: Note) -> AsyncIterator[Rig[LlamaCpp]]:
    folder = tmp_path_factory.mktemp("llamacpp")
    engine = LlamaCpp(write_model(folder / NAME, layers=8), slots=SLOTS)
    # Its own question for a free slot is let through as well.
    listen = {"paths": ["/v1/", "/slots"]}
    async with in_front_of([engine], folder, listen=listen, engine="llamacpp") as rig:
        note(f"\n{next(line for line in engine.log().splitlines() if line.startswith('llama.cpp (xllamacpp'))}")
        yield rig


async def test_first_tokens_are_those_that_clients_see(rig: Rig[LlamaCpp], note: Note) -> None:
    """It has no times of its own to compare with; a client sees what we see, and Envoy and the SDK after that."""
    count, total = await rig.first_tokens(rig.engines[0])
    chats = await evenly(20, 0.5, lambda number: chat(rig.trimtab.url, distinct_prompt(number, 40), 16))
    assert {(each.error, each.finish_reason, each.tokens) for each in chats} == {("", "length", 16)}

    await until(lambda: _seen(rig, count + len(chats)), 5, "every first token")
    ours = ((await rig.first_tokens(rig.engines[0]))[1] - total) / len(chats)
    clients = sum(each.ttft_s or 0 for each in chats) / len(chats)
    note(
        f"\n{len(chats)} streamed chats of {chats[0].prompt_tokens} tokens, mean TTFT: observed {ours * 1000:.1f} ms, "
        f"by the clients {clients * 1000:.1f} ms"
    )
    assert 0 < ours <= clients <= 1.2 * ours + 0.02


async def test_every_signal(rig: Rig[LlamaCpp], note: Note) -> None:
    """With more streams than slots: running and waiting are its slots' own, and what it does not show says so."""
    load = [
        asyncio.create_task(chat(rig.trimtab.url, distinct_prompt(100 + number, 40), 600))
        for number in range(SLOTS + 2)
    ]

    async def queued() -> bool:
        signals = (await rig.endpoint(rig.engines[0]))["signals"]
        return (signals["running"], signals["waiting"]) == (SLOTS, 2)

    await until(queued, 20, "two running and two waiting streams")
    _, slots, _ = await rig.engines[0].ask("GET", "/slots")
    (shown,) = await rig.signals()
    assert [slot["is_processing"] for slot in slots] == [True] * SLOTS
    chats = await asyncio.gather(*load)
    assert all(each.whole for each in chats), chats
    note("\n" + signal_table([shown], ("value",)))
    signals = shown["signals"]
    known = {name for name, row in signals.items() if row["value"] is not None}
    assert known >= set(SHOWN) - {"prefix_hit_rate"}
    assert {signals[name]["source"] for name in known} == {"scrape"}
    assert signals["max_model_len"]["value"] == CONTEXT
    for name in ("ttft", "inter_token", "preemptions", "adapters"):
        assert signals[name] == {"value": None, "why": "the engine has no metric for it"}
    assert signals["kv_usage"] == {"value": None, "why": "llamacpp:kv_cache_usage_ratio is not on the page"}


async def test_a_wait_for_a_slot_is_in_the_ttft(rig: Rig[LlamaCpp], note: Note) -> None:
    """A stream that waits gets no header; what it waits is in its TTFT, here as for the client."""
    engine = rig.engines[0]
    count, _ = await rig.first_tokens(engine)
    long = [asyncio.create_task(chat(rig.trimtab.url, distinct_prompt(200 + each, 40), 300)) for each in range(SLOTS)]
    await until(lambda: _seen(rig, count + SLOTS), 20, "both slots to work")
    _, total = await rig.first_tokens(engine)
    waited = await chat(rig.trimtab.url, distinct_prompt(300, 40), 4)
    await asyncio.gather(*long)
    await until(lambda: _seen(rig, count + SLOTS + 1), 5, "its first token")
    observed = (await rig.first_tokens(engine))[1] - total
    assert waited.whole
    assert waited.ttft_s is not None
    note(f"\nwaited for a slot: TTFT by the client {waited.ttft_s:.2f} s, observed {observed:.2f} s")
    assert observed == pytest.approx(waited.ttft_s, rel=0.2)


async def test_errors_are_its_own_and_cost_it_nothing(rig: Rig[LlamaCpp], note: Note) -> None:
    """A client's mistakes arrive as it answered them, once each, and are held against nobody."""
    engine = rig.engines[0]
    before = (await rig.endpoint(engine))["error_share"]
    too_long = await chat(rig.trimtab.url, distinct_prompt(400, 4 * CONTEXT), 4)
    path, _, _ = await rig.ask("POST", "/v1/nothing", json={"model": NAME})
    malformed = await chat(rig.trimtab.url, "hello", 4, temperature="hot")
    other, body, _ = await rig.ask(
        "POST",
        "/v1/chat/completions",
        json={"model": "another", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]},
    )
    note(
        f"\ntoo long: {too_long.status} {too_long.error}\n\nwrong path: {path}\n\nwrong type: {malformed.status} "
        f"{malformed.error}\n\nanother model's name: {other}, answered as {body['model']}"
    )
    assert (too_long.status, "exceed_context_size_error" in too_long.error) == (400, True)
    assert (path, other) == (404, 200)
    after = await rig.endpoint(engine)
    assert after["error_share"] <= before
    assert (after["state"], after["failures_in_row"]) == ("up", 0)
    assert await rig.metric("trimtab_rejections_total") == 0


async def test_no_free_slot_is_saturation(rig: Rig[LlamaCpp], note: Note) -> None:
    """The only refusal that it has."""
    load = [asyncio.create_task(chat(rig.trimtab.url, distinct_prompt(500 + each, 40), 600)) for each in range(SLOTS)]

    async def busy() -> bool:
        return (await rig.engines[0].metrics())["llamacpp:requests_processing"] == SLOTS

    await until(busy, 20, "both slots to work")
    status, body, _ = await rig.engines[0].ask("GET", "/slots?fail_on_no_slot=1")
    through, _, _ = await rig.ask("GET", "/slots?fail_on_no_slot=1")
    await asyncio.gather(*load)

    async def read() -> bool:
        return await rig.metric("trimtab_rejections_total", verdict="saturated") > 0

    await until(read, 5, "the refusal to be read")
    note(f"\nno free slot: {status} {body}; through Envoy {through}; verdict saturated")
    assert (status, through) == (503, 503)


async def _seen(rig: Rig[LlamaCpp], first_tokens: float) -> bool:
    return (await rig.first_tokens(rig.engines[0]))[0] == first_tokens
