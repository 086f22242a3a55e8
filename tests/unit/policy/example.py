"""The bundled example, and the same with every field switched on."""

import re

from trimtab.policy import example_policy

EXAMPLE = example_policy()

# A pool has one strategy: the first pool's, the default of the last pool, and what could stand in its place.
_FIRST, _DEFAULT, *_OTHERS = re.findall(r"(?m)^  #scoring:\n(?:  #  .*\n)+", EXAMPLE)


def _with(scoring: str) -> str:
    """Every field switched on, and of the last pool's strategies this one.

    A switched-off line has no blank after its "#", or several; a sentence has one.
    """
    text = EXAMPLE
    for other in _OTHERS:
        text = text.replace(other, "")
    return re.sub(r"(?m)^( *)#(?! \S)", r"\1", text.replace(_DEFAULT, scoring))


FULL = _with(_DEFAULT)

EVERY_STRATEGY = tuple(_with(scoring) for scoring in (_DEFAULT, *_OTHERS))
"""`FULL`, once for each strategy."""
