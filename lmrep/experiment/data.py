"""The data of an experiment, whatever it is trained on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmrep.data.mixture import Sources
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples
from lmrep.data.store.prepare import Prepared
from lmrep.data.store.token_store import Store
from lmrep.data.tokenizers import Tokenizer
from lmrep.experiment.record import Experiment


@dataclass(frozen=True)
class Data:
    """Text or labelled examples, tokenized: what `build.prepare` gives, and stages are built of."""

    experiment: Experiment  # with what the training data decides: labels, and steps where epochs are given
    tokenizer: Tokenizer  # loaded, or trained on the training text
    # split -> its tokens, from which a stage's format makes examples; or its labelled examples
    splits: Mapping[str, Store | Sources | Examples] = field(repr=False)
    # split -> its labelled examples as they were read; {} of text
    records: Mapping[str, list[Record]] = field(default_factory=dict, repr=False)
    corpus: Prepared | None = None  # the text as it was prepared, with its statistics; None of labelled examples
