"""The engine model beside a real engine: `python -m trimtab.sim.calibration` prints the table.

Measured: vLLM 0.32.0 on a CPU (8 layers, hidden 512, 25 M parameters, bf16, one thread; two shared cores of
an AMD EPYC), flags as in `VLLM_CPU_MEDIUM`. Each number is the median of three or seven repeats, for decoding
the mean of two. Simulated: the same requests in virtual time, all of a row handed in at once.
"""

import statistics
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from trimtab.sim.batching import EngineModel, Event, Happening, Sequence
from trimtab.sim.kinds import VLLM_CPU_MEDIUM, EngineKind


class Comparison(NamedTuple):
    """One measured number and what the model says."""

    experiment: str
    quantity: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative, of the simulated number."""
        return self.simulated / self.measured - 1


# Concurrent requests of 256 prompt and 64 output tokens:
# TTFT min, median, max; time between tokens (median of the requests' means); time until all are done; in ms.
CONCURRENT: Final = {
    1: (93.7, 93.7, 93.7, 10.6, 767),
    2: (96.7, 142, 188, 11.9, 896),
    4: (95.5, 335, 335, 10.6, 1003),
    8: (95.7, 673, 674, 13.9, 1547),
    16: (119, 1157, 1454, 30.2, 2974),
}
# Prompt tokens of a lone request with one output token -> TTFT, milliseconds.
PREFILL: Final = {64: 30.8, 128: 52.2, 256: 97.5, 512: 180, 1024: 423, 1536: 727, 2000: 1062}
# Sequences of 32 prompt and 160 output tokens -> time between tokens over the middle 120, milliseconds.
DECODE: Final = {1: 11.7, 2: 13.5, 4: 14.0, 8: 14.7, 16: 17.8}
# Requests of 1000 prompt and 93 output tokens -> KV usage at their end.
KV_USAGE: Final = {1: 0.110, 2: 0.226, 4: 0.439}
# 12 requests of 64 prompt and 1200 output tokens want 480 KV blocks of 320:
# the first and the fifth (last) preemption, seconds, and the KV usage just after.
PREEMPTIONS: Final = ((1, 17.7, 0.931), (5, 29.4, 0.878))


def compare(kind: EngineKind = VLLM_CPU_MEDIUM) -> list[Comparison]:
    """All measured numbers with the model's."""
    return [*_concurrent(kind), *_prefill(kind), *_decode(kind), *_kv_usage(kind), *_preemptions(kind)]


def _run(model: EngineModel, requests: int, prompt: int, output: int) -> tuple[list[Sequence], list[Event]]:
    for _ in range(requests):
        model.submit(0.0, prompt, output)
    events: list[Event] = []
    while (at := model.next_event_at()) is not None:
        events += model.advance(at)
    return [event.sequence for event in events if event.what is Happening.FINISHED], events


def _concurrent(kind: EngineKind) -> Iterator[Comparison]:
    for requests, measured in CONCURRENT.items():
        done, _ = _run(EngineModel(kind), requests, 256, 64)
        ttft_ms = sorted(1e3 * _ttft(sequence) for sequence in done)
        end_ms = [1e3 * _end(sequence) for sequence in done]
        gap_ms = [1e3 * (_end(s) - _ttft(s)) / (s.output_tokens - 1) for s in done]
        simulated = (
            ttft_ms[0],
            statistics.median(ttft_ms),
            ttft_ms[-1],
            statistics.median(gap_ms),
            max(end_ms),
        )
        names = ("TTFT min, ms", "TTFT median, ms", "TTFT max, ms", "between tokens, ms", "all done, ms")
        for name, real, model in zip(names, measured, simulated, strict=True):
            yield Comparison(f"{requests} × (256 + 64)", name, real, model)


def _prefill(kind: EngineKind) -> Iterator[Comparison]:
    for prompt, measured in PREFILL.items():
        done, _ = _run(EngineModel(kind), 1, prompt, 1)
        yield Comparison(f"1 × ({prompt} + 1)", "TTFT, ms", measured, 1e3 * _ttft(done[0]))


def _decode(kind: EngineKind) -> Iterator[Comparison]:
    for requests, measured in DECODE.items():
        ends: list[float] = []

        def on_step(at: float, decoded: int, _: int, ends: list[float] = ends, full: int = requests) -> None:
            if decoded == full:
                ends.append(at)

        _run(EngineModel(kind, on_step=on_step), requests, 32, 160)
        middle = ends[20:140]
        gap_ms = 1e3 * (middle[-1] - middle[0]) / (len(middle) - 1)
        yield Comparison(f"{requests} × (32 + 160)", "between tokens, ms", measured, gap_ms)


def _kv_usage(kind: EngineKind) -> Iterator[Comparison]:
    for requests, measured in KV_USAGE.items():
        model = EngineModel(kind)
        last = [model.submit(0.0, 1000, 93) for _ in range(requests)][-1]
        highest = 0.0
        while isinstance(last, Sequence) and last.finished_at is None:
            highest = max(highest, model.kv_usage)
            model.advance(model.next_step_at() or 0.0)
        yield Comparison(f"{requests} × (1000 + 93)", "KV usage", measured, highest)


def _preemptions(kind: EngineKind) -> Iterator[Comparison]:
    model = EngineModel(kind)
    for _ in range(12):
        model.submit(0.0, 64, 1200)
    seen: list[tuple[float, float]] = []
    while (at := model.next_event_at()) is not None:
        seen += [(e.at, model.kv_usage) for e in model.advance(at) if e.what is Happening.PREEMPTED]
    for number, at_s, usage in PREEMPTIONS:
        yield Comparison("12 × (64 + 1200)", f"preemption {number}, s", at_s, seen[number - 1][0])
        yield Comparison("12 × (64 + 1200)", f"KV usage after preemption {number}", usage, seen[number - 1][1])


def _ttft(sequence: Sequence) -> float:
    assert sequence.first_token_at is not None
    return sequence.first_token_at - sequence.arrived_at


def _end(sequence: Sequence) -> float:
    assert sequence.finished_at is not None
    return sequence.finished_at - sequence.arrived_at


def table(comparisons: list[Comparison]) -> str:
    """A Markdown table, closed by the greatest error."""
    lines = [
        "| requests × (prompt + output) | quantity | measured | model | error |",
        "|---|---|---|---|---|",
    ]
    for row in comparisons:
        numbers = f"{row.measured:.4g} | {row.simulated:.4g} | {row.error:+.1%}"
        lines.append(f"| {row.experiment} | {row.quantity} | {numbers} |")
    worst = max(comparisons, key=lambda row: abs(row.error))
    lines += ["", f"Greatest error: {worst.error:+.1%} ({worst.experiment}, {worst.quantity})."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(compare()))
