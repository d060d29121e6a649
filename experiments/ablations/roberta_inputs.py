"""RoBERTa's first two ablations on two cores: the four input formats, and static against dynamic masks.

    python experiments/ablations/roberta_inputs.py --workdir=runs/roberta_inputs

trains five small models one after the other (the quickstart's, on Python's documentation or --files='texts/*.txt'),
prints a table and writes a report of all runs to report.html in the workdir. Cost: under ten minutes on two cores.
Finished runs are not trained again; interrupted runs are resumed.

All take the same number of steps with about the same number of tokens per step: as in the paper (Liu et al., 2019,
sections 4.1 and 4.2), formats with shorter sequences have larger batches. All are evaluated on the test split in a
format that none was trained on (`packed`: documents are split at the sequence length and do not attend to each other),
with four samples of masks per sequence. At this size and length the ranking of the formats differs from the paper's.
For a base model after a million steps, the paper found doc_sentences slightly better than full_sentences, both better
than segment_pair, and sentence_pair the worst; static and dynamic masking were about equal.
"""

from dataclasses import replace

from common import PAIRS, arguments, evaluate, run_script, small, train, write_report

from lmrep.data.formats.packed import Packed
from lmrep.experiment import build

RUNS = (("segment_pair", "dynamic"), ("sentence_pair", "dynamic"), ("full_sentences", "dynamic"),
        ("doc_sentences", "dynamic"), ("full_sentences", "static"))
DUPLICATES = 4  # of each test sequence, with different masks


def config(format_name, masking, flags):
    """The config of the small model with a format and a masking."""
    c = small("masked", format_name, flags)
    c.objective.masking = masking
    c.format.duplicates = 10 if masking == "static" or format_name in PAIRS else 1
    return c


def dynamic_masking(stage, network, vocabulary):
    """The run's objective with dynamic masks and without sentence pairs."""
    objective = replace(stage.objective, masking="dynamic", sentence_pair=False)
    return build.objective(replace(stage, objective=objective), network, vocabulary)


def main(argv=None):
    """Trains, evaluates and compares the runs; `argv` defaults to the flags of the command line."""
    flags = arguments(__doc__).parse_args(argv)
    configs = {f"{name}-{masking}": config(name, masking, flags) for name, masking in RUNS}
    runs, lines = [], []
    for (name, masking), run in zip(RUNS, train(configs, flags), strict=True):
        metrics = evaluate(run.workdir, flags.data_dir, "packed", Packed(DUPLICATES), dynamic_masking)
        pair = run.outcome.after.get("pair_accuracy")
        tokens = run.batch_size * run.statistics["tokens_per_example"]
        lines.append(f"{name:16}{masking:9}{run.batch_size:6}{tokens:13,.0f}{run.statistics['padding']:10.1%}"
                     f"{metrics['mlm_accuracy']:11.2%}{metrics['mlm_loss']:8.3f}{f'{pair:.1%}' if pair else '':>8}"
                     f"{run.seconds:9.0f}")
        runs.append(run)
    print(f"\n{'format':16}{'masks':9}{'batch':>6}{'tokens/step':>13}{'padding':>10}{'accuracy':>11}{'loss':>8}"
          f"{'pairs':>8}{'seconds':>9}")
    print("\n".join(lines))
    print("\naccuracy, loss: of masked tokens of the test split, packed; pairs: pair accuracy on validation text\n"
          f"{write_report(runs, flags)}")


if __name__ == "__main__":
    run_script(main)
