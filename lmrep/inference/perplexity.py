"""Sliding-window perplexity of raw texts under a network that predicts from left to right."""

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.progress import ProgressReporter
from lmrep.core.sharding import batch_sharding, make_mesh, shardings, use_mesh
from lmrep.data.characters import add_characters, known_ids
from lmrep.data.store import tokenize
from lmrep.data.tokenizers import Tokenizer, keeps_whitespace
from lmrep.inference.encode import MIN_LENGTH, batch_size, batch_tokens, make_batch, one_behind, padded_length
from lmrep.inference.load import objective_params
from lmrep.inference.run import Run
from lmrep.layers import lm_head
from lmrep.models.base import Context, Model, model_inputs
from lmrep.objectives.base import Objective
from lmrep.training.state import specs_of

BETWEEN_WORDS = re.compile(r"(?<=\S)[ \n](?=\S)")

log = logging.getLogger(__name__)


class Perplexity(NamedTuple):
    """The loss on texts that were predicted from left to right, with the counts that normalize it."""

    nll: float  # the sum of -log probability over all predicted tokens, in nats
    tokens: int  # the number of predicted tokens
    words: int  # the number of words in the raw texts, separated by white space
    bytes: int  # the number of bytes of the raw texts in UTF-8
    documents: int  # the number of texts

    @property
    def figures(self) -> dict[str, float]:
        """`token_perplexity`; `word_perplexity`, which compares models of different tokenizers; `bits_per_byte`; and
        the counts."""
        return {"token_perplexity": _exp(self.nll / max(1, self.tokens)),
                "word_perplexity": _exp(self.nll / max(1, self.words)),
                "bits_per_byte": self.nll / math.log(2) / max(1, self.bytes),
                "tokens": self.tokens, "words": self.words, "bytes": self.bytes, "documents": self.documents}


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


def perplexity(run: Run, texts: Iterable[str], length: int, stride: int, characters: int = 0) -> Perplexity:
    """Computes the perplexity of raw texts under a run that predicts from left to right.

    A text is read in windows of `length` tokens that begin `stride` apart. Each token is predicted once, from at least
    `length - stride` preceding tokens, or from all of them if there are fewer. The first token is predicted from the
    token that the run was trained to read before a document (`Run.start_token`); without such a token it is read but
    not predicted, although its word and bytes count. The end of a document is not predicted. Words and bytes are
    counted in the raw text: case and white space that the tokenizer drops are not predicted, nor the words that it
    replaces by [UNK], whose number is logged. Texts without a token to predict are left out.

    Args:
      run: a run whose objective has `Uses.next_token`.
      texts: any number, read one by one.
      length: tokens in a window.
      stride: 1 to `length - 1`.
      characters: the characters of all texts, for the estimate of the remaining time; 0 if unknown.

    Raises:
      UserError: no text gives a token, or the stride is out of range.
    """
    counts: Counter[str] = Counter()
    specials, start = run.tokenizer.vocabulary.specials, run.start_token
    unknown = run.tokenizer.vocabulary.unknown
    keep = keeps_whitespace(run.experiment.tokenizer)
    mesh = make_mesh(data=jax.device_count())
    tokens = batch_tokens() * mesh.size
    params = jax.device_put(objective_params(run, run.objective), shardings(specs_of(run.objective), mesh))
    nll_of = jax.jit(partial(sum_nll, objective=run.objective, model=run.model))

    def sequences() -> Iterator[np.ndarray]:
        for text in texts:
            ids = (encode_verbatim(run.tokenizer, text) if run.converted or run.tokenizer.characters
                   else tokenize.tokenize(run.tokenizer, [text], keep).tokens)
            counts["characters"] += len(text)
            if len(ids) + (start is not None) < 2 or not len(ids):
                counts["left out"] += 1
                continue
            counts.update(documents=1, words=len(text.split()), bytes=len(text.encode()), tokens=len(ids),
                          unknown=int((known_ids(ids, run.tokenizer.vocabulary) == unknown).sum()))
            yield ids if start is None else np.append(np.array([start], ids.dtype), ids)

    def compute(batch: dict[str, np.ndarray]) -> jax.Array:
        batch = add_characters(batch, run.tokenizer.vocabulary)
        return nll_of(params, jax.device_put(batch, batch_sharding(mesh)))

    nll, predicted, reporter = 0.0, 0, ProgressReporter(log.info, characters, every=10)
    with use_mesh(mesh):
        for batch_nll, count in sliding_window_nll(
                compute, sequences(), length, stride, specials.get("pad", 0), tokens, mesh.size):
            nll, predicted = nll + batch_nll, predicted + count
            # Some of the texts read so far wait for a full batch.
            done = predicted / counts["tokens"] * counts["characters"]
            reporter.report(done, lambda seconds, nll=nll, predicted=predicted: (
                f"{predicted:,} tokens, loss {nll / predicted:.4g}, {predicted / seconds:,.0f} tokens/s"))
    if not predicted:
        raise UserError(f"the text has no token to predict: its {counts['left out']:,} documents give the tokenizer "
                        "none; give other text")
    if left_out := counts["left out"]:
        log.info("%s documents without a token to predict are left out", f"{left_out:,}")
    if run.tokenizer.removes_unknown:
        log.info("words outside of the vocabulary are left out and not predicted, so the perplexity is too low")
    if unknown_tokens := counts["unknown"]:
        log.info("%s of %s tokens are %s; the words that they replace are not predicted, so the perplexity is too low",
                 f"{unknown_tokens:,}", f"{counts['tokens']:,}", run.tokenizer.tokens[unknown])
    return Perplexity(nll, predicted, counts["words"], counts["bytes"], counts["documents"])


