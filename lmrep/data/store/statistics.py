"""Statistics of the splits of a token store."""

from collections import Counter
from collections.abc import Iterable, Mapping

from lmrep.core.errors import ConfigError, UserError
from lmrep.data import tokenizers
from lmrep.data.store.scan import Progress
from lmrep.data.store.tokenize import Tokenized


def tally(characters: int, tokenized: Tokenized) -> dict[str, int]:
    """Returns the counts that a batch adds to `statistics.json`."""
    words, unknown, long = tokenized.tally.tolist()
    return {"documents": len(tokenized.documents), "sentences": len(tokenized.sentences),
            "tokens": len(tokenized.tokens), "characters": characters, "words": words, "unknown": unknown,
            "long_words": long}


def total(tallies: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, dict[str, float]]:
    """Sums the counts of (split, counts) for each split, and adds the rates computed from them."""
    totals: dict[str, Counter[str]] = {}
    for split, counts in tallies:
        totals.setdefault(split, Counter()).update(counts)
    return {split: {**counts, "tokens_per_word": counts["tokens"] / max(1, counts["words"]),
                    "unknown_fraction": counts["unknown"] / max(1, counts["tokens"])}
            for split, counts in totals.items()}


def check(statistics: dict[str, dict[str, float]], config: tokenizers.Config, progress: Progress) -> None:
    """Raises UserError for splits that no run could use; reports a warning if many tokens are unknown."""
    empty = [name for name, tally in statistics.items() if not tally["sentences"]]
    if empty:
        raise UserError(f"the {empty[0]} split has no text: none of its documents has a token; give the corpus "
                        "more documents, or that split a larger fraction")
    fraction = statistics["train"]["unknown_fraction"]
    line = f"{fraction:.0%} of the corpus's tokens are unknown to {config.vocab_file or 'the trained vocabulary'}"
    larger = "a larger --config.tokenizer.vocab_size leaves fewer unknown"
    if fraction > 0.5:
        if config.vocab_file:
            raise ConfigError(f"{line}: it is not a vocabulary of this language or case",
                              "choose another (--config.tokenizer.vocab_file), or train one (vocab_file='')")
        raise ConfigError(line, larger)
    if fraction > 0.05:
        progress(f"warning: {line}; {'check that it is the right vocabulary' if config.vocab_file else larger}")
