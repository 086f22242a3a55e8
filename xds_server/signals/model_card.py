"""How long a model's context is, by the list of models of an OpenAI-compatible API."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimtab.endpoint.engine_readings import fault_of
from trimtab.observation.kinds import SignalsRead

MODELS_PATH = "/v1/models"

_SIGNAL = "max_model_len"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """`max_model_len` [tokens] is None where it is UNKNOWN, and `why` says why."""

    max_model_len: float | None = None
    why: str = f"{MODELS_PATH} was not read yet"

    def added_to(self, read: SignalsRead) -> SignalsRead:
        """The reading, with what the card knows where the reading knows nothing."""
        if read.error or read.signals.max_model_len is not None:
            return read
        if self.max_model_len is None:
            return replace(read, unknown={**read.unknown, _SIGNAL: self.why})
        return replace(
            read,
            signals=replace(read.signals, max_model_len=self.max_model_len),
            origins={**read.origins, _SIGNAL: MODELS_PATH},
            unknown={signal: why for signal, why in read.unknown.items() if signal != _SIGNAL},
        )


def read_card(body: bytes) -> ModelCard:
    """Read the answer of `/v1/models`. Of several models (adapters are listed too) the shortest context counts."""
    try:
        # A length is a float in the end, and an integer may have more digits than that has room for.
        models = json.loads(body, parse_int=float)["data"]
        lengths = [length for length in map(_length, models) if length is not None]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ModelCard(why=f"{MODELS_PATH} is no list of models")
    if not lengths:
        return ModelCard(why=f"{MODELS_PATH} does not say it")
    wrong = next((length for length in lengths if not isinstance(length, float) or fault_of(_SIGNAL, length)), None)
    if wrong is not None:
        shown = f"{wrong:g}" if isinstance(wrong, float) else f"{wrong!r:.40}"
        return ModelCard(why=f"{MODELS_PATH}: {shown} is no length")
    return ModelCard(min(lengths), "")


def _length(model: Mapping[str, Any]) -> Any:
    """As vLLM and SGLang write it, or as llama.cpp does: of one of its slots."""
    length = model.get("max_model_len")
    return (model.get("meta") or {}).get("n_ctx") if length is None else length
