"""What a request costs an engine: prompt tokens, KV cache, arithmetic, and how long it stays. Pure sums.

Sources, named where they are used:
[kaplan]  Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1: 2 FLOPs for each weight and token.
[gqa]     Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models": fewer KV heads than heads.
[swiglu]  Shazeer 2020, "GLU Variants Improve Transformer": a gated feed-forward layer has three matrices.
[paged]   Kwon et al. 2023, "Efficient Memory Management for LLM Serving with PagedAttention", section 4.4: the choices
          of one request share the KV cache of its prompt.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

BYTES_PER_TOKEN = 4  # of English text, in common tokenizers; code and other languages have fewer


def prompt_tokens(prompt_bytes: int, bytes_per_token: float = BYTES_PER_TOKEN) -> int:
    """Tokens of a prompt of so many bytes of UTF-8, rounded up; at least 1, for every model puts a first token."""
    return max(1, ceil(prompt_bytes / bytes_per_token))


class Flops(NamedTuple):
    """Floating-point operations; a multiplication with its addition counts as two."""

    linear: float  # in weights: grows with the tokens
    attention: float  # over the tokens before: grows with their square


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The shape of a decoder-only transformer, by the names of its public `config.json`. All counts are above 0."""

    layers: int  # num_hidden_layers
    hidden_size: int
    heads: int  # num_attention_heads
    kv_heads: int  # num_key_value_heads; as many as heads without grouping
    intermediate_size: int  # in a mixture of experts: times the experts that a token goes to
    vocab_size: int
    head_size: int | None = None  # head_dim; None: hidden_size / heads
    kv_value_bytes: float = 2.0  # of one number in the KV cache: 2 for bf16 and fp16, 1 for fp8

    @property
    def kv_bytes_per_token(self) -> float:
        """KV cache of one token, bytes: a key and a value for each KV head of each layer [gqa]."""
        return 2 * self.layers * self.kv_heads * self._head_size * self.kv_value_bytes

    @property
    def layer_weights(self) -> int:
        """Weights of all layers that a token is multiplied with: query and output, key and value [gqa], and the three
        matrices of the feed-forward layer [swiglu]."""
        query_and_output = 2 * self.hidden_size * self.heads * self._head_size
        key_and_value = 2 * self.hidden_size * self.kv_heads * self._head_size
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        return self.layers * (query_and_output + key_and_value + feed_forward)

    @property
    def logit_weights(self) -> int:
        """Weights that a position is multiplied with where a token is drawn from it."""
        return self.hidden_size * self.vocab_size

    def attention_flops(self, first: float, last: float) -> float:
        """FLOPs of attention for the tokens after position `first` up to `last`.

        The token at position i meets i keys and i values, with 2 FLOPs for each number of each head: in each layer
        4·i·heads·head_size. The sum of i from first+1 to last is (last·(last+1) - first·(first+1)) / 2.
        """
        return 2 * self.layers * self.heads * self._head_size * (last * (last + 1) - first * (first + 1))

    @property
    def _head_size(self) -> int:
        return self.head_size or self.hidden_size // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a request asks for that changes how long it stays.

    Temperature and top_p do not appear: they change which tokens come, and how many come by that is part of what is
    typical.
    """

    max_tokens: int | None = None  # at least 1; None: as many as fit
    min_tokens: int = 0
    n: int = 1  # choices returned
    best_of: int | None = None  # choices generated, where the API has it
    ignore_eos: bool = False  # only max_tokens ends it

    @property
    def branches(self) -> int:
        """Sequences that are generated side by side, at least 1."""
        return max(1, self.n, self.best_of or 0)

    def expected_tokens(self, typical: float) -> float:
        """Tokens of each branch, where such requests have `typical` (> 0) if nothing limits them.

        The mean of a length that is cut at max_tokens is below both, so this is an upper bound of it.
        """
        if self.max_tokens is None:
            return max(typical, self.min_tokens)
        return self.max_tokens if self.ignore_eos else min(self.max_tokens, max(typical, self.min_tokens))


@dataclass(frozen=True, slots=True)
class RequestCost:
    """A request as an engine has to serve it: the prompt once, and `output_tokens` (expected) in each branch."""

    prompt_tokens: int
    output_tokens: float
    branches: int = 1

    @classmethod
    def of(cls, prompt_tokens: int, sampling: Sampling, typical_output_tokens: float) -> "RequestCost":
        """The cost of a request, where others like it have so many output tokens."""
        return cls(prompt_tokens, sampling.expected_tokens(typical_output_tokens), sampling.branches)

    @property
    def kv_tokens(self) -> float:
        """Tokens in the KV cache when all branches are at their end: the prompt is shared [paged]."""
        return self.prompt_tokens + self.branches * self.output_tokens

    def kv_bytes(self, card: ModelCard) -> float:
        """The KV cache that the request needs at most, bytes: linear in its tokens."""
        return self.kv_tokens * card.kv_bytes_per_token

    def prefill_flops(self, card: ModelCard, cached_tokens: int = 0) -> Flops:
        """FLOPs up to the first token. Of the prompt, `cached_tokens` (fewer than it has) are in the engine's cache.

        Two for each weight [kaplan]; only the last position is turned into logits.
        """
        tokens = self.prompt_tokens - cached_tokens
        linear = 2 * (tokens * card.layer_weights + card.logit_weights)
        return Flops(linear, card.attention_flops(cached_tokens, self.prompt_tokens))

    def decode_flops(self, card: ModelCard) -> Flops:
        """FLOPs of all branches after their first token."""
        steps = max(0.0, self.output_tokens - 1)
        linear = 2 * steps * (card.layer_weights + card.logit_weights)
        attention = card.attention_flops(self.prompt_tokens, self.prompt_tokens + steps)
        return Flops(self.branches * linear, self.branches * attention)

    def residency_s(self, decode_step_s: float) -> float:
        """How long the request is expected to hold its sequences, in sequence-seconds.

        A branch gets one token per decode step of `decode_step_s` seconds (the mean gap between tokens). Branches run
        side by side, so a client waits for a part of this only, but an engine has so many sequences fewer to give.
        """
        return self.branches * self.output_tokens * decode_step_s
