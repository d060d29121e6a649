"""Numbers that are written in files."""

import math
import re

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LONGEST = 400  # characters


def parse_number(text: str) -> float:
    """Parses a decimal number in ASCII digits, such as -2.5 or 1e-3. Returns NaN for other texts, including some that
    `float` accepts: 1_0, inf and digits of other scripts."""
    text = text.strip()
    return float(text) if len(text) < LONGEST and NUMBER.fullmatch(text) else math.nan
