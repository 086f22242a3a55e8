from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.policy.example import EVERY_STRATEGY, EXAMPLE
from trimtab.policy import parse_policy
from trimtab.policy.discovery import DiscoveryPolicy
from trimtab.policy.document import Document
from trimtab.policy.model import Pool, Rejections, SignalSources
from trimtab.policy.schema import Section, sections
from trimtab.scoring import BlendPolicy, default_scoring


def test_the_example_serves_and_is_short() -> None:
    policy = parse_policy(EXAMPLE, "example")
    first_part = EXAMPLE.partition("# ----")[0].splitlines()
    meaningful = [line for line in first_part if line.strip() and not line.strip().startswith("#")]

    assert policy.pools[0].serves("meta-llama/Llama-3.3-70B-Instruct")
    assert policy.pools[-1].serves("anything")
    assert len(meaningful) <= 15


def test_every_field_is_in_it() -> None:
    texts = [Document(text, "example").data for text in EVERY_STRATEGY]
    missing = {
        f"{section.title}: {key}"
        for section in sections()
        for key in section.schema["properties"]
        if not any(
            key in mapping for data in texts for mapping in _mappings(data, section.path) if _is(section, mapping)
        )
    }
    assert not missing


@pytest.mark.parametrize("text", EVERY_STRATEGY)
def test_what_is_switched_off_are_the_defaults(text: str) -> None:
    full = parse_policy(text, "example")
    for pool in full.pools:
        samples_of_a_strategy = {"terms": pool.scoring.terms} if isinstance(pool.scoring, BlendPolicy) else {}
        assert pool.scoring == type(pool.scoring)(**samples_of_a_strategy)
    first, *others = (pool for pool in full.pools if pool.discovery is None)
    first = first.model_copy(update={"signals": SignalSources(), "classes": ()})
    pools = tuple(pool.model_copy(update={"scoring": default_scoring(), "fallbacks": ()}) for pool in (first, *others))
    samples = {"rejections": Rejections(), "pools": pools}

    assert full.state_file == "auto"
    assert full.rejections.rules
    assert full.rejections.bundled
    assert full.model_copy(update=samples) == parse_policy(EXAMPLE, "example")


@pytest.mark.parametrize("pool", parse_policy(EVERY_STRATEGY[0], "example").pools, ids=lambda pool: pool.name)
def test_what_is_switched_off_of_discovery_are_the_defaults(pool: Pool) -> None:
    if pool.discovery is None:
        return
    source = pool.discovery.source
    samples = {"path", "url", "name", "port", "service"} & source.model_fields_set
    plain = type(source)(**{name: getattr(source, name) for name in samples})

    assert pool.discovery == DiscoveryPolicy(**{pool.discovery.kind: plain})


def _is(section: Section, mapping: dict[str, Any]) -> bool:
    """Whether a mapping at a section's path is of its strategy."""
    strategy = section.schema["properties"].get("strategy")
    return strategy is None or mapping.get("strategy") == strategy["const"]


def _mappings(data: Any, path: str) -> Iterator[dict[str, Any]]:
    """The mappings at a section's path, such as `pools[].weighting`."""
    if not path:
        yield data
        return
    key, _, rest = path.partition(".")
    value = data.get(key.removesuffix("[]"), [] if key.endswith("[]") else {})
    for item in value if key.endswith("[]") else [value]:
        yield from _mappings(item, rest)
