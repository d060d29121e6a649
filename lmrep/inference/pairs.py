"""Evaluates a model on minimal pairs (Marvin and Linzen, 2018; BLiMP, Warstadt et al., 2020): how often it gives the
acceptable sentence of a pair the higher score."""

import dataclasses
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.core import input_files, text_files
from lmrep.core.errors import RunFault, UserError
from lmrep.core.json_text import json_object
from lmrep.core.messages import counted
from lmrep.core.progress import ProgressReporter
from lmrep.core.sharding import batch_sharding, make_mesh, replicated, use_mesh
from lmrep.data.characters import add_characters, known_ids
from lmrep.data.tokenizers import keeps_whitespace
from lmrep.experiment import build
from lmrep.experiment.config import build_model, stage_at
from lmrep.inference.encode import BATCH_ELSEWHERE
from lmrep.inference.run import Run
from lmrep.inference.scores import Scores, Text, score_texts
from lmrep.models.base import Context
from lmrep.objectives.base import Objective
from lmrep.objectives.scoring import Scoring, Views

GOOD, BAD, PARADIGM, PHENOMENON = "sentence_good", "sentence_bad", "UID", "linguistics_term"
ROUNDING = 1e-6  # scores that differ by no more than this, relative to the larger one, are tied
MAX_PADDING, MAX_PADDING_ELSEWHERE = {"cpu": 2**14}, 2**20  # `max_padding` of `score_texts`, by backend
BATCH = {"cpu": 2048}  # tokens of a batch on each device, by backend
NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal distribution

log = logging.getLogger(__name__)


class TooLong(UserError):
    """A text has more tokens than the network has positions. `problem` says so, without what to do."""

    def __init__(self, where: str, text: str, tokens: int, positions: int, of: str = ""):
        self.problem = f"{where}: {text[:60]!r}... has {tokens:,} tokens{of}; the model takes {positions:,} at most"
        super().__init__(f"{self.problem}: shorten it, or leave it out")


