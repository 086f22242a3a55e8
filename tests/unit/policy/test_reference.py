import re
from pathlib import Path

import pytest

from tests.unit.policy import golden
from trimtab.policy import PolicyError, parse_policy
from trimtab.policy.reference import policy_reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "policy.md"
MARK = "<!-- What follows is made from trimtab/policy/model.py: UPDATE_GOLDEN=1 pytest tests/unit/policy -->\n"


def test_the_page_has_the_tables_of_the_model() -> None:
    introduction, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert mark
    golden.check(PAGE, f"{introduction}{MARK}\n{policy_reference()}")


def test_its_links_lead_somewhere() -> None:
    page = PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= anchors


def test_its_policy_loads_and_its_bad_one_says_what_it_shows() -> None:
    good, bad = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (told,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert parse_policy(good, "policy.yaml").pools
    with pytest.raises(PolicyError) as raised:
        parse_policy(bad, "policy.yaml")
    assert str(raised.value) == told.strip()
