"""What the tests of commands share."""

import json

from lmrep.objectives import OBJECTIVES
from tests import small


def printed_prompts(result: small.Result, objective: str, mark: str) -> list[str]:
    """The prompts that `lmrep train` printed at its end: the beginnings, up to " |", of the lines with `mark`. Their
    words must be those of the text."""
    [summary] = [capability.summary for capability in OBJECTIVES[objective].capabilities]
    section = result.out.split(f"It {summary}:\n")[1].split("\nNext:")[0]
    prompts = [line.partition(" |")[0].strip() for line in section.splitlines()
               if mark in line and not line.startswith("   ")]
    words = {"the", "[MASK]", *small.NOUNS, *small.VERBS, *small.ADJECTIVES}
    assert all({word.strip(".") for word in prompt.split()} <= words for prompt in prompts)
    return prompts


def figures(result: tuple[int, str, str]) -> dict[str, float]:
    """Those that `lmrep score --json` printed, of (exit code, stdout, stderr)."""
    code, out, err = result
    assert code == 0, err
    return json.loads(out)