class Pair(NamedTuple):
    """A minimal pair: two sentences of which the first is acceptable."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    where: str  # file and line, for messages


# Reading


def read(path: str | Path, examples: int | None = None) -> list[Pair]:
    """Reads the pairs in a directory of JSON Lines files, or in one such file.

    Args:
      path: each line has the fields `sentence_good` and `sentence_bad`, and may have `UID`, the paradigm (by default
        the file's name without its suffix), and `linguistics_term`, the phenomenon (by default the paradigm), as in
        BLiMP. Other fields and empty lines are ignored.
      examples: the number of pairs to read of each paradigm, from the first on; None for all.

    Raises:
      UserError: there is no such file, or no pair; a line is not JSON, lacks a sentence, or has an empty field; a
        paradigm has two phenomena.
    """
    path = Path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    pairs, number, phenomena = [], Counter(), {}
    for pair in itertools.chain.from_iterable(map(_read_file, files)):
        if (known := phenomena.setdefault(pair.paradigm, pair.phenomenon)) != pair.phenomenon:
            raise UserError(f"{pair.where}: the {PHENOMENON} of the {PARADIGM} {pair.paradigm!r} is "
                            f"{pair.phenomenon!r}, and {known!r} in an earlier line; a paradigm has one")
        number[pair.paradigm] += 1
        if examples is None or number[pair.paradigm] <= examples:
            pairs.append(pair)
    if not pairs:
        raise UserError(f"{path} holds no pairs; expected a directory with files *.jsonl, or one such file, with the "
                        f"fields {GOOD} and {BAD} in each line, such as those of BLiMP")
    return pairs


def _read_file(file: Path) -> Iterator[Pair]:
    name = Path(input_files.content_name(file)).stem
    for number, line in enumerate(text_files.lines(file), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        record = json_object(line, where, f"an object with the fields {GOOD} and {BAD}")
        record.setdefault(PARADIGM, name)
        record.setdefault(PHENOMENON, record[PARADIGM])
        for field in (GOOD, BAD, PARADIGM, PHENOMENON):
            if field not in record:
                raise UserError(f"{where} has no field {field!r}; expected the fields {GOOD} and {BAD}")
            if not isinstance(record[field], str) or not record[field].strip():
                raise UserError(f"{where}: {field} is {record[field]!r}; expected text that is not empty")
        yield Pair(record[GOOD], record[BAD], record[PARADIGM], record[PHENOMENON], where)


# Scores


def evaluate(run: Run, pairs: Sequence[Pair], pll: str = "", end_mark: bool = False) -> dict[str, Any]:
    """Computes the accuracies of a run on minimal pairs: the result of `figures`, with the name, `score`, and the
    `summary` of the scoring.

    Sentences are scored in float32, whatever the dtype of training; equal sentences are scored once.

    Args:
      run: a run whose objective has `Uses.scorings`.
      pll: another scoring of the objective, such as "word_l2r"; "" for its default.
      end_mark: whether a model that predicts from left to right is also scored on the token that ends a document. The
        published figures of GPT-2 (Salazar et al., 2020) leave it out: it depends on where training texts ended.

    Raises:
      UserError: the objective has no such scoring, or the run lacks its head; a sentence is too long or has no token;
        `end_mark` is set, and no token ends a document of this run.
      RunFault: a score is not finite.
    """
    name = scoring_name(run, pll)
    scoring = in_float32(run).uses.scorings[name]
    if end_mark and around_document(run, end_mark) == around_document(run):
        raise UserError(f"end_mark is set, and {run.directory} scores no token after a sentence; leave it out")
    summary = scoring.summary + (f", with the token {run.tokenizer.tokens[around_document(run, True)[1][0]]} that ends "
                                 "a document" if end_mark else "")
    where: dict[str, str] = {}
    for pair in pairs:
        for text in (pair.good, pair.bad):
            where.setdefault(text, pair.where)
    texts = {text: tokenize(run, text, line, end_mark) for text, line in where.items()}
    number = {text: i for i, text in enumerate(texts)}
    log.info("%s pairs, %s different sentences; score: %s", f"{len(pairs):,}", f"{len(texts):,}", summary)
    scores = checked_scores(run, list(texts.values()), list(where.items()), scoring)
    good, bad = np.array([(number[pair.good], number[pair.bad]) for pair in pairs]).T
    identical = np.array([np.array_equal(texts[pair.good].ids, texts[pair.bad].ids) for pair in pairs])
    return {"score": name + "_with_end" * end_mark, "summary": summary} | figures(pairs, scores, good, bad, identical)


def in_float32(run: Run) -> Objective:
    """Builds the run's objective with float32 computation, since bfloat16 would make ties."""
    execution = dataclasses.replace(run.experiment.execution, dtype="float32")
    experiment = dataclasses.replace(run.experiment, execution=execution)
    model = build_model(experiment, run.tokenizer.size)
    return build.objective(stage_at(experiment, run.step), model, run.tokenizer.vocabulary, run.frozen)


def scoring_name(run: Run, pll: str) -> str:
    """Returns the name of the scoring that `pll` means in `evaluate`. Raises UserError if the run does not have it."""
    known = run.objective.uses.scorings
    if not known:
        raise UserError(f"{run.directory} was trained with objective {run.objective.name!r}, which gives sentences no "
                        "score; evaluate it without pairs")
    name = pll if pll in known else f"pll_{pll}" if pll else next(iter(known))
    if name not in known:
        others = [scoring.removeprefix("pll_") for scoring in list(known)[1:]]
        raise UserError(f"pll is {pll!r}; expected " + (" or ".join(others) if others else
                        f"none: {run.directory} was trained with objective {run.objective.name!r}, whose score is the "
                        f"{known[next(iter(known))].summary}"))
    lacking = set(known[name].heads) - run.params.get("objective", {}).keys()
    if lacking:
        raise UserError(f"{run.directory} lacks the head {', '.join(sorted(lacking))} that scores sentences; the "
                        "checkpoint that it was converted from has none either. Train one with "
                        f":init={run.directory}")
    return name


def why_no_token_scores(run: Run, scoring: Scoring) -> str:
    """Says why a scoring of a run has no score for each token in its context; "" if it has."""
    if run.tokenizer.backward:
        return "it reads from right to left"
    return "" if scoring.by_token else f"its score is the {scoring.summary}"


def tokenize(run: Run, text: str, where: str, end_mark: bool = False, start: int = 0) -> Text:
    """Tokenizes a sentence, with the special tokens of `around_document`.

    Args:
      where: its file and line, for messages.
      start: the number of characters before the part that is scored (`Text.scored`), which has the white space before
        it and a token that begins earlier; 0: the whole text is scored.

    Raises:
      UserError: it has no token, or is not Unicode; `TooLong` if it has more tokens than the model takes.
    """
    try:
        read = as_in_training(run, text)
        encoding = run.tokenizer.encode(read)
    except TypeError:
        raise UserError(f"{where}: {text[:60]!r} is not Unicode text; correct it") from None
    before, after = around_document(run, end_mark)
    ids = np.array([*before, *encoding.ids, *after], np.int32)
    if not len(encoding.ids):
        raise UserError(f"{where}: the tokenizer gives no token for {text[:60]!r}; give another sentence")
    if 0 < run.model.max_length < len(ids):
        raise TooLong(where, text, len(ids), run.model.max_length)
    words = [-1 if word is None else word for word in encoding.words]
    words = np.array([-1] * len(before) + words + [-1] * len(after), np.int32)
    if not start:
        return Text(ids, words)
    cut = len(as_in_training(run, text[:start].rstrip()))
    # A token of the text before may end with the white space after it.
    scored = sum(end > cut and bool(read[max(begin, cut):end].strip() or not read[begin:cut].strip())
                 for begin, end in encoding.offsets)
    if not scored:
        raise UserError(f"{where}: the tokenizer gives no token for {text[start:][:60]!r}; give another text")
    return Text(ids, words, scored)


def as_in_training(run: Run, text: str) -> str:
    """Returns a text with white space as in the run's training text: as it is, or each run of it as one space."""
    return text if run.converted or keeps_whitespace(run.experiment.tokenizer) else " ".join(text.split())


def around_document(run: Run, end_mark: bool = False) -> tuple[list[int], list[int]]:
    """Returns the ids before and after a sentence: those around a document in training. A model that predicts from left
    to right is conditioned on the ids before, and with `end_mark` also predicts the token that ends a document."""
    before, after = run.special_tokens
    if run.conditions_on != Context.LEFT:
        return before, after
    start = run.start_token
    return [] if start is None else [start], (after or sorted(run.end_tokens)[:1]) if end_mark else []


def _log_unknown(run: Run, texts: Iterable[Text]) -> None:
    words = run.tokenizer.vocabulary
    counts = np.sum([((known_ids(text.ids, words) == words.unknown).sum(), len(text.ids)) for text in texts], axis=0)
    if counts[0]:
        log.info("%s of %s tokens are %s: the vocabulary lacks these words", f"{counts[0]:,}", f"{counts[1]:,}",
                 run.tokenizer.tokens[words.unknown])


def score(
    run: Run, texts: Sequence[Text], scoring: Scoring, tokens: int = 0,
    each: Callable[[Views, np.ndarray], None] = lambda views, values: None,
) -> Scores:
    """Scores texts, and logs progress. A batch has about `tokens` tokens; 0: a number that suits the backend. `each` is
    as in `score_texts`."""
    mesh = make_mesh(data=jax.device_count())
    tokens = tokens or BATCH.get(jax.default_backend(), BATCH_ELSEWHERE) * mesh.size
    log_probabilities = jax.jit(scoring.log_probabilities)
    params = jax.device_put(run.params, replicated(mesh))
    reporter = None

    def compute(batch: dict[str, np.ndarray]) -> jax.Array:
        batch = add_characters(batch, run.tokenizer.vocabulary)
        return log_probabilities(params, jax.device_put(batch, batch_sharding(mesh)))

    def report(done: int, total: int) -> None:
        nonlocal reporter
        reporter = reporter or ProgressReporter(log.info, total, done, every=10)  # after the first compilation
        reporter.report(done, lambda seconds: f"scored {done / total:.0%}")

    with use_mesh(mesh), jax.default_matmul_precision("float32"):
        return score_texts(compute, texts, scoring, pad=run.tokenizer.vocabulary.specials.get("pad", 0),
                             tokens=tokens, multiple=mesh.size, max_padding=MAX_PADDING.get(
                               jax.default_backend(), MAX_PADDING_ELSEWHERE), report=report, each=each)


def checked_scores(run: Run, texts: Sequence[Text], sources: Sequence[tuple[str, str]], scoring: Scoring) -> Scores:
    """Scores texts, and logs how many tokens are unknown words. `sources` has (text, file and line) of each, for
    messages.

    Raises:
      UserError: a text has no token that is predicted.
      RunFault: a score is not finite.
    """
    _log_unknown(run, texts)
    scores = score(run, texts, scoring)
    for (text, where), total, count in zip(sources, *scores, strict=True):
        if not count:
            raise UserError(f"{where}: {text!r} has no token that {run.directory} predicts: it was trained without a "
                            "token before the first one; give longer sentences")
        if not math.isfinite(total):
            raise RunFault(f"{where}: the score of {text!r} is {total}; the parameters of {run.directory} at step "
                           f"{run.step} are not finite, or too large: give another --step")
    return scores


# Accuracies


def outcomes(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Returns float64[n]: 1 where the acceptable sentence has the higher score, 1/2 for a tie, 0 otherwise. Scores that
    differ only by float32 rounding are tied."""
    tied = np.abs(good - bad) <= ROUNDING * np.maximum(np.abs(good), np.abs(bad))
    return np.where(tied, 0.5, good > bad)


def wilson(mean: float, n: int) -> tuple[float, float]:
    """Computes the 95 % interval of a proportion of n (Wilson, 1927); a little too wide with ties, which count half."""
    center, width = mean + NORMAL**2 / (2 * n), NORMAL * math.sqrt(mean * (1 - mean) / n + (NORMAL / (2 * n))**2)
    scale = 1 + NORMAL**2 / n
    return max(0.0, (center - width) / scale), min(1.0, (center + width) / scale)


def mean_interval(means: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Computes the 95 % interval of the mean of independent proportions from the Wilson interval of each (Zou et al.,
    2009, "A note on confidence interval estimation for a linear function of binomial proportions"). It covers other
    pairs of the same paradigms, not other paradigms. For a single proportion it is Wilson's interval."""
    low, high = combined(means, np.array([wilson(mean, n) for mean, n in zip(means, counts, strict=True)]))
    return max(0.0, low), min(1.0, high)


def combined(means: np.ndarray, intervals: np.ndarray) -> tuple[float, float]:
    """Computes the 95 % interval of the mean of independent estimates float64[n] from the interval of each, [n, 2]
    (Zou et al., 2009)."""
    low, high = intervals.T
    k = len(means)
    return (float(means.mean() - np.sqrt(((means - low)**2).sum()) / k),
            float(means.mean() + np.sqrt(((high - means)**2).sum()) / k))


def figures(
    pairs: Sequence[Pair], scores: Scores, good: np.ndarray, bad: np.ndarray, identical: np.ndarray
) -> dict[str, Any]:
    """Computes the accuracies on pairs.

    Args:
      scores: the scores of all sentences.
      good, bad: int[n], the indices of each pair's sentences in `scores`.
      identical: bool[n], whether the sentences of a pair have the same ids.

    Returns:
      {name: value}:

      accuracy, low, high: the mean over paradigms, comparing sums of log probabilities, and its 95 % interval.
      per_token_accuracy, per_token_low, per_token_high: the same, comparing means per token.
      pairs, ties, identical, disagreeing: the numbers of pairs, of ties, which count one half, of identical pairs, and
        of pairs that sums and means decide differently.
      phenomena, paradigms: {name: the same values}. A phenomenon's accuracy is the mean over its paradigms; a paradigm
        has its `phenomenon` too.
    """
    sums, means = scores.sums, scores.sums / scores.counts
    # The scores of identical sentences differ by rounding where they were in batches of other shapes.
    by_sum, by_mean = (np.where(identical, 0.5, outcomes(x[good], x[bad])) for x in (sums, means))
    names = np.array([pair.paradigm for pair in pairs])
    columns = np.stack([by_sum, by_mean, by_sum == 0.5, identical, by_sum != by_mean])
    phenomenon = {pair.paradigm: pair.phenomenon for pair in pairs}
    members = {paradigm: columns[:, names == paradigm] for paradigm in phenomenon}

    def entry(paradigms: Sequence[str]) -> dict[str, Any]:
        groups = [members[paradigm] for paradigm in paradigms]
        counts = np.array([group.shape[1] for group in groups])
        accuracies = np.array([group[:2].mean(1) for group in groups])
        ties, same, disagreeing = sum(group[2:].sum(1) for group in groups).astype(int).tolist()
        (low, high), (mean_low, mean_high) = (mean_interval(column, counts) for column in accuracies.T)
        accuracy, per_token = accuracies.mean(0).tolist()
        return {"accuracy": accuracy, "low": low, "high": high, "per_token_accuracy": per_token,
                "per_token_low": mean_low, "per_token_high": mean_high, "pairs": int(counts.sum()), "ties": ties,
                "identical": same, "disagreeing": disagreeing}

    return entry(list(phenomenon)) | {
        "phenomena": {name: entry([paradigm for paradigm in phenomenon if phenomenon[paradigm] == name])
                      for name in dict.fromkeys(phenomenon.values())},
        "paradigms": {name: {"phenomenon": phenomenon[name]} | entry([name]) for name in phenomenon}}


def table(accuracies: Mapping[str, Any]) -> str:
    """Formats the result of `evaluate` as a table: each phenomenon with its paradigms, and their mean."""
    both = accuracies["disagreeing"] > 0
    lines = []
    for name, entry in accuracies["phenomena"].items():
        paradigms = [(f"  {paradigm}", values) for paradigm, values in accuracies["paradigms"].items()
                     if values["phenomenon"] == name and paradigm != name]
        lines += [(name, entry), *paradigms]
    lines.append((f"mean over {counted(len(accuracies['paradigms']), 'paradigm')}", accuracies))
    width = max(len(name) for name, _ in lines)
    head = f"{'':{width}}  {'pairs':>6}  accuracy  95 % interval" + "  per token  95 % interval" * both
    text = [head]
    for name, e in lines:
        line = f"{name:{width}}  {e['pairs']:>6,}  {e['accuracy']:>8.1%}  {_interval(e['low'], e['high'])}"
        text.append(line + both * f"  {e['per_token_accuracy']:>9.1%}  "
                    f"{_interval(e['per_token_low'], e['per_token_high'])}")
    return "\n".join([*text, "", *notes(accuracies)])


def _interval(low: float, high: float) -> str:
    return f"{100 * low:5.1f} - {100 * high:5.1f}"


def notes(accuracies: Mapping[str, Any]) -> list[str]:
    """Explains accuracies in sentences: the score, the intervals, and ties."""
    lines = [f"Score: {accuracies['summary']}, in nats. Chance is 50 %.",
             "Intervals: Wilson's, and of means over paradigms that of Zou et al. (2009) from Wilson's."]
    if accuracies["ties"]:
        lines.append(f"{accuracies['ties']:,} pairs are ties, which count one half.")
    if accuracies["identical"]:
        lines.append(f"{accuracies['identical']:,} of them are identical for the vocabulary, as pairs that differ in "
                     "capital letters alone are for an uncased one.")
    if accuracies["disagreeing"]:
        lines.append(f"Accuracy compares sums over tokens; in {accuracies['disagreeing']:,} pairs the mean per token "
                     "decides otherwise.")
    return lines
