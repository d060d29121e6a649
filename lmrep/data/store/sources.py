"""The token stores of a mixture of corpora. They share one tokenizer, which is loaded, or trained on text of all
corpora in the proportions of the mixture."""

import dataclasses
import itertools
import pathlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from lmrep.core import remote_cache, sealed_cache
from lmrep.core.files import digest
from lmrep.data import corpora, tokenizers
from lmrep.data.mixture import DataSource, Sources, block_counts, mixing_weights
from lmrep.data.store import scan
from lmrep.data.store.prepare import Prepared, prepare_corpus, total
from lmrep.data.store.scan import Progress


def prepare_sources(
    sources: Sequence[DataSource], temperature: float, tokenizer: tokenizers.Config, data_dir: str | pathlib.Path,
    progress: Progress | None = None, size_cap: int = 0,
) -> Prepared:
    """Opens or builds the stores of several corpora, as `prepare_corpus` for one. Each split that all of them have is a
    `Sources`. Counts are weighted by the proportions of the mixture; statistics are sums over the sources.

    Args:
      sources: the corpora and their weights.
      temperature: T for weights times the tokens of each source to the power of 1 / T (Conneau and Lample 2019): 1
        samples sources by their size, larger values sample small ones more often. 0 for the weights alone.
      tokenizer, data_dir, progress: as for `prepare_corpus`.
      size_cap: the number of tokens as which a larger source counts; 0 for none. The text on which a tokenizer is
        trained is in the proportions without it, since tokens cannot be counted before.

    Raises:
      UserError, RunFault: as `prepare_corpus`.
    """
    progress = progress or (lambda line: None)
    if not tokenizer.vocab_file:
        directory = _common_tokenizer(sources, temperature, tokenizer, data_dir, progress)
        tokenizer = dataclasses.replace(tokenizer, vocab_file=str(directory))
    prepared = [prepare_corpus(source.data, tokenizer, data_dir, progress) for source in sources]
    tokens = [corpus.stores["train"].tokens for corpus in prepared]
    blocks = block_counts(mixing_weights([source.weight for source in sources], tokens, temperature, size_cap))
    weights = np.array(blocks) / sum(blocks) / tokens * sum(tokens)
    counts = sum(weight * corpus.tokenizer.vocabulary.counts for weight, corpus in zip(weights, prepared, strict=True))
    counted = prepared[0].tokenizer.with_counts(np.round(counts).astype(np.int64))
    splits = [split for split in prepared[0].stores if all(split in corpus.stores for corpus in prepared)]
    names = tuple(source.name for source in sources)
    stores = {split: Sources(names, tuple(corpus.stores[split] for corpus in prepared), blocks, counted.vocabulary)
              for split in splits}
    totals = total(
        (split, {name: n for name, n in corpus.statistics[split].items() if isinstance(n, int)})
        for split, corpus in itertools.product(splits, prepared))
    text = dict(sum((Counter(corpus.text) for corpus in prepared), Counter()))
    described = "; ".join(f"{name} {corpus.sentences}" for name, corpus in zip(names, prepared, strict=True))
    return dataclasses.replace(prepared[0], tokenizer=counted, stores=stores, statistics=totals, text=text,
                               sentences=described)


def _common_tokenizer(
    sources: Sequence[DataSource], temperature: float, config: tokenizers.Config,
    data_dir: str | pathlib.Path, progress: Progress,
) -> pathlib.Path:
    """Returns the directory of a tokenizer trained on the train splits of all sources; trains it if it is missing."""
    opened = [corpora.open_corpus(source.data) for source in sources]
    identities = [[corpus.fingerprint(), corpora.splits.VERSION, source.weight, source.data.validation,
                   source.data.test] for corpus, source in zip(opened, sources, strict=True)]
    keep_whitespace = tokenizers.keeps_whitespace(config)
    identity = digest([identities, temperature, tokenizers.TOKENIZERS[config.name].rules, keep_whitespace,
                       tokenizers.settings_of_ids(config), scan.TRAINING_SAMPLE])
    directory = remote_cache.local_data_dir(data_dir) / f"tokenizer-{identity[:16]}"
    if not sealed_cache.find_damage(directory) or (
            not directory.exists() and remote_cache.download_sealed(data_dir, directory.name, progress)):
        return directory
    progress(f"reading {', '.join(corpus.description for corpus in opened)}")
    surveys = [scan.survey(corpus, source.data, progress) for corpus, source in zip(opened, sources, strict=True)]
    sizes = [max(1, survey.characters("train")) for survey in surveys]
    weights = np.array(mixing_weights([source.weight for source in sources], sizes, temperature))
    budgets = weights / weights.sum() * min(sum(sizes), scan.TRAINING_SAMPLE)
    progress(f"training a tokenizer of {config.vocab_size:,} tokens on {len(sources)} sources")
    trained = tokenizers.train(config, lambda: (
        line for source, corpus, survey, budget in zip(sources, opened, surveys, budgets, strict=True)
        for line in scan.sample(corpus, survey, budget, keep_whitespace, scan.Report(
            f"reading {source.name} for the tokenizer", int(survey.lengths.sum()), progress))))
    # Nothing is written before: a corpus that cannot be read leaves no directory.
    return sealed_cache.cached(directory, trained.save, lambda directory: directory, {}, "the tokenizer",
                               "free some space or choose another --data_dir")
