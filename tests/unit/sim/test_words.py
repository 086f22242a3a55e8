"""The text of simulated engines."""

import pytest

from trimtab.sim import words


@pytest.mark.parametrize("tokens", [1, 2, 3, 10, 4096])
def test_a_prompt_has_the_wanted_length(tokens: int) -> None:
    prompt = words.make_prompt(tokens, "1-234")
    assert len(prompt) == 4 * tokens
    assert words.prompt_tokens(prompt) == tokens
    assert prompt.startswith("1-234 "[: 4 * tokens])


def test_tokens_are_counted_in_bytes_of_utf8() -> None:
    assert [words.prompt_tokens(text) for text in ("", "abcd", "abcde", "ééé", "\ud800")] == [1, 1, 2, 2, 1]


def test_the_key_depends_on_all_of_a_request() -> None:
    keys = {words.key_of("ab"), words.key_of("ac"), words.key_of("ab", "u"), words.key_of("ab", choice=1)}
    assert len(keys) == 4
    assert all(len(key) == 8 for key in keys)


def test_the_text_is_its_tokens() -> None:
    assert words.text("0123abcd", 3) == " 0123abcd.0 0123abcd.1 0123abcd.2"
    assert 32 <= words.natural_length("ffffffff") <= 256
