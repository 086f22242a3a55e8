"""The bundled example, and the same with every field switched on."""

import re

from trimtab.policy import example_policy

EXAMPLE = example_policy()

FULL = re.sub(r"(?m)^( *)#(?! \S)", r"\1", EXAMPLE)
"""A switched-off line has no blank after its "#", or several; a sentence has one."""
