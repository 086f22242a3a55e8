"""What the engines that we know say of themselves, and where: `trimtab/data/engines.yaml` as types."""

import functools
import importlib.resources
from collections.abc import Mapping
from typing import Literal

from pydantic import TypeAdapter
from ruamel.yaml import YAML

from trimtab.policy.types import MetricText
from trimtab.strict import Strict


class EngineTable(Strict):
    """For each signal the metrics that carry it, the newest first; () if there is none."""

    path: str = "/metrics"
    port: int | None = None  # None is the port that serves requests
    lists_models: bool = False  # whether /v1/models says how long a context is
    counts_each_token: bool = False  # generated_tokens moves with each step, not when a request ends
    orca: tuple[Literal["waiting", "kv_usage"], ...] = ()  # what it can tell in its answers' headers
    waiting: tuple[MetricText, ...] = ()
    running: tuple[MetricText, ...] = ()
    kv_usage: tuple[MetricText, ...] = ()
    generated_tokens: tuple[MetricText, ...] = ()
    prompt_tokens: tuple[MetricText, ...] = ()
    preemptions: tuple[MetricText, ...] = ()
    prefix_queries: tuple[MetricText, ...] = ()
    prefix_hits: tuple[MetricText, ...] = ()
    prefix_hit_rate: tuple[MetricText, ...] = ()
    ttft: tuple[MetricText, ...] = ()
    inter_token: tuple[MetricText, ...] = ()
    max_model_len: tuple[MetricText, ...] = ()
    adapters: tuple[MetricText, ...] = ()
    process_start: tuple[MetricText, ...] = ()


@functools.cache
def engine_tables() -> Mapping[str, EngineTable]:
    """The bundled tables, by engine."""
    text = importlib.resources.files("trimtab").joinpath("data/engines.yaml").read_text("utf-8")
    return TypeAdapter(dict[str, EngineTable]).validate_python(YAML(typ="safe").load(text))
