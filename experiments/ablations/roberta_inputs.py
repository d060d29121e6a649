"""RoBERTa's first two ablations in little: the four input formats, and static against dynamic masks.

    python experiments/ablations/roberta_inputs.py --workdir=runs/roberta_inputs

trains five small models (the quickstart's, on the documentation that comes with Python, or --files='texts/*.txt'), one
after the other, prints a table and writes one page about all of them, report.html in the workdir. It needs two cores
and under ten minutes; a run that is there is not trained again, and one that was stopped goes on.

All take as many steps, of about as many tokens: as in the paper (Liu et al., 2019, sections 4.1 and 4.2), formats with
shorter rows get more rows a step. Each is scored on the test split in one format that none of them was trained on
(`packed`: documents cut at the row's length, none seeing another), each row under four masks. At this size and length
the order of the formats is not the paper's: read it as a check that each does what it says. The paper found, for base
after a million steps, doc_sentences a little ahead of full_sentences, both ahead of segment_pair, and sentence_pair
behind; static and dynamic masks came out about alike.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import jax

import lmrep
from lmrep import assembly
from lmrep import experiment as experiments
from lmrep.api import default_data_dir
from lmrep.core.params import flatten, unflatten
from lmrep.core.sharding import make_mesh, shardings
from lmrep.data import loader
from lmrep.data.formats.packed import Packed
from lmrep.experiment import base
from lmrep.training.evaluation import Evaluator
from lmrep.training.state import specs_of

RUNS = (("segment_pair", "dynamic"), ("sentence_pair", "dynamic"), ("full_sentences", "dynamic"),
        ("doc_sentences", "dynamic"), ("full_sentences", "static"))
PAIRS = ("segment_pair", "sentence_pair")
LENGTH, TOKENS = 64, 1792  # of a row, and of a step
MASKS = 4  # of each test row


def config(form, masking, given):
    """The quickstart's model on one of the formats; `batch_size` is still to be set."""
    c = base("bert_tiny", "masked", form, "adamw", "1x1x1")
    c.name = f"{form}, {masking}"
    c.steps, c.length = given.steps, LENGTH
    c.model.update({"vocab": 0, "heads": 4, "norm": "pre", "init_stddev": 0.08, "dropout": 0.0,
                    "attention_dropout": 0.0})
    c.data.update({"corpus": "text_files" if given.files else "python_docs", "files": given.files,
                   "validation": 0.05, "test": 0.1})
    c.tokenizer.vocab_size = 2048
    c.objective.masking, c.objective.sentence_pair = masking, form in PAIRS
    c.format.duplicates = 10 if masking == "static" or form in PAIRS else 1
    c.optimizer.update({"learning_rate": 4e-3, "betas": (0.9, 0.98), "eps": 1e-6})
    c.optimizer.schedule.warmup_share = 0.1
    c.checkpoint.every = c.evaluation.every = max(1, given.steps // 4)
    c.log.report = False
    return c


def rows(c, data_dir):
    """(rows a step, statistics of the training split's rows) for TOKENS tokens a step."""
    experiment = experiments.parse(c)
    prepared = assembly.prepared(experiment, data_dir, print)
    plan = assembly.plan(experiments.plans(experiment)[0], prepared.stores["train"], experiment.seed, data_dir)
    facts = plan.statistics()
    return round(TOKENS / facts["tokens_per_row"]), facts


def score(directory, data_dir):
    """The metrics of a run on the test split, packed, whatever its own format is."""
    run = lmrep.load(directory)
    stage = experiments.plans(run.experiment)[0]
    asked = replace(stage.objective, masking="dynamic", sentence_pair=False)
    stage = replace(stage, format_name="packed", format=Packed(duplicates=MASKS), objective=asked)
    prepared = assembly.prepared(run.experiment, data_dir)
    vocabulary = prepared.tokenizer.vocabulary
    objective = assembly.objective(stage, assembly.model(run.experiment, vocabulary), vocabulary)
    held = flatten(run.params)
    params = unflatten({path: held[path] for path in flatten(specs_of(objective))})
    mesh = make_mesh(1)
    evaluator = Evaluator(objective, mesh, 32, run.experiment.seed)
    plan = assembly.plan(stage, prepared.stores["test"], run.experiment.seed, data_dir)
    batches = loader.evaluation_batches(plan, batch_size=32, rows=evaluator.rows)
    return evaluator(jax.device_put(params, shardings(specs_of(objective), mesh)), batches)


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--files", default="", help="a glob of text files; none: the interpreter's documentation")
    parser.add_argument("--data_dir", type=Path, default=default_data_dir())
    given = parser.parse_args()
    lines, places = [], []
    for form, masking in RUNS:
        c = config(form, masking, given)
        c.batch_size, facts = rows(c, given.data_dir)
        place = given.workdir / f"{form}-{masking}"
        print(f"training {place}: {c.steps:,} steps of {c.batch_size} rows of {LENGTH}", flush=True)
        start = time.monotonic()
        outcome = lmrep.train(c, place, data_dir=given.data_dir)
        seconds = time.monotonic() - start
        found = score(place, given.data_dir)
        pair = outcome.after.get("pair_accuracy")
        lines.append(f"{form:16}{masking:9}{c.batch_size:6}{c.batch_size * facts['tokens_per_row']:13,.0f}"
                     f"{facts['padding']:10.1%}{found['masked_accuracy']:11.2%}{found['masked_nats']:8.3f}"
                     f"{f'{pair:.1%}' if pair else '':>8}{seconds:9.0f}")
        places.append(place)
    from lmrep.analysis import report

    page = report.write(places, given.workdir / "report.html", data_dir=given.data_dir)
    print(f"\n{'format':16}{'masks':9}{'rows':>6}{'tokens/step':>13}{'padding':>10}{'accuracy':>11}{'nats':>8}"
          f"{'pairs':>8}{'seconds':>9}")
    print("\n".join(lines))
    print(f"\naccuracy, nats: of hidden words of the test split, packed; pairs: of its own question, held out\n{page}")


if __name__ == "__main__":
    main()
