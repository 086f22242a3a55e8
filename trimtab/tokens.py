"""How many tokens a text has, where no tokenizer says."""

from math import ceil

BYTES_PER_TOKEN = 4  # of English text, in common tokenizers; code and other languages have fewer


def prompt_tokens(prompt_bytes: int, bytes_per_token: float = BYTES_PER_TOKEN) -> int:
    """Tokens of a prompt of so many bytes of UTF-8, rounded up; at least 1, for every model puts a first token."""
    return max(1, ceil(prompt_bytes / bytes_per_token))
