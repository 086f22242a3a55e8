"""An engine model that runs in real time and keeps vLLM's metrics."""

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

from trimtab.sim.batching import EngineModel, Event, Happening, Refusal, Sequence
from trimtab.sim.kinds import EngineKind
from trimtab.sim.metrics import MetricsPage
from trimtab.sim.requests import FinishReason

_COMPUTED = 'vllm:prompt_tokens_by_source_total{source="local_compute"}'


class Consumer(Protocol):
    """Who wants the tokens of a sequence."""

    tokens: int  # that it will have
    reason: FinishReason  # why it will have no more

    def on_tokens(self, generated: int) -> None:
        """Called after each step: the sequence has so many tokens by now."""


class LiveEngine:
    """Drives an `EngineModel` by the running event loop, with one timer: the end of the current step.

    The model's clock does not wait for a late timer: a step that is delivered late makes no later one late.
    """

    def __init__(self, kind: EngineKind, model_name: str) -> None:
        self.metrics = MetricsPage(model_name, kind, time.time())
        self._loop = asyncio.get_running_loop()
        self._model = EngineModel(kind, on_step=self._on_step)
        self._timer: asyncio.TimerHandle | None = None
        self._clock = 0.0  # the model's; the latest time that it was told
        self._lost_s = 0.0  # of the loop's time, while mute
        self._mute_since: float | None = None
        self._frozen_page = b""
        self._last_step_at = 0.0
        self._decoding: dict[Sequence, Consumer] = {}

    @property
    def running(self) -> int:
        """Sequences that are being computed."""
        return self._model.running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._model.waiting

    @property
    def kv_usage(self) -> float:
        """0..1."""
        return self._model.kv_usage

    @property
    def generated_tokens(self) -> int:
        """Of all requests since the start."""
        return self._model.generated_tokens

    def refusal(self) -> Refusal | None:
        """Why the engine refuses a request now; it counts as refused. None if it would take it."""
        self._deliver()
        refusal = self._model.refusal()
        if refusal is not None:
            self.metrics.add(f'vllm:admission_rejections_total{{reason="{refusal}"}}')
        return refusal

    def submit(self, prompt_tokens: int, consumers: Iterable[Consumer]) -> list[Sequence]:
        """Hand in a request that `refusal` has let pass, with one consumer for each text that it wants."""
        self._deliver()
        sequences = [
            self._model.enqueue(self._now(), prompt_tokens, consumer.tokens, consumer) for consumer in consumers
        ]
        self.metrics.add("vllm:prefix_cache_queries_total", prompt_tokens * len(sequences))
        self._arm()
        return sequences

    def cancel(self, sequence: Sequence) -> None:
        """Free what a sequence holds; nothing happens if it is finished."""
        self._deliver()
        # Not a moment later: what would happen to it in between could no longer be delivered.
        self._model.cancel(self._clock, sequence)
        self._decoding.pop(sequence, None)

    def slow_down(self, factor: float) -> None:
        """Stretch each step that begins from now on; 1 is healthy."""
        self._model.slow = factor

    def mute(self) -> None:
        """Stop computing. Requests are taken in and metrics are shown as they are at this moment."""
        if self._mute_since is None:
            self._mute_since = self._loop.time()
            self._deliver()
            self._frozen_page = self._render()
            self._arm()

    def unmute(self) -> None:
        """Go on as if no time had passed."""
        if self._mute_since is not None:
            self._lost_s += self._loop.time() - self._mute_since
            self._mute_since = None
            self._arm()

    def page(self) -> bytes:
        """The /metrics page."""
        return self._render() if self._mute_since is None else self._frozen_page

    def close(self) -> None:
        """Stop for good."""
        if self._timer is not None:
            self._timer.cancel()

    def _render(self) -> bytes:
        page = self.metrics
        page.set("vllm:num_requests_running", self.running)
        page.set("vllm:num_requests_waiting", self.waiting)
        page.set('vllm:num_requests_waiting_by_reason{reason="capacity"}', self.waiting)
        page.set("vllm:kv_cache_usage_perc", self.kv_usage)
        page.set("vllm:generation_tokens_total", self.generated_tokens)
        # vLLM counts a preemption when its victim is back, so its counter lags by the whole wait.
        page.set("vllm:num_preemptions_total", self._model.resumptions)
        return page.render()

    def _now(self) -> float:
        loop_s = self._loop.time() if self._mute_since is None else self._mute_since
        self._clock = max(self._clock, loop_s - self._lost_s)
        return self._clock

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._model.next_step_at()
        if at is not None and self._mute_since is None:
            self._timer = self._loop.call_at(at + self._lost_s, self._on_timer, at)

    def _on_timer(self, at: float) -> None:
        # uvloop rounds to milliseconds, so a timer may be early. The step counts as done then: to wait for
        # the rest would be to spin.
        self._clock = max(self._clock, at)
        self._timer = None
        self._deliver()
        self._arm()

    def _deliver(self) -> None:
        finished = []
        for event in self._model.advance(self._now()):
            self._count(event)
            if event.what is Happening.FIRST_TOKEN:
                self._decoding[event.sequence] = event.sequence.tag
            elif event.what is Happening.FINISHED:
                finished.append(event.sequence)
        for sequence, consumer in self._decoding.items():
            consumer.on_tokens(self._model.generated(sequence))
        for sequence in finished:
            del self._decoding[sequence]

    def _on_step(self, at: float, decoded: int, prefilled: int) -> None:
        self.metrics.observe("vllm:iteration_tokens_total", decoded + prefilled)
        if decoded:
            self.metrics.observe("vllm:inter_token_latency_seconds", at - self._last_step_at, decoded)
        self._last_step_at = at

    def _count(self, event: Event) -> None:
        sequence = event.sequence
        if event.what is Happening.FIRST_TOKEN:
            self.metrics.observe("vllm:time_to_first_token_seconds", event.at - sequence.arrived_at)
            self.metrics.add("vllm:prompt_tokens_total", sequence.prompt_tokens)
            self.metrics.add(_COMPUTED, sequence.prompt_tokens)
        elif event.what is Happening.FINISHED:
            self._count_finished(event.at, sequence)

    def _count_finished(self, at: float, sequence: Sequence) -> None:
        admitted_at, first_token_at = sequence.admitted_at, sequence.first_token_at
        assert admitted_at is not None
        assert first_token_at is not None
        self.metrics.add(f'vllm:request_success_total{{finished_reason="{sequence.tag.reason}"}}')
        observe = self.metrics.observe
        observe("vllm:e2e_request_latency_seconds", at - sequence.arrived_at)
        observe("vllm:request_queue_time_seconds", admitted_at - sequence.arrived_at)
        observe("vllm:request_inference_time_seconds", at - admitted_at)
        observe("vllm:request_prefill_time_seconds", first_token_at - admitted_at)
        observe("vllm:request_decode_time_seconds", at - first_token_at)
        observe("vllm:request_prompt_tokens", sequence.prompt_tokens)
        observe("vllm:request_prefill_kv_computed_tokens", sequence.prompt_tokens)
        observe("vllm:request_generation_tokens", sequence.output_tokens)
        observe("vllm:request_max_num_generation_tokens", sequence.output_tokens)
        observe("vllm:request_num_preemptions", sequence.preemptions)
        if sequence.output_tokens > 1:
            per_token = (at - first_token_at) / (sequence.output_tokens - 1)
            observe("vllm:request_time_per_output_token_seconds", per_token)
