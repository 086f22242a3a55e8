"""Tokens of a text, by its size."""

import pytest

from trimtab.tokens import prompt_tokens


@pytest.mark.parametrize(("size", "tokens"), [(0, 1), (1, 1), (4, 1), (5, 2), (8192, 2048)])
def test_prompt_tokens(size: int, tokens: int) -> None:
    assert prompt_tokens(size) == tokens


def test_other_text_has_other_tokens() -> None:
    assert prompt_tokens(300, bytes_per_token=2.5) == 120
