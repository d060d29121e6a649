"""One small network trained with every objective, on the same text with the same number of steps and tokens per step.

    python experiments/ablations/objectives.py --workdir=runs/objectives

trains the quickstart's network on Python's documentation, or on --files='texts/*.txt', with six objectives one after
the other, prints a table and writes a report of all runs to report.html in the workdir. Cost: under ten minutes on two
cores. Finished runs are not trained again; interrupted runs are resumed.

    masked             masked tokens in single texts, as in BERT without sentence pairs
    causal             the next token, left to right: BERT's ablation "no NSP & LTR" (Devlin et al., 2019, section 5.1)
    span_boundary      masked spans, predicted from their own states and from their boundaries (SpanBERT)
    masked_nsp         masked tokens in sentence pairs, with next-sentence prediction
    masked_sop         masked tokens in sentence pairs, with sentence-order prediction (ALBERT)
    electra            detection of the tokens that a small generator has replaced (ELECTRA)

--runs=masked,causal selects some of them. ELECTRA's other variants are electra_15, replace_mlm and all_tokens_mlm.

The metrics under "own objective" cannot be compared: masked tokens are predicted from both sides while 15 % of the
tokens are masked, next tokens from the left only. For a comparison, every network that predicts tokens predicts the
same token of each test sequence. Networks that see both sides see all other tokens; the causal network sees those
before it. `reduction` is the fraction by which the loss is below that of predicting by token frequency. Test sequences
are `packed`, as in training without pairs. ELECTRA's variants are left out, since their encoders were not trained on
[MASK]; the report has the loss of their generators. A causal or electra step predicts at every token, a step of the
others at about 15 % of the tokens. This is part of the comparison, and favours the causal network in short runs;
--steps=3200 gives the others more time.
"""

from dataclasses import replace

import jax.numpy as jnp
from common import arguments, evaluate, run_script, small, train, write_report

from lmrep.data.formats.packed import Packed
from lmrep.experiment import build
from lmrep.objectives import masked, replaced_token

ELECTRA = {name: ("replaced_token", "packed", {"objective.variant": name}) for name in replaced_token.VARIANTS}
RUNS = {  # objective, format, other changes of the config
    "masked": ("masked", "packed", {}),
    "causal": ("causal", "packed", {}),
    "span_boundary": ("span_boundary", "packed", {}),
    "masked_nsp": ("masked", "segment_pair", {"format.pairs": "nsp"}),
    "masked_sop": ("masked", "segment_pair", {"format.pairs": "sop"}),
    **ELECTRA,
}
DEFAULT = tuple(name for name in RUNS if name not in replaced_token.VARIANTS[1:])
DUPLICATES = 4  # of each test sequence, with different predicted tokens
ONE_MASK = masked.Config(mask=1.0, keep=0.0, random=0.0, max_predictions=1)


def config(name, flags):
    """The config of one of RUNS."""
    objective, format_name, changes = RUNS[name]
    c = small(objective, format_name, flags)
    c.update_from_flattened_dict(changes)
    return c


def one_token_objective(stage, network, vocabulary):
    """Prediction of one token per example, sampled with the example's key: as a masked token, or as the next token if
    the network was trained with the causal objective. Adds the metric `frequency_loss`, in nats, of predicting by token
    frequency (counts + 1)."""
    causal = stage.objective_name == "causal"
    stage = replace(stage, **{} if causal else {"objective_name": "masked", "objective": ONE_MASK})
    objective = build.objective(stage, network, vocabulary)
    frequencies = jnp.asarray((vocabulary.counts + 1) / (vocabulary.counts + 1).sum(), jnp.float32)

    def prepare(keys, batch):
        masked_batch = masked.prepare(keys, batch, c=ONE_MASK, vocabulary=vocabulary)
        if not causal:
            return masked_batch
        before = masked_batch["predicted"] - 1  # the first token of an example is never masked
        examples = jnp.arange(len(before))[:, None]
        weights = jnp.zeros(batch["tokens"].shape).at[examples, before].add(masked_batch["weights"])
        return batch | {"targets": jnp.pad(batch["tokens"][:, 1:], ((0, 0), (0, 1))), "weights": weights}

    def loss(params, batch, key, carry):
        total, (metrics, carry) = objective.loss(params, batch, key, carry)
        target_mask = batch["weights"] > 0
        nll = -jnp.log(frequencies[batch["targets"]])
        return total, (metrics | {"frequency_loss": ((nll * target_mask).sum(), target_mask.sum())}, carry)

    return objective._replace(prepare=prepare, loss=loss)


def format_line(name, run, test_metrics):
    """A line of the table; `test_metrics` are empty if the network does not predict tokens."""
    after = run.outcome.after

    def first(metrics, names, spec):
        return next((format(metrics[name], spec) for name in names if name in metrics), "")

    def columns(metrics, *prefixes):
        return (f"{first(metrics, [f'{prefix}_accuracy' for prefix in prefixes], '.2%'):>11}"
                f"{first(metrics, [f'{prefix}_loss' for prefix in prefixes], '.3f'):>8}")

    reduction = ""
    if test_metrics:
        loss = next(test_metrics[name] for name in ("lm_loss", "mlm_loss") if name in test_metrics)
        reduction = f"{1 - loss / test_metrics['frequency_loss']:.1%}"
    others = {"pair_accuracy": "pairs", "boundary_accuracy": "from the boundary",
              "replaced_accuracy": "replaced tokens", "original_accuracy": "original tokens",
              "copied_fraction": "copied"}
    return (f"{name:16}{run.batch_size:6}{columns(after, 'mlm', 'lm', 'generator')}"
            f"{columns(test_metrics, 'mlm', 'lm')}{reduction:>11}{run.seconds:9.0f}  "
            + ", ".join(f"{label} {after[metric]:.1%}" for metric, label in others.items() if metric in after))


def main(argv=None):
    """Trains, evaluates and compares the runs; `argv` defaults to the flags of the command line."""
    parser = arguments(__doc__, steps=800)
    parser.add_argument("--runs", default=",".join(DEFAULT), help=f"some of {', '.join(RUNS)}")
    flags = parser.parse_args(argv)
    names = list(dict.fromkeys(flags.runs.split(",")))
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"--runs has {', '.join(unknown)}; expected some of {', '.join(RUNS)}")
    runs, lines, baseline = [], [], None
    for name, run in zip(names, train({name: config(name, flags) for name in names}, flags), strict=True):
        test_metrics = {} if name in ELECTRA else evaluate(
            run.workdir, flags.data_dir, "packed", Packed(DUPLICATES), one_token_objective)
        lines.append(format_line(name, run, test_metrics))
        baseline = test_metrics.get("frequency_loss", baseline)
        runs.append(run)
    print(f"\n{'':22}{'own objective':>19}{'one token per sequence':>30}\n{'objective':16}{'batch':>6}{'accuracy':>11}"
          f"{'loss':>8}{'accuracy':>11}{'loss':>8}{'reduction':>11}{'seconds':>9}")
    print("\n".join(lines))
    if baseline is not None:
        print(f"\nPredicting these tokens by frequency has a loss of {baseline:.3f} nats.")
    print(write_report(runs, flags))


if __name__ == "__main__":
    run_script(main)
