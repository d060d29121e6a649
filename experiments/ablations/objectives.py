"""One small network under every objective, with the same text, tokens in a step, and steps.

    python experiments/ablations/objectives.py --workdir=runs/objectives

trains the quickstart's network on the documentation that comes with Python, or on --files='texts/*.txt', six times one
after the other, prints a table and writes one report of all of them, report.html in the workdir. Cost: under ten
minutes on two cores. A finished run is not trained again, and one that was stopped is resumed.

    masked             BERT's masked tokens, in single texts
    causal             BERT's "no NSP & LTR" (Devlin et al., 2019, section 5.1): each next token, from left to right
    span_boundary      SpanBERT's spans, from their own states and from those at their boundaries
    masked_nsp         masked tokens in pairs, and whether the second text is the next one
    masked_sop         the same, and whether the two are in order (ALBERT)
    electra            ELECTRA: which tokens a small generator has replaced

--runs=masked,causal chooses among them; ELECTRA's other variants are electra_15, replace_mlm and all_tokens_mlm.

Objectives differ, so that "own objective" in the table shows only that a network learns: a masked token is predicted
from both sides, where 15 % of the tokens are masked too, a next token from the left. To compare them, every network
that was trained to predict tokens predicts one token in each sequence of the test split, the same for all. For those
that see both sides, only this token is masked; the causal network sees the tokens before it. `saved` is the fraction by
which a network lowers the loss of predicting by frequency alone. Sequences are `packed`, as in training without pairs.
ELECTRA's variants are left out, since their encoders were not trained on [MASK]; the loss of their generator is in the
report. A step of causal or electra predicts at every token, one of the others at about 15 % of them. That is part of
the comparison, and puts the causal network ahead after few steps; --steps=3200 gives the others time.
"""

from dataclasses import replace

import jax.numpy as jnp
from common import arguments, page, run_script, score, small, train

from lmrep.data.formats.packed import Packed
from lmrep.experiment import build
from lmrep.objectives import masked, replaced_token

KINDS = {kind: ("replaced_token", "packed", {"objective.variant": kind}) for kind in replaced_token.VARIANTS}
RUNS = {  # objective, format, what differs
    "masked": ("masked", "packed", {}),
    "causal": ("causal", "packed", {}),
    "span_boundary": ("span_boundary", "packed", {}),
    "masked_nsp": ("masked", "segment_pair", {"format.pairs": "nsp"}),
    "masked_sop": ("masked", "segment_pair", {"format.pairs": "sop"}),
    **KINDS,
}
DEFAULT = tuple(name for name in RUNS if name not in replaced_token.VARIANTS[1:])
TIMES = 4  # that a token is asked for of each test row
ONE = masked.Config(mask=1.0, keep=0.0, random=0.0, max_predictions=1)  # what hides a single token of a row


def config(name, given):
    """The small network under one of RUNS."""
    objective, form, changes = RUNS[name]
    c = small(objective, form, given)
    c.update_from_flattened_dict(changes)
    return c


def ask(stage, network, vocabulary):
    """For one token of each row, drawn by the row's number: as the masked objective hides it, or, where a network reads
    from the left, as the next one. Adds `by_frequency`, the nats of the tokens' frequencies (of counts + 1)."""
    causal = stage.objective_name == "causal"
    asked = replace(stage, **{} if causal else {"objective_name": "masked", "objective": ONE})
    objective = build.objective(asked, network, vocabulary)
    shares = jnp.asarray((vocabulary.counts + 1) / (vocabulary.counts + 1).sum(), jnp.float32)

    def prepare(keys, batch):
        hidden = masked.prepare(keys, batch, c=ONE, vocabulary=vocabulary)
        if not causal:
            return hidden
        before = hidden["predicted"] - 1  # no row begins with a token that is hidden
        weights = jnp.zeros(batch["tokens"].shape).at[jnp.arange(len(before))[:, None], before].add(hidden["weights"])
        return batch | {"targets": jnp.pad(batch["tokens"][:, 1:], ((0, 0), (0, 1))), "weights": weights}

    def loss(params, batch, key, carry):
        total, (metrics, carry) = objective.loss(params, batch, key, carry)
        asked = batch["weights"] > 0
        nats = -jnp.log(shares[batch["targets"]])
        return total, (metrics | {"by_frequency": ((nats * asked).sum(), asked.sum())}, carry)

    return objective._replace(prepare=prepare, loss=loss)


def line(name, run, found):
    """A line of the table."""
    after = run.outcome.after

    def first(metrics, *names, form=".2%"):
        return next((format(metrics[each], form) for each in names if each in metrics), "")

    def figures(metrics, *kinds):
        return (f"{first(metrics, *(f'{kind}_accuracy' for kind in kinds)):>11}"
                f"{first(metrics, *(f'{kind}_loss' for kind in kinds), form='.3f'):>8}")

    nats = first(found, "lm_loss", "mlm_loss", form="")
    saved = 1 - float(nats) / found["by_frequency"] if nats else ""
    others = {"pair_accuracy": "pairs", "boundary_accuracy": "from the boundary", "replaced_accuracy": "replaced found",
              "original_accuracy": "originals kept", "copied_fraction": "copied"}
    return (f"{name:16}{run.rows:5}{figures(after, 'mlm', 'lm', 'generator')}{figures(found, 'mlm', 'lm')}"
            f"{format(saved, '.1%') if nats else '':>8}{run.seconds:9.0f}  "
            + ", ".join(f"{said} {after[metric]:.1%}" for metric, said in others.items() if metric in after))


def main(words=None):
    """The command; `words` are its flags, by default those of the command line."""
    parser = arguments(__doc__, steps=800)
    parser.add_argument("--runs", default=",".join(DEFAULT), help=f"of {', '.join(RUNS)}")
    given = parser.parse_args(words)
    names = list(dict.fromkeys(given.runs.split(",")))
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"--runs has {', '.join(unknown)}; expected some of {', '.join(RUNS)}")
    done, lines, blind = [], [], []
    for name, run in zip(names, train({name: config(name, given) for name in names}, given), strict=True):
        found = {} if name in KINDS else score(run.place, given.data_dir, "packed", Packed(TIMES), ask)
        lines.append(line(name, run, found))
        blind += [found["by_frequency"]] if found else []
        done.append(run)
    print(f"\n{'':21}{'own objective':>19}{'one token of each':>27}\n{'objective':16}{'rows':>5}{'accuracy':>11}"
          f"{'nats':>8}{'accuracy':>11}{'nats':>8}{'saved':>8}{'seconds':>9}")
    print("\n".join(lines))
    if blind:
        print(f"\nPredicting these tokens by frequency alone has a loss of {blind[0]:.3f} nats.")
    print(page(done, given))


if __name__ == "__main__":
    run_script(main)
