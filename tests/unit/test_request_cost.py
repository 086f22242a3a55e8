"""What a request costs, by hand, for three public models (the numbers of their config.json)."""

import pytest

from trimtab.request_cost import Flops, ModelCard, RequestCost, Sampling, prompt_tokens

LLAMA_31_8B = ModelCard(layers=32, hidden_size=4096, heads=32, kv_heads=8, intermediate_size=14336, vocab_size=128256)
QWEN_25_7B = ModelCard(layers=28, hidden_size=3584, heads=28, kv_heads=4, intermediate_size=18944, vocab_size=152064)
MISTRAL_7B = ModelCard(
    layers=32, hidden_size=4096, heads=32, kv_heads=8, intermediate_size=14336, vocab_size=32768, head_size=128
)


@pytest.mark.parametrize(
    ("card", "kv_bytes", "weights_in_layers", "published"),
    [
        # 32 layers x (2 x 4096 x 4096 + 2 x 4096 x 1024 + 3 x 4096 x 14336 = 218,103,808)
        (LLAMA_31_8B, 131_072, 6_979_321_856, 8.03e9),
        # 28 layers x (2 x 3584 x 3584 + 2 x 3584 x 512 + 3 x 3584 x 18944 = 233,046,016)
        (QWEN_25_7B, 57_344, 6_525_288_448, 7.62e9),
        (MISTRAL_7B, 131_072, 6_979_321_856, 7.25e9),
    ],
    ids=["llama-3.1-8b", "qwen2.5-7b", "mistral-7b-v0.3"],
)
def test_the_shape_of_a_model(card: ModelCard, kv_bytes: int, weights_in_layers: int, published: float) -> None:
    assert card.kv_bytes_per_token == kv_bytes
    assert card.layer_weights == weights_in_layers
    # With the embedding, which is a look-up and no arithmetic, it is the published size.
    assert card.layer_weights + 2 * card.logit_weights == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize(
    ("card", "prefill", "decode", "kv_bytes"),
    [
        # Prefill: 2 x (1000 x 6,979,321,856 + 525,336,576), and 4 x 32 x 4096 x (1 + 2 + ... + 1000).
        # Decode: 99 tokens, 2 x 99 x (6,979,321,856 + 525,336,576), and 4 x 32 x 4096 x (1001 + ... + 1099).
        (
            LLAMA_31_8B,
            Flops(13_959_694_385_152, 262_406_144_000),
            Flops(1_485_922_369_536, 54_499_737_600),
            144_179_200,
        ),
        # 2 x (1000 x 6,525,288,448 + 544,997,376), and 4 x 28 x 3584 x the same sums.
        (
            QWEN_25_7B,
            Flops(13_051_666_890_752, 200_904_704_000),
            Flops(1_399_916_593_152, 41_726_361_600),
            63_078_400,
        ),
        (
            MISTRAL_7B,
            Flops(13_958_912_147_456, 262_406_144_000),
            Flops(1_408_480_837_632, 54_499_737_600),
            144_179_200,
        ),
    ],
    ids=["llama-3.1-8b", "qwen2.5-7b", "mistral-7b-v0.3"],
)
def test_a_thousand_tokens_in_and_a_hundred_out(card: ModelCard, prefill: Flops, decode: Flops, kv_bytes: int) -> None:
    cost = RequestCost(prompt_tokens=1000, output_tokens=100)
    assert cost.prefill_flops(card) == prefill
    assert cost.decode_flops(card) == decode
    assert cost.kv_bytes(card) == kv_bytes


def test_kv_grows_with_length_and_attention_with_its_square() -> None:
    short, long = RequestCost(1_000, 0), RequestCost(10_000, 0)
    assert long.kv_bytes(QWEN_25_7B) == 10 * short.kv_bytes(QWEN_25_7B)
    ratio = long.prefill_flops(QWEN_25_7B).attention / short.prefill_flops(QWEN_25_7B).attention
    assert ratio == pytest.approx(100, rel=0.001)


def test_a_prefix_in_the_cache_is_not_computed_again() -> None:
    cost = RequestCost(4000, 10)
    all_of_it, rest = cost.prefill_flops(QWEN_25_7B), cost.prefill_flops(QWEN_25_7B, cached_tokens=3000)
    first = RequestCost(3000, 10).prefill_flops(QWEN_25_7B)
    assert all_of_it.attention == first.attention + rest.attention
    assert rest.linear < all_of_it.linear / 3.9
    assert cost.kv_bytes(QWEN_25_7B) == 4010 * QWEN_25_7B.kv_bytes_per_token


@pytest.mark.parametrize(
    ("sampling", "branches", "tokens"),
    [
        (Sampling(), 1, 200),
        (Sampling(max_tokens=50), 1, 50),
        (Sampling(max_tokens=5000), 1, 200),
        (Sampling(max_tokens=5000, ignore_eos=True), 1, 5000),
        (Sampling(min_tokens=300), 1, 300),
        (Sampling(max_tokens=250, min_tokens=300), 1, 250),
        (Sampling(n=3), 3, 200),
        (Sampling(n=2, best_of=5), 5, 200),
        (Sampling(n=4, best_of=1), 4, 200),
        (Sampling(n=0), 1, 200),
    ],
)
def test_what_is_asked_for_says_how_long_it_stays(sampling: Sampling, branches: int, tokens: int) -> None:
    cost = RequestCost.of(1000, sampling, typical_output_tokens=200)
    assert (cost.branches, cost.output_tokens) == (branches, tokens)
    assert cost.kv_tokens == 1000 + branches * tokens, "the prompt is held once"
    assert cost.residency_s(0.02) == pytest.approx(branches * tokens * 0.02)
    assert cost.decode_flops(QWEN_25_7B).linear == branches * RequestCost(1000, tokens).decode_flops(QWEN_25_7B).linear


@pytest.mark.parametrize(("size", "tokens"), [(0, 1), (1, 1), (4, 1), (5, 2), (8192, 2048)])
def test_prompt_tokens(size: int, tokens: int) -> None:
    assert prompt_tokens(size) == tokens


def test_other_text_has_other_tokens() -> None:
    assert prompt_tokens(300, bytes_per_token=2.5) == 120
