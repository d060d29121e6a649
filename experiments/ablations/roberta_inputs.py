"""RoBERTa's first two ablations on two cores: the four input formats, and static against dynamic masks.

    python experiments/ablations/roberta_inputs.py --workdir=runs/roberta_inputs

trains five small models (the quickstart's, on the documentation that comes with Python, or --files='texts/*.txt'), one
after the other, prints a table and writes one report of all of them, report.html in the workdir. Cost: under ten
minutes on two cores. A finished run is not trained again, and one that was stopped is resumed.

All take the same number of steps, of about the same number of tokens: as in the paper (Liu et al., 2019, sections 4.1
and 4.2), formats with shorter sequences have larger batches. Each is evaluated on the test split in a format that none
of them was trained on (`packed`: documents split at the sequence length, none seeing another), with four masks for each
sequence. At this size and length the order of the formats is not the paper's. The paper found, for base after a million
steps, doc_sentences a little ahead of full_sentences, both ahead of segment_pair, and sentence_pair
behind; static and dynamic masks came out about alike.
"""

from dataclasses import replace

from common import PAIRS, arguments, page, run_script, score, small, train

from lmrep.data.formats.packed import Packed
from lmrep.experiment import build

RUNS = (("segment_pair", "dynamic"), ("sentence_pair", "dynamic"), ("full_sentences", "dynamic"),
        ("doc_sentences", "dynamic"), ("full_sentences", "static"))
MASKS = 4  # of each test row


def config(form, masking, given):
    """The small model on one of the formats."""
    c = small("masked", form, given)
    c.objective.masking = masking
    c.format.duplicates = 10 if masking == "static" or form in PAIRS else 1
    return c


def ask(stage, network, vocabulary):
    """Its own masks, drawn anew, without pairs."""
    asked = replace(stage.objective, masking="dynamic", sentence_pair=False)
    return build.objective(replace(stage, objective=asked), network, vocabulary)


def main(words=None):
    """The command; `words` are its flags, by default those of the command line."""
    given = arguments(__doc__).parse_args(words)
    configs = {f"{form}-{masking}": config(form, masking, given) for form, masking in RUNS}
    done, lines = [], []
    for (form, masking), run in zip(RUNS, train(configs, given), strict=True):
        found = score(run.place, given.data_dir, "packed", Packed(MASKS), ask)
        pair = run.outcome.after.get("pair_accuracy")
        lines.append(f"{form:16}{masking:9}{run.rows:6}{run.rows * run.facts['tokens_per_example']:13,.0f}"
                     f"{run.facts['padding']:10.1%}{found['mlm_accuracy']:11.2%}{found['mlm_loss']:8.3f}"
                     f"{f'{pair:.1%}' if pair else '':>8}{run.seconds:9.0f}")
        done.append(run)
    print(f"\n{'format':16}{'masks':9}{'rows':>6}{'tokens/step':>13}{'padding':>10}{'accuracy':>11}{'nats':>8}"
          f"{'pairs':>8}{'seconds':>9}")
    print("\n".join(lines))
    print("\naccuracy, nats: of masked tokens of the test split, packed; pairs: pair accuracy on held-out text\n"
          f"{page(done, given)}")


if __name__ == "__main__":
    run_script(main)
