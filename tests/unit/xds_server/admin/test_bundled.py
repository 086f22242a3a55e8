"""The bundled rules and dashboard name metrics that exist, with labels that they have."""

import importlib.resources
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from tests.unit.xds_server.admin.test_metrics import GOLDEN

DATA = importlib.resources.files("trimtab").joinpath("data")
RULES = YAML(typ="safe").load(DATA.joinpath("prometheus-rules.yaml").read_text("utf-8"))
DASHBOARD = json.loads(DATA.joinpath("grafana-dashboard.json").read_text("utf-8"))
RECORDED = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
# Added by PromQL's own aggregation, or by Prometheus when it scrapes.
FREE_LABELS = {"le", "job", "instance"}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Sample name -> label names."""
    samples = defaultdict(set)
    for family in text_string_to_metric_families(GOLDEN.read_text()):
        for sample in family.samples:
            samples[sample.name] |= sample.labels.keys()
    return samples


def expressions() -> Iterator[str]:
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


@pytest.mark.parametrize("expression", list(expressions()))
def test_expression(expression: str, exported: dict[str, set[str]]) -> None:
    names = set(re.findall(r"\b(?:trimtab_|lb[_:])[a-z0-9_:]+", expression))
    assert names
    assert names <= exported.keys() | RECORDED
    labels = FREE_LABELS.union(*(exported[name] for name in names))
    grouped = re.findall(r"\b(?:by|on|without|group_left)\s*\(([^)]*)\)", expression)
    matched = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", expression)
    used = {label.strip() for group in grouped for label in group.split(",") if label.strip()} | set(matched)
    assert used <= labels
    assert expression.count("(") == expression.count(")")


def test_rules_are_complete() -> None:
    assert "lb:decision_rate1m" in RECORDED
    alerts: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
    for alert in alerts:
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert alert["annotations"].keys() == {"summary", "description"}


def test_dashboard_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
