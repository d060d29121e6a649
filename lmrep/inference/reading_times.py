"""Evaluates a model on reading times: how much better a regression predicts how long people read a word with the
model's surprisal of it, -log of its probability given the words before (Hale, 2001; Levy, 2008).

Sentences, measures and regressions are those of the pipeline of the BabyLM challenge (Charpentier et al., 2025), with
data of de Varda et al. (2023): a row for each word, with the frequency and length of the word and its position.
"""

import csv
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmrep.core import text_files
from lmrep.core.errors import UserError
from lmrep.inference import pairs
from lmrep.inference.run import Run
from lmrep.inference.scores import Text

EYE_TRACKING, SELF_PACED = SCORES = "eye_tracking", "self_paced"
WORD, PREVIOUS = ("item", "word"), ("prev_item", "prev_word")  # columns: the text before a word, and the word
PREDICTORS = ("Subtlex_log10", "length", "context_length")
MEASURES = {EYE_TRACKING: ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound"),
            SELF_PACED: ("self_paced_reading_time",)}
NUMBERS = (*PREDICTORS, "prev_length", *itertools.chain.from_iterable(MEASURES.values()))
# Values that pandas, which the pipeline uses, reads as missing. In `item` alone, the pipeline takes them for the text
# "None", which the challenge's file leaves out where a sentence begins with it; a previous word after it is missing.
MISSING = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
           "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
MASKS = 3  # that stand for a word and what follows it, for a model that fills masks


class Words(NamedTuple):
    """The rows of one file."""

    task: str  # its name
    texts: list[tuple[str, str]]  # (the text before a word, the word)
    previous: list[tuple[str, str] | None]  # of the word before; None if its text is missing
    numbers: dict[str, np.ndarray]  # {name of `NUMBERS`: float64[n]}; NaN where there is none
    places: list[str]  # file and line, for messages


def read(path: str | Path) -> list[Words]:
    """Reads the reading times in the files *.csv of a directory and its subdirectories, or in one such file. Files with
    none of the columns of `MEASURES` are skipped.

    Raises:
      UserError: a file is not CSV, or lacks a column; a row has no word, or a value is no number.
    """
    path = Path(path)
    root, files = (path, sorted(path.rglob("*.csv"))) if path.is_dir() else (
        path.parent, [path] * (path.suffix == ".csv"))
    return [words for file in files if (words := _read_file(file, root))]


def _read_file(file: Path, root: Path) -> Words | None:
    table = csv.DictReader((f"{line}\n" for line in text_files.lines(file)), restval="")
    columns = (*WORD, *PREVIOUS, *NUMBERS)
    try:
        names = table.fieldnames or ()
        if not {*names} & {*itertools.chain.from_iterable(MEASURES.values())}:
            return None
        if missing := [name for name in columns if name not in names]:
            raise UserError(f"{file} lacks the columns {', '.join(missing)}; expected {', '.join(columns)}, as in the "
                            "challenge's reading_data.csv")
        rows = [(f"{file}, line {table.line_num}", row) for row in table]
    except csv.Error as error:
        raise UserError(f"{file} is not CSV ({error}); expected the columns {', '.join(columns)}") from None
    for where, row in rows:
        if not row["word"].strip():
            raise UserError(f"{where}: word is {row['word']!r}; expected a word")
        for name in NUMBERS:
            if row[name] not in MISSING and math.isnan(text_files.parse_number(row[name])):
                raise UserError(f"{where}: {name} is {row[name]!r}; expected a number, or nothing where none is known")
    return Words(
        file.stem if file.parent == root else file.parent.relative_to(root).as_posix(),
        [("None" if row["item"].strip() in MISSING else row["item"].strip(), row["word"].strip()) for _, row in rows],
        [tuple(row[name].strip() for name in PREVIOUS) if row["prev_item"].strip() not in MISSING
         and row["prev_word"].strip() else None for _, row in rows],
        {name: np.array([text_files.parse_number(row[name]) for _, row in rows]) for name in NUMBERS},
        [where for where, _ in rows])


