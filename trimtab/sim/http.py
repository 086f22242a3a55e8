"""A simulated engine that speaks HTTP like vLLM 0.32.

Besides vLLM's own routes there are `/control/log` and `/control/state`, which tell the truth to tests, and
`/control/fault`; docs/results/engine-model.md describes them.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError

from trimtab.sim.answers import API_FORMATS, DONE, VERSION, ApiFormat, compact, error_event
from trimtab.sim.attempts import Attempt, AttemptLog, End
from trimtab.sim.batching import Refusal
from trimtab.sim.connection import break_off, json_response, ping, writer
from trimtab.sim.faults import ANSWERS, NO_TEMPLATE, PAGES, QUOTA, Fault, FaultInForce, NoOutput
from trimtab.sim.kinds import EngineKind
from trimtab.sim.live import LiveEngine
from trimtab.sim.replies import Reply, StreamedReply, frame
from trimtab.sim.requests import BACKLOG, BUSY, DEAD, Failure, RequestError, parse, parse_json

_MAX_BODY_BYTES = 256 * 2**20
_UNCOUNTED = ("/metrics", "/health", "/ping", "/load", "/version", "/control")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EngineServer:
    """One engine behind one port, in the running event loop. `name` is told in the header x-sim-engine."""

    def __init__(self, kind: EngineKind, *, model: str = "sim", name: str | None = None) -> None:
        self.kind = kind
        self.model = model
        self.name = name or kind.name
        self.engine = LiveEngine(kind, model)
        self.attempts = AttemptLog()
        self.address = ""  # host:port, once it has started
        self._fault: FaultInForce | None = None
        self._fault_timer: asyncio.TimerHandle | None = None
        self._in_flight = 0
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one. Raises OSError if that fails."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._count, self._like_vllm])
        app.router.add_get("/health", self._healthy)
        app.router.add_get("/ping", self._healthy)
        app.router.add_post("/ping", self._healthy)
        app.router.add_get("/version", self._version)
        app.router.add_get("/load", self._load)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        for api_format in API_FORMATS:
            app.router.add_post(api_format.path, partial(self._generate, api_format))
        app.router.add_get("/control/log", self._control_log)
        app.router.add_get("/control/state", self._control_state)
        app.router.add_post("/control/fault", self._control_fault)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.address = f"{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Cut what is open and stop listening."""
        self.set_fault(None)
        self.engine.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def set_fault(self, fault: Fault | None) -> None:
        """Put a fault in force in place of the one that is; None heals."""
        if self._fault_timer is not None:
            self._fault_timer.cancel()
            self._fault_timer = None
        if self._fault is not None:
            self._fault.over.set()
            self._fault = None
        self.engine.slow_down(1)
        if fault is None or fault.kind != "mute":
            self.engine.unmute()
        if fault is None:
            return
        self._fault = FaultInForce(fault)
        if fault.kind == "slow":
            self.engine.slow_down(fault.factor)
        elif fault.kind == "mute":
            self.engine.mute()
        if fault.for_s is not None:
            self._fault_timer = asyncio.get_running_loop().call_later(fault.for_s, self.set_fault, None)

    def state(self) -> dict[str, Any]:
        """What is going on in the engine."""
        return {
            "name": self.name,
            "kind": self.kind.name,
            "model": self.model,
            "running": self.engine.running,
            "waiting": self.engine.waiting,
            "kv_usage": self.engine.kv_usage,
            "generated_tokens": self.engine.generated_tokens,
            "attempts": self.attempts.count,
            "open": self._in_flight,
            "fault": None if self._fault is None else self._fault.fault.model_dump(exclude_unset=True),
        }

    async def _generate(self, api_format: ApiFormat, request: web.Request) -> web.StreamResponse:
        attempt = self.attempts.begin(api_format.path, request.headers)
        self._in_flight += 1
        try:
            return await self._answer(api_format, request, attempt)
        except asyncio.CancelledError:
            attempt.end("client_left")
            raise
        finally:
            self._in_flight -= 1

    async def _answer(self, api_format: ApiFormat, request: web.Request, attempt: Attempt) -> web.StreamResponse:
        body = await request.read()
        attempt.body_bytes = len(body)
        try:
            value = parse_json(body, request.content_type)
            generation = parse(api_format.form, value, self.model, self.kind)
        except RequestError as error:
            return self._fail(api_format, attempt, error.failure, "bad_request")
        answer = api_format.answer(generation, self.model)
        attempt.streamed = generation.stream
        attempt.prompt_tokens = generation.prompt_tokens
        attempt.output_tokens = answer.output_tokens
        reply = StreamedReply(answer, attempt) if generation.stream else Reply(answer, attempt)
        fault = self._strike(attempt)
        if fault is not None:
            response = await self._strike_before_headers(fault, api_format, request, reply)
            if response is not None:
                return response
        refusal = self.engine.refusal()
        if refusal is not None:
            failure = BUSY if refusal is Refusal.QUEUED_REQS else BACKLOG
            return self._fail(api_format, attempt, failure, "refused")
        sequences = self.engine.submit(generation.prompt_tokens, reply.choices)
        try:
            if isinstance(reply, StreamedReply):
                response = await self._stream(reply, request, fault)
            else:
                response = await self._whole(reply, request, fault)
        finally:
            for sequence in sequences:
                self.engine.cancel(sequence)
        attempt.end("complete")
        self.engine.metrics.observe("vllm:request_params_n", generation.sampling.branches)
        if generation.sampling.max_tokens is not None:
            self.engine.metrics.observe("vllm:request_params_max_tokens", generation.sampling.max_tokens)
        return response

    async def _stream(
        self, reply: StreamedReply, request: web.Request, fault: FaultInForce | None
    ) -> web.StreamResponse:
        response = await self._open_stream(request, reply.attempt)
        write = writer(request)
        if fault is not None:
            match fault.fault.kind:
                case "hang_after_headers":
                    await fault.over.wait()
                case "ping_first":
                    await ping(write, fault.fault.seconds)
                    reply.open(write)
                    await asyncio.sleep(fault.fault.role_lead_s)
                case "die_mid_stream" | "end_mid_stream" | "stall_mid_stream":
                    reply.stop_after = fault.fault.after_tokens
        reply.start(write)
        await reply.done.wait()
        if reply.stopped and fault is not None:
            match fault.fault.kind:
                case "die_mid_stream":
                    await break_off(request, reply.attempt, "died")
                case "end_mid_stream":
                    reply.attempt.end("truncated")
                case "stall_mid_stream":
                    await fault.over.wait()
                    reply.go_on(write)
                    await reply.done.wait()
        return response

    async def _whole(self, reply: Reply, request: web.Request, fault: FaultInForce | None) -> web.Response:
        await reply.done.wait()
        if fault is not None:
            match fault.fault.kind:
                case "hang_after_headers":
                    await fault.over.wait()
                case "die_mid_stream":
                    await break_off(request, reply.attempt, "died")
        headers = self._orca_header(request)
        reply.attempt.send_header(200)
        reply.attempt.tokens = reply.attempt.output_tokens
        return json_response(reply.answer.whole(reply.texts()), headers=headers)

    async def _open_stream(self, request: web.Request, attempt: Attempt) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        self._add_headers(response)
        response.enable_chunked_encoding()
        await response.prepare(request)
        attempt.send_header(200)
        return response

    def _orca_header(self, request: web.Request) -> dict[str, str]:
        """Load on request, as vLLM tells it: for whole answers only."""
        load = {
            "num_requests_waiting": float(self.engine.waiting),
            "kv_cache_usage_perc": self.engine.kv_usage,
        }
        match request.headers.get("endpoint-load-metrics-format", "").upper():
            case "JSON":
                value = f"JSON {json.dumps({'named_metrics': load})}"
            case "TEXT":
                value = "TEXT " + ", ".join(f"named_metrics.{name}={load[name]}" for name in load)
            case _:
                return {}
        return {"endpoint-load-metrics": value}

    def _strike(self, attempt: Attempt) -> FaultInForce | None:
        """The fault, if there is one that strikes this request."""
        fault = self._fault
        if fault is None or not fault.strikes():
            return None
        attempt.fault = fault.fault.kind
        return fault

    async def _strike_before_headers(
        self, fault: FaultInForce, api_format: ApiFormat, request: web.Request, reply: Reply
    ) -> web.StreamResponse | None:
        """Do what the fault does before an answer begins; None if the request goes on from there."""
        kind, attempt = fault.fault.kind, reply.attempt
        match kind:
            case "hang_before_headers":
                await fault.over.wait()
            case "reset_before_headers":
                await break_off(request, attempt, "reset")
            case "saturate_429" | "saturate_503" | "error_500":
                return self._fail(api_format, attempt, ANSWERS[kind], "failed" if kind == "error_500" else "refused")
            case "quota_429":
                seconds = fault.fault.retry_after_s
                headers = {} if seconds is None else {"retry-after": f"{seconds:g}"}
                return self._fail(api_format, attempt, QUOTA[fault.fault.shape], "refused", headers)
            case "error_event" if not attempt.streamed:
                return self._fail(api_format, attempt, DEAD, "failed")
            case "error_event":
                response = await self._open_stream(request, attempt)
                writer(request)(frame(error_event(DEAD)) + frame(DONE))
                attempt.end("error_event")
                return response
            case "no_output":
                return await self._answer_without_output(fault.fault.answer, api_format, request, reply)
        return None

    async def _answer_without_output(
        self, what: NoOutput, api_format: ApiFormat, request: web.Request, reply: Reply
    ) -> web.StreamResponse:
        attempt = reply.attempt
        if what in ("done_alone", "empty_stream"):
            stream = await self._open_stream(request, attempt)
            if what == "done_alone":
                writer(request)(frame(DONE))
            attempt.end("truncated")
            return stream
        match what:
            case "json_error":
                response = json_response(api_format.error_body(DEAD))
            case "not_found":
                unknown = Failure(404, f"The model `{self.model}` does not exist.", "NotFoundError", "model")
                response = json_response(api_format.error_body(unknown), status=404)
            case "bad_request":
                response = json_response(api_format.error_body(NO_TEMPLATE), status=400)
            case "no_content":
                response = web.Response(status=204)
            case "redirect":
                response = web.Response(status=307, headers={"location": f"{api_format.path}/"})
            case "truncated_json":
                whole = compact(reply.answer.whole(reply.texts())).encode()
                response = web.Response(body=whole[: len(whole) // 2], content_type="application/json")
            case _:
                status, content_type, body = PAGES[what]
                response = web.Response(status=status, headers={"content-type": content_type}, body=body.encode())
        attempt.send_header(response.status)
        attempt.end("truncated")
        return response

    def _fail(
        self,
        api_format: ApiFormat,
        attempt: Attempt,
        failure: Failure,
        how: End,
        headers: Mapping[str, str] | None = None,
    ) -> web.Response:
        attempt.send_header(failure.status)
        attempt.end(how)
        return json_response(api_format.error_body(failure), status=failure.status, headers=headers)

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return json_response({"version": VERSION})

    async def _load(self, request: web.Request) -> web.Response:
        return json_response({"server_load": self._in_flight})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.engine.page(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _models(self, request: web.Request) -> web.Response:
        created = int(time.time())
        permission = {
            "id": f"modelperm-{created:016x}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self.model,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": self.model,
            "parent": None,
            "max_model_len": self.kind.max_model_len,
            "permission": [permission],
        }
        return json_response({"object": "list", "data": [model]})

    async def _control_log(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not since.isdecimal():
            return json_response({"error": f"since={since!r} is not a number"}, status=400)
        return json_response(self.attempts.since(int(since)))

    async def _control_state(self, request: web.Request) -> web.Response:
        return json_response(self.state())

    async def _control_fault(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            value = json.loads(body)
            fault = None if value == {"kind": "none"} else Fault.model_validate(value)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            return json_response({"error": problems}, status=400)
        except ValueError as error:
            return json_response({"error": str(error)}, status=400)
        self.set_fault(fault)
        return json_response(self.state())

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """vLLM's counts of HTTP requests; one whose client leaves before the end counts as answered."""
        started = time.monotonic()
        status, size = 200, 0
        try:
            response = await handler(request)
            status, size = response.status, response.content_length or 0
        finally:
            if not request.path.startswith(_UNCOUNTED):
                path = request.path if request.match_info.http_exception is None else "none"
                seconds = time.monotonic() - started
                sent = request.content_length or 0
                self.engine.metrics.http.count(request.method, path, status, sent, size, seconds)
        return response

    @web.middleware
    async def _like_vllm(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The router's errors in vLLM's shape, and its headers on everything."""
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = json_response({"detail": error.reason}, status=error.status)
            if isinstance(error, web.HTTPMethodNotAllowed):
                response.headers["allow"] = ", ".join(sorted(error.allowed_methods))
        if not response.prepared:
            self._add_headers(response)
        return response

    def _add_headers(self, response: web.StreamResponse) -> None:
        response.headers["server"] = "uvicorn"
        response.headers["vary"] = "Origin"
        response.headers["x-sim-engine"] = self.name
