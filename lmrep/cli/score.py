"""Scores predictions that any program made, and prints what the task's official script prints.

--metric is one of:

  squad, squad2        SQuAD's JSON, and predictions as JSON {id: text}. squad2 takes --null_scores, JSON {id: number},
                       the larger the likelier there is no answer; only then it reports the best thresholds.
  conlleval, seqeval   a line per token with the gold and the predicted tag in the last two columns, in one file
                       (--predictions), or in the last columns of two. conlleval lets an I- tag begin an entity, as
                       seqeval does without --strict. With --strict such an entity does not count.
  glue:TASK            a published file of GLUE (dev.tsv) and predictions as they are submitted (index and prediction
                       between a tab), or one per line. TASK is CoLA, SST-2, MRPC, QQP, STS-B, MNLI-m, MNLI-mm, QNLI,
                       RTE, WNLI, or AX, the diagnostic set (diagnostic-full.tsv).
  glue                 all of these but AX and their average, from the folder of the published files (MRPC/dev.tsv) and
                       one of predictions (MRPC.tsv).
  bleu, chrf           a text per line, or a field of .tsv or .jsonl files, and a line of sacreBLEU with its signature.
                       --gold takes several files of references between commas.
  rouge                the same files, and the table of Google's rouge-score (which has to be installed) for rouge1,
                       rouge2, rougeL and rougeLsum: medians of its resamples, with 95 % intervals.
  accuracy, matthews, f1, macro_f1, pearson, spearman
                       one value per line, or a field of .tsv or .jsonl files (such as predictions/validation.jsonl of
                       a run, which has gold values and predictions). These are matched by id, where both files have a
                       field id, index or idx.

Figures of SQuAD, conlleval, BLEU and chrF are in percent, the others between 0 and 1 (-1 for correlations) in --json.
Where gold values or predictions are constant, correlations are not defined and are reported as 0."""

from lmrep.cli.arguments import Arguments, Flag, at_least
from lmrep.config.record import Bounds
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path, as_paths

FLAGS = {
    "metric": Flag(None, "what to compute, see above"),
    "gold": Flag(None, "the file of gold values; of bleu, chrf and rouge, one or several between commas; of glue, a "
                 "folder", as_paths),
    "predictions": Flag(None, "the file of predictions; of glue, a folder", as_path),
    "null_scores": Flag("", "squad2: a JSON file of null scores", as_path),
    "na_prob_thresh": Flag(1.0, "squad2: null scores above it mean no answer"),
    "strict": Flag(False, "seqeval: tags that break the scheme are no entity"),
    "scheme": Flag("IOB2", "seqeval, with --strict: IOB1, IOB2, IOE1, IOE2, BIOES or BILOU"),
    "positive": Flag("1", "f1: the positive class"),
    "gold_field": Flag("", "the field of gold values in .tsv and .jsonl (default: label, gold or score)"),
    "prediction_field": Flag("", "the field of predictions (default: prediction, predicted, label or score); dots name "
                             "fields of JSON objects, as in prediction.label"),
    "tokenize": Flag("13a", "bleu: sacreBLEU's tokenization: 13a, intl, zh, char or none",
                     bounds=Bounds(choices=("13a", "intl", "zh", "char", "none"))),
    "lowercase": Flag(False, "bleu: ignore case"),
    "word_order": Flag(0, "chrf: the longest word n-grams; 2: chrF++", bounds=Bounds(at_least=0, at_most=4)),
    "stemmer": Flag(False, "rouge: compare words without suffixes"),
    "bootstrap": Flag(0, "resamples for 95 % intervals, for example 1000; 0: no intervals", bounds=at_least(0, 10**5)),
    "seed": Flag(0, "of the resamples", bounds=at_least(0)),
    "json": Flag(False, "print all figures as JSON"),
}
OPTIONS = ("null_scores", "na_prob_thresh", "strict", "scheme", "positive", "gold_field", "prediction_field",
           "tokenize", "lowercase", "word_order", "stemmer")


def run(arguments: Arguments) -> None:
    """Runs the command."""
    flags = arguments.flags
    if not flags.metric:
        raise UserError("lmrep score needs --metric, for example --metric=squad2; see lmrep score --help")

    import json

    from lmrep.metrics import scoring

    scores = scoring.score(flags.metric, flags.gold, flags.predictions,
                           **{name: getattr(flags, name) for name in OPTIONS})
    intervals = scores.intervals(flags.bootstrap, flags.seed) if flags.bootstrap else {}
    if flags.json:
        print(json.dumps(scores.figures | {f"{name}_interval": bounds for name, bounds in intervals.items()}, indent=2,
                         ensure_ascii=False))
        return
    print(scores.text)
    for name, (low, high) in intervals.items():
        print(f"95 % interval of {name}: {low:.4g} to {high:.4g} ({flags.bootstrap:,} resamples)")
