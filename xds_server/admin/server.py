"""The pages for operators and their tools: read only, without secrets, on loopback by default."""

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web

from trimtab.pool import EndpointDecision, PoolDecision
from xds_server.admin.metrics import Metrics
from xds_server.admin.state import AdminState
from xds_server.ads.server import ClientRow
from xds_server.discovery import SourceStatus

__all__ = ["AdminState", "admin_app"]

_PAGES = {
    "/metrics": "metrics in the Prometheus text format",
    "/endpoints": "every endpoint with its weight, and why (JSON)",
    "/clients": "the Envoys that are connected, and what they have accepted (JSON)",
    "/policy": "the policy in force, with its defaults (JSON)",
    "/healthz": "200 while the process works",
    "/readyz": "200 while there is something to serve to Envoys, 503 with the reason else",
}

# Histograms since the engine's start: what they gained is shown instead.
_HISTOGRAMS = frozenset({"ttft", "inter_token"})

Json = dict[str, Any]


def admin_app(state: AdminState, metrics: Metrics, *, now: Callable[[], float] = time.time) -> web.Application:
    """The pages, as an application to be served on the policy's `services.admin`. `now` is Unix seconds."""

    async def index(request: web.Request) -> web.Response:
        return web.Response(text="".join(f"{path:<12}{what}\n" for path, what in _PAGES.items()))

    async def show_metrics(request: web.Request) -> web.Response:
        body, content_type = await metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def endpoints(request: web.Request) -> web.Response:
        sources = state.sources()
        pools = [
            (_pool(decision, state.unresolved(name), sources.get(name), state.splits.get(name), now()), decision)
            for name, decision in state.decisions.items()
        ]
        # In a thread, as /metrics: a thousand endpoints take longer than a step of the weight loop.
        body = await asyncio.to_thread(lambda: "".join(_endpoints_page(pools)).encode())
        return web.Response(body=body, content_type="application/json")

    async def clients(request: web.Request) -> web.Response:
        return _json({"clients": [_client(row, now()) for row in state.clients()]})

    async def policy(request: web.Request) -> web.Response:
        return _json(state.policy.model_dump(mode="json"))

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        if state.draining:
            return web.Response(status=503, text="draining\n")
        if state.ready:
            return web.Response(text="ready\n")
        waiting = [pool.name for pool in state.policy.pools if pool.name not in state.decisions]
        cause = f"; no endpoints are known yet of: {', '.join(waiting)}" if waiting else ""
        return web.Response(status=503, text=f"nothing has been published to Envoys yet{cause}\n")

    app = web.Application()
    app.router.add_get("/", index)
    for handler in (show_metrics, endpoints, clients, policy, healthz, readyz):
        app.router.add_get(f"/{handler.__name__.removeprefix('show_')}", handler)
    return app


def _pool(
    decision: PoolDecision,
    unresolved: Sequence[str],
    source: SourceStatus | None,
    split: Mapping[str, float] | None,
    now: float,
) -> Json:
    """A pool on `/endpoints`, but for its endpoints: when it was decided, and what is not told of one of them.

    `unresolved` are those that have no address: their names do not resolve. `discovery` is null for a pool that
    the policy lists, and `split` for one without fallbacks.
    """
    return {
        "at": decision.at,
        "age_s": now - decision.at,
        "bytes_per_token": decision.bytes_per_token,
        "discovery": source and _source(source, now),
        "unresolved": list(unresolved),
        "split": split,
    }


def _source(status: SourceStatus, now: float) -> Json:
    """A pool's source on `/endpoints`: what it found, and since when and why that is not what it says now."""
    return {
        "source": status.kind,
        "found": status.listed,
        "answered_s_ago": None if status.answered_at is None else now - status.answered_at,
        "stale_since": status.stale_since,
        "why": status.why or None,
        "errors": status.errors,
    }


