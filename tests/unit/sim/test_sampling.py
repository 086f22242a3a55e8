"""How much a request has generated, by what it asks for."""

import pytest

from trimtab.sim.requests import Sampling


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
def test_what_is_asked_for_says_how_much_is_generated(sampling: Sampling, branches: int, tokens: int) -> None:
    assert (sampling.branches, sampling.expected_tokens(200)) == (branches, tokens)