def encode_verbatim(tokenizer: Tokenizer, text: str, most: int = tokenize.CALL_CHARACTERS) -> np.ndarray:
    """Tokenizes a text with its white space, as published models were trained to read it, to int32[t]. (Corpora are
    read sentence by sentence, `data/store/tokenize.py`.) A text of more than `most` characters is split where no
    tokenizer merges: before a space or line break between two words."""
    cuts = [0]
    while len(text) - cuts[-1] > most:
        low, high = cuts[-1] + most // 2, cuts[-1] + most
        cuts.append(max((space.start() for space in BETWEEN_WORDS.finditer(text, low, high)), default=high))
    parts = [text[start:end] for start, end in pairwise([*cuts, len(text)])]
    parts = parts[::-1] if tokenizer.backward else parts
    return np.concatenate([tokenizer.encode_batch([part])[0] for part in parts])


def windows(length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yields the windows of a text of `length` tokens as (start, end, first): tokens [start, end) are read, and those
    from `first` on are predicted. Each token but the text's first is predicted in one window.

    Windows have `window` tokens and begin `stride` apart, so that a token is predicted from at least
    `window - stride` tokens, or from all that precede it.

    Raises:
      UserError: at once, if the stride would skip tokens or predict none.
    """
    if not 0 < stride < window:
        raise UserError(f"stride is {stride}; expected 1 to {window - 1}, less than the {window} tokens of a window")

    def generate() -> Iterator[tuple[int, int, int]]:
        first, start = 1, 0
        while first < length:
            end = min(start + window, length)
            yield start, end, first
            first, start = end, start + stride

    return generate()


def sliding_window_nll(
    run: Callable[[dict[str, np.ndarray]], Array], texts: Iterable[np.ndarray], window: int, stride: int, pad: int,
    tokens: int = 8192, multiple: int = 1,
) -> Iterator[tuple[float, int]]:
    """Yields (sum of -log probability in nats, number of predicted tokens) of each batch of windows.

    A batch holds windows of similar length, of any texts, so that there is little padding.

    Args:
      run: a compiled `sum_nll` with its parameters.
      texts: int[n] each, with the token that marks the start of a text if there is one; read as they are needed.
      window, stride: as in `windows`.
      pad: the id of padding.
      tokens: the approximate number of tokens of a batch, padding included.
      multiple: the batch size is a multiple of this.
    """
    batches = (_batch(members, length, size, pad) for members, length, size in _group_windows(
        texts, window, stride, tokens, multiple))
    for nll, count in one_behind((run(batch), int(batch["weights"].sum())) for batch in batches):
        yield float(nll), count


def _group_windows(
    texts: Iterable[np.ndarray], window: int, stride: int, tokens: int, multiple: int
) -> Iterator[tuple[list[tuple[np.ndarray, int]], int, int]]:
    """Yields (windows, each with its first predicted position; their padded length; batch size) of each batch. There
    are few lengths, each with one batch size, so that little is compiled."""
    waiting: dict[int, list[tuple[np.ndarray, int]]] = {}
    for text in texts:
        for start, end, first in windows(len(text), window, stride):
            length = padded_length(end - start, MIN_LENGTH, window)
            members = waiting.setdefault(length, [])
            members.append((np.array(text[start:end]), first - start))  # a copy, so that a long text can be freed
            if len(members) == (size := batch_size(length, tokens, multiple)):
                yield waiting.pop(length), length, size
    for length, members in waiting.items():
        yield members, length, batch_size(length, tokens, multiple)


def _batch(members: Sequence[tuple[np.ndarray, int]], length: int, size: int, pad: int) -> dict[str, np.ndarray]:
    """Makes a batch of windows, with weight 1 where the next token is predicted."""
    batch = make_batch([[ids] for ids, _ in members], length, size, pad)
    weights = np.zeros((size, length), np.float32)
    for row, (ids, first) in enumerate(members):
        weights[row, first - 1 : len(ids) - 1] = 1
    return batch | {"targets": np.pad(batch["tokens"][:, 1:], ((0, 0), (0, 1))), "weights": weights}


def sum_nll(params: Tree, batch: dict[str, Array], *, objective: Objective, model: Model) -> Array:
    """Computes the sum of -log probability of the `targets`, times their `weights`, in nats, by `Uses.next_token`."""
    next_token, targets = objective.uses.next_token, batch["targets"]

    def by_logits(hidden: Array, targets: Array) -> Array:
        y = next_token.logits(params, hidden).astype(jnp.float32)
        return jax.nn.logsumexp(y, axis=-1) - jnp.take_along_axis(y, targets[..., None], axis=-1)[..., 0]

    hidden = model.encode(params["encoder"], model_inputs(model, batch, conditions_on=Context.LEFT)).hidden
    nll = (next_token.nll(params, hidden, targets) if next_token.nll else
           lm_head.map_chunks(by_logits, model.vocab_size, hidden, targets))
    return (nll * batch["weights"]).sum()