def _endpoint(decision: EndpointDecision) -> Json:
    """An endpoint on `/endpoints`: all of `EndpointDecision` and `EndpointView`; null is UNKNOWN."""
    view = decision.view
    return {
        "name": view.name,
        "address": decision.id.address,
        "incarnation": decision.id.incarnation,
        "state": decision.state,
        "reason": decision.reason,
        "until": decision.until,
        "takes_work": decision.takes_work,
        "weight": decision.weight,
        "share": decision.share,
        "classes": {
            one.name: {"takes_work": one.takes_work, "weight": one.weight, "share": one.share}
            for one in decision.classes
        },
        "score": decision.score,
        "prediction_error": decision.prediction_error,
        "effective_score": decision.effective_score,
        "breakdown": dict(decision.breakdown),
        "capacity": view.capacity,
        "labels": dict(view.labels),
        "ttft_s": view.ttft_s,
        "ttft_samples": view.ttft_samples,
        "ttft_recent_s": view.ttft_recent_s,
        "ttft_p99_s": view.ttft_p99_s,
        "inter_token_s": view.inter_token_s,
        "inter_token_p99_s": view.inter_token_p99_s,
        "tokens_per_s": view.tokens_per_s,
        "tokens_per_s_best": view.tokens_per_s_best,
        "prompt_tokens_per_s": view.prompt_tokens_per_s,
        "preemptions_per_s": view.preemptions_per_s,
        "prefix_hit_rate": view.prefix_hit_rate,
        "engine_ttft_s": asdict(view.engine_ttft_s) if view.engine_ttft_s else None,
        "engine_inter_token_s": asdict(view.engine_inter_token_s) if view.engine_inter_token_s else None,
        "prompt_bytes_mean": view.prompt_bytes_mean,
        "prompt_bytes_std": view.prompt_bytes_std,
        "failures_in_row": view.failures_in_row,
        "error_share": view.error_share,
        "error_samples": view.error_samples,
        "in_flight": view.in_flight,
        "ended_early": view.ended_early,
        "ended_early_bytes": view.ended_early_bytes,
        "in_flight_reported": view.in_flight_reported,
        "lease_difference": view.lease_difference,
        "awaiting_token": view.awaiting_token,
        "newest_sent_at": view.newest_sent_at,
        "outstanding_prompt_bytes": view.outstanding_prompt_bytes,
        "prompt_bytes_sent": view.prompt_bytes_sent,
        "oldest_wait_s": view.oldest_wait_s,
        "signals": {name: value for name, value in asdict(view.signals).items() if name not in _HISTOGRAMS},
        "signals_age_s": view.signals_age_s,
        "signals_unknown": dict(view.signals_unknown),
        "signal_origins": {signal: asdict(origin) for signal, origin in view.signal_origins.items()},
        "moved_at": view.moved_at,
        "frozen_s": view.frozen_s,
        "probe": asdict(decision.probe),
        "custom": {name: asdict(reading) for name, reading in view.custom.items()},
    }


def _client(row: ClientRow, now: float) -> Json:
    """An Envoy on `/clients`, with what it has accepted of each type it asked for."""
    return {
        "node": row.node,
        "protocol": row.protocol,
        "since": row.since,
        "age_s": now - row.since,
        "types": {
            type_url.name: {"accepted_version": seen.accepted_version, "refusal": seen.refusal or None}
            for type_url, seen in row.types.items()
            if seen.accepted_version or seen.refusal
        },
    }


def _endpoints_page(pools: Iterable[tuple[Json, PoolDecision]]) -> Iterator[str]:
    """The page `/endpoints`, in pieces: as one tree of objects it would keep the garbage collector busy."""
    yield '{\n  "pools": {'
    before_pool = "\n    "
    for pool, decision in pools:
        opening, _, closing = _dumped({**pool, "endpoints": [None]}, "    ").rpartition("null")
        yield f"{before_pool}{json.dumps(decision.pool)}: {opening}"
        before = ""
        for endpoint in decision.endpoints:
            yield before + _dumped(_endpoint(endpoint), "        ")
            before = ",\n        "
        yield closing
        before_pool = ",\n    "
    yield "\n  }\n}\n"


def _json(page: Json) -> web.Response:
    return web.Response(text=_dumped(page) + "\n", content_type="application/json")


def _dumped(value: Json, indent: str = "") -> str:
    text = json.dumps(_finite(value), indent=2, allow_nan=False)
    return text.replace("\n", f"\n{indent}")  # JSON has no line breaks in its texts


def _finite(value: Any) -> Any:
    """The value with null in place of numbers that JSON does not have."""
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value
