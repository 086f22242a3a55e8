"""A model folder (Hugging Face layout) of a tiny Llama: configuration and tokenizer, no weights.

The engines make random weights themselves, so what is generated means nothing. Tokens are characters and pairs of
small letters, ASCII throughout: each generated token is readable text at once, and none is half of a character.
"""

import itertools
import json
import string
from pathlib import Path

NAME = "tiny"
CONTEXT = 2048  # tokens of prompt and answer together

_SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>")
_PLAIN = string.ascii_letters + string.digits + string.punctuation
_SPACES = {" ": "\u0120", "\n": "\u010a"}  # as byte-level BPE writes them
_PAIRS = tuple(itertools.product(string.ascii_lowercase, repeat=2))
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(folder: Path, *, layers: int, hidden: int = 512, heads: int = 8, kv_heads: int = 4) -> Path:
    """Write the folder and return it. A token costs time in proportion to `layers`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [*_SPECIAL, *_PLAIN, *_SPACES.values(), *map("".join, _PAIRS)]
    for name, content in {
        "config.json": _config(len(tokens), layers, hidden, heads, kv_heads),
        "tokenizer.json": _tokenizer(tokens),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "chat_template": _CHAT_TEMPLATE,
            **_special_names(),
        },
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    return folder


def _special_names() -> dict[str, str]:
    return dict(zip(("bos_token", "eos_token", "pad_token"), _SPECIAL, strict=True))


def _config(vocabulary: int, layers: int, hidden: int, heads: int, kv_heads: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": CONTEXT,
        "vocab_size": vocabulary,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }


def _tokenizer(tokens: list[str]) -> dict[str, object]:
    special = [
        {
            "id": number,
            "content": content,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for number, content in enumerate(_SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [list(pair) for pair in _PAIRS],
        },
    }