def evaluate(run: Run, words: Words, pll: str = "") -> dict[str, Any]:
    """Computes how much a run's surprisals explain of reading times.

    Args:
      run, pll: as in `pairs.evaluate`; the score must be one of tokens.

    Returns:
      eye_tracking, self_paced: the mean over the `MEASURES` of `explained`, a fraction; self-paced reading with the
        length and the surprisal of the previous word as further predictors.
      items: the number of rows.
      parts: {measure: {"explained", "items"}}, with the number of rows that have all values.
      predictions: of each row, its number, the surprisal of its word in nats, and that of the previous word, NaN where
        there is none, as in the pipeline's predictions.json.

    Raises:
      UserError: as `pairs.evaluate`, `pairs.TooLong` for a text; too few rows have all values.
      RunFault: a score is not finite.
    """
    first = words.places[0].rpartition(", ")[0] if words.places else words.task
    if reason := pairs.why_no_token_scores(run, pairs.in_float32(run).uses.scorings[pairs.scoring_name(run, pll)]):
        raise UserError(f"{first}: {run.directory} gives words no surprisal: {reason}. Leave such files out, or give a "
                        "left-to-right or a masked model")
    used: dict[tuple[str, str], str] = {}  # {text: its first file and line}
    for text, place in zip([*words.texts, *words.previous], [*words.places, *words.places], strict=True):
        if text is not None:
            used.setdefault(text, place)
    surprisal = dict(zip(used, surprisals(run, [*used], [*used.values()], pll), strict=True))
    now = np.array([surprisal[text] for text in words.texts])
    before = np.array([math.nan if text is None else surprisal[text] for text in words.previous])
    parts, means = {}, {}
    for score, measures in MEASURES.items():
        columns = [words.numbers[name] for name in PREDICTORS]
        if score == SELF_PACED:
            columns += [words.numbers["prev_length"], before]
        for measure in measures:
            table = np.stack([words.numbers[measure], *columns, now])
            table = table[:, np.isfinite(table).all(0)]
            least = 2 + len(columns) * (len(columns) + 1) // 2  # the coefficients
            if table.shape[1] <= least:
                raise UserError(f"{first} has {table.shape[1]:,} rows with all values for {measure}; its regression "
                                f"needs more than {least}")
            parts[measure] = {"explained": explained(table[0], table[1:-1], table[-1]), "items": table.shape[1]}
        means[score] = float(np.mean([parts[measure]["explained"] for measure in measures]))
    predictions = [{"id": i, "pred": float(pred), "prev_pred": float(prev)}
                   for i, (pred, prev) in enumerate(zip(now, before, strict=True))]
    return means | {"items": len(words.texts), "parts": parts, "predictions": predictions}


def explained(measure: np.ndarray, predictors: np.ndarray, surprisal: np.ndarray) -> float:
    """Computes the fraction of the variance that a least-squares regression on `predictors` and their pairwise products
    leaves unexplained, and that surprisal explains: (R² - R² of the baseline) / (1 - R² of the baseline), which is the
    squared partial correlation. 0 if the baseline explains all.

    Args:
      measure, surprisal: float64[n].
      predictors: float64[k, n].
    """
    y, *columns, x = (values - values.mean() for values in (measure, *predictors, surprisal))
    columns = [values / (values.std() or 1) for values in columns]  # neither changes R², with products and without
    design = np.stack([np.ones_like(y), *columns, *(a * b for a, b in itertools.combinations(columns, 2))], 1)
    baseline, full = (float(np.square(y - matrix @ np.linalg.lstsq(matrix, y, rcond=None)[0]).sum())
                      for matrix in (design, np.column_stack([design, x / (x.std() or 1)])))
    return float(max(0.0, 1 - full / baseline)) if baseline > 1e-12 * (y @ y) else 0.0


def surprisals(run: Run, texts: Sequence[tuple[str, str]], places: Sequence[str], pll: str = "") -> np.ndarray:
    """Computes the surprisals float64[n], in nats, of words given the text before each, in float32. `places` has the
    file and line of each, for messages.

    A model that predicts from left to right gives each token of the word given the text before. For a model that fills
    masks, the rest of the sentence is hidden: a token is predicted at the first of `MASKS` masks after the text and the
    earlier tokens of the word, which approximates generation (Samuel, 2024).
    """
    name = pairs.scoring_name(run, pll)
    tokenized = [_parts(run, *text, place, masks=name.startswith("pll"))
                 for text, place in zip(texts, places, strict=True)]
    flat = [*itertools.chain.from_iterable(tokenized)]
    sources = [(" ".join(text), place) for text, place, parts in zip(texts, places, tokenized, strict=True)
               for _ in parts]
    scores = pairs.checked_scores(run, flat, sources, pairs.in_float32(run).uses.scorings[name])
    of = np.repeat(np.arange(len(texts)), [len(parts) for parts in tokenized])
    return -np.bincount(of, scores.sums, len(texts))


def _parts(run: Run, context: str, word: str, where: str, masks: bool) -> list[Text]:
    """Returns the texts whose scores add up to that of a word: one or, with masks, one for each token of the word."""
    text = pairs.tokenize(run, f"{context} {word}".strip(), where, start=len(context))
    if not masks:
        return [text]
    _, after = pairs.around_document(run)
    end = len(text.ids) - len(after)
    number = text.scored or int((text.words >= 0).sum())
    further = np.array([run.tokenizer.vocabulary.specials["mask"]] * (MASKS - 1) + after, np.int32)
    if 0 < run.model.max_length < end + len(further):
        raise pairs.TooLong(where, context, end + len(further), run.model.max_length, f" with {MASKS} masks")
    return [Text(np.concatenate([text.ids[:stop], further]),
                 np.concatenate([text.words[:stop], np.full(len(further), -1, np.int32)]), 1)
            for stop in range(end - number + 1, end + 1)]


def table_rows(task: str, values: dict[str, Any]) -> Iterator[list[str]]:
    """Yields the rows of a table of a suite: name, items, value, and two empty cells."""
    yield [task, f"{values['items']:,}", "", "", ""]
    for score in SCORES:
        items = min(values["parts"][measure]["items"] for measure in MEASURES[score])
        yield [f"  {score.replace('_', ' ').replace('self paced', 'self-paced')}", f"{items:,}",
               f"{values[score]:.2%}", "", ""]
