"""The names of engines' metrics, as data."""

import functools
import importlib.resources
import re
from collections.abc import Mapping

from pydantic import TypeAdapter
from ruamel.yaml import YAML

from trimtab.strict import Strict


class EngineNames(Strict):
    """For each field of `Signals` the metric names that carry it, the newest first; () if there is none."""

    waiting: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()
    generated_tokens: tuple[str, ...] = ()
    preemptions: tuple[str, ...] = ()
    process_start: tuple[str, ...] = ()

    @functools.cached_property
    def sample_line(self) -> re.Pattern[bytes]:
        """Matches a newline and the sample line of any of the names; groups: name, rest of the line."""
        # A last line without its newline is a page that was cut, maybe inside the value.
        names = sorted(name for field in type(self).model_fields for name in getattr(self, field))
        # The literal newline is searched for with memchr: four times as fast as an anchor.
        return re.compile(rb"\n[ \t]*(%b)([{ \t][^\n]*)(?=\n)" % b"|".join(re.escape(n.encode()) for n in names))


@functools.cache
def engine_names() -> Mapping[str, EngineNames]:
    """The bundled tables, by engine."""
    text = importlib.resources.files("trimtab").joinpath("data/engines.yaml").read_text("utf-8")
    return TypeAdapter(dict[str, EngineNames]).validate_python(YAML(typ="safe").load(text))
