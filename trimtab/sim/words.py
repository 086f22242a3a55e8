"""The text that simulated engines produce. It follows from the request alone: a client can check every byte.

A tokenizer is not simulated. Four bytes of UTF-8 are one prompt token, and each generated token is a word
that names the request it belongs to and its own position, so a mixed, torn or repeated stream shows.
"""

import zlib

from trimtab import tokens as sizes
from trimtab.tokens import BYTES_PER_TOKEN

_FILLER = "the quick brown fox jumps over the lazy dog and "


def prompt_tokens(prompt: str) -> int:
    """Tokens of a prompt; an empty one counts as one token."""
    return sizes.prompt_tokens(len(_bytes(prompt)))


def make_prompt(tokens: int, salt: str) -> str:
    """A prompt of exactly `tokens` tokens that begins with as much of the ASCII text `salt` as fits."""
    size = tokens * BYTES_PER_TOKEN
    head = f"{salt} "
    return (head + _FILLER * ((size - len(head)) // len(_FILLER) + 1))[:size]


def key_of(prompt: str, user: str = "", choice: int = 0) -> str:
    """The word that stands for a request. It depends on every byte of the prompt, the user and the choice."""
    return f"{zlib.crc32(_bytes(f'{choice} {user} {prompt}')):08x}"


def token(key: str, position: int) -> str:
    """The generated token at `position`, counted from 0."""
    return f" {key}.{position}"


def text(key: str, tokens: int) -> str:
    """The first `tokens` generated tokens."""
    return "".join([token(key, position) for position in range(tokens)])


def natural_length(key: str) -> int:
    """Tokens, 32 to 256, after which a request ends by itself if it does not ask to ignore the end."""
    return 32 + int(key, 16) % 225


def _bytes(text: str) -> bytes:
    # JSON can carry half a surrogate pair, which UTF-8 proper cannot.
    return text.encode("utf-8", "surrogatepass")
