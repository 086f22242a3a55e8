"""Kinds of engines: the numbers that make one machine differ from another."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """Parameters of an engine. Field names follow vLLM's flags where vLLM has one.

    Raises ValueError if the numbers cannot work together.
    """

    name: str
    step0_ms: float  # a step that computes nothing
    per_sequence_ms: float  # added for each sequence that decodes in the step,
    per_context_token_ns: float = 0.0  # and for each token of their contexts, which attention reads
    prefill_tokens_per_s: float
    prefill_step_ms: float = 0.0  # added to a step that holds any prefill
    prefill_quadratic_ns: float = 0.0  # attention: computing a prompt's tokens a..b adds this times (b² - a²)
    kv_blocks: int  # as vLLM counts them: one of these is never used
    block_size: int = 16  # tokens
    max_num_seqs: int  # sequences that run at once
    max_num_batched_tokens: int = 2048  # tokens computed in one step
    max_model_len: int = 32_768  # prompt and output of one request, tokens
    max_num_queued_reqs: int | None = None  # refuse when so many requests wait or run
    max_num_queued_tokens: int | None = None  # refuse when so many prompt tokens wait or are in prefill

    def __post_init__(self) -> None:
        if min(self.step0_ms, self.prefill_tokens_per_s) <= 0:
            raise ValueError(f"{self.name}: a step must take time and prefill must have a rate")
        if self.max_model_len > self.usable_blocks * self.block_size:
            raise ValueError(f"{self.name}: one request of max_model_len must fit into the KV cache")
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ValueError(f"{self.name}: max_num_batched_tokens must be at least max_num_seqs")

    @property
    def usable_blocks(self) -> int:
        """KV blocks that can hold tokens."""
        return self.kv_blocks - 1


A100: Final = EngineKind(
    name="a100",
    step0_ms=12,
    per_sequence_ms=0.15,
    prefill_tokens_per_s=12_000,
    kv_blocks=25_001,
    max_num_seqs=128,
)

RTX4090: Final = EngineKind(
    name="rtx4090",
    step0_ms=18,
    per_sequence_ms=0.3,
    prefill_tokens_per_s=5_000,
    kv_blocks=3_751,
    max_num_seqs=64,
)

CPU: Final = EngineKind(
    name="cpu",
    step0_ms=60,
    per_sequence_ms=4,
    prefill_tokens_per_s=600,
    kv_blocks=6_251,
    max_num_seqs=16,
)

# Fitted to a real engine, see trimtab.sim.calibration and docs/results/engine-model.md.
VLLM_CPU_MEDIUM: Final = EngineKind(
    name="vllm_cpu_medium",
    step0_ms=9.8,
    per_sequence_ms=0.44,
    per_context_token_ns=1_000,
    prefill_step_ms=2.8,
    prefill_tokens_per_s=3_270,
    prefill_quadratic_ns=100,
    kv_blocks=320,
    block_size=32,
    max_num_seqs=16,
    max_model_len=2048,
)

KINDS: Final = {kind.name: kind for kind in (A100, RTX4090, CPU, VLLM_CPU_MEDIUM)}
