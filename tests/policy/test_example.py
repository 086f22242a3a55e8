from collections.abc import Iterator
from typing import Any

from tests.policy.example import EXAMPLE, FULL
from trimtab.policy import parse_policy
from trimtab.policy.document import Document
from trimtab.policy.model import Rejections, SignalSources
from trimtab.policy.schema import sections
from trimtab.scoring import default_scoring


def test_the_example_serves_and_is_short() -> None:
    policy = parse_policy(EXAMPLE, "example")
    first_part = EXAMPLE.partition("# ----")[0].splitlines()
    meaningful = [line for line in first_part if line.strip() and not line.strip().startswith("#")]

    assert policy.pools[0].serves("meta-llama/Llama-3.3-70B-Instruct")
    assert policy.pools[-1].serves("anything")
    assert len(meaningful) <= 15


def test_every_field_is_in_it() -> None:
    data = Document(FULL, "example").data
    missing = {
        f"{section.title}: {key}"
        for section in sections()
        for key in section.schema["properties"]
        if not any(key in mapping for mapping in _mappings(data, section.path))
    }
    assert not missing


def test_what_is_switched_off_are_the_defaults() -> None:
    full = parse_policy(FULL, "example")
    first = full.pools[0].model_copy(update={"scoring": default_scoring(), "signals": SignalSources()})
    pools = (first, *full.pools[1:])
    samples = {"rejections": Rejections(), "pools": pools}

    assert full.state_file == "auto"
    assert full.rejections.rules
    assert full.rejections.bundled
    assert full.model_copy(update=samples) == parse_policy(EXAMPLE, "example")


def _mappings(data: Any, path: str) -> Iterator[dict[str, Any]]:
    """The mappings at a section's path, such as `pools[].shaping`."""
    if not path:
        yield data
        return
    key, _, rest = path.partition(".")
    value = data.get(key.removesuffix("[]"), [] if key.endswith("[]") else {})
    for item in value if key.endswith("[]") else [value]:
        yield from _mappings(item, rest)
