"""Many attention heads can be removed after training (Michel et al., 2019).

    lmrep reproduce pruning:heads --workdir=claims/pruning_heads --seeds=0-2

The paper removes heads of a trained network in the order of their importance, which the gradient of the loss estimates,
and does not train further. BERT on MNLI loses little up to 40 % of its heads, and much when few are left. The figure
has no numbers.

The miniature is the network of `quickstart.py` with four layers of four heads. It removes 3, 6 and 12 of the 16. The
measure is the masked loss on held-out text, where lower is better; the margin of "loses little" is 0.05 nats. Sixteen
heads leave little to spare: BERT-base has 144. At the other scales it is the accuracy on MNLI, with a margin of one
point.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
At the other scales, the folder MNLI of GLUE too, or --config.network.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium

FRACTIONS = {"fifth": 0.2, "two_fifths": 0.4, "most": 0.8}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    runs, measure, better, worse, margin, examples = at_scale(
        scale, miniature=({"network": ("quickstart.py", {"steps": 1500, "model.layers": 4})},
                          Measure("masked loss", "mlm_loss", {"split": "test"}, format=".3f"),
                          "below", "above", 0.05, 512),
        single=({"pretrained": ("bert.py:size=base,data=files", medium(100_000)),
                 "network": "tasks/mnli.py:data=MNLI,init={pretrained}"},
                Measure("accuracy on MNLI, %", "accuracy", {}, lambda value: 100 * value), "above", "below", 1.0, 1000),
        paper=({"pretrained": "bert.py:size=base,data=files", "network": "tasks/mnli.py:data=MNLI,init={pretrained}"},
               Measure("accuracy on MNLI, %", "accuracy", {}, lambda value: 100 * value), "above", "below", 1.0, 1000))
    return Claim(
        paper="Michel et al., 2019, figure 3",
        statement="Up to 40 % of the heads can be removed at little cost, and 80 % cannot.",
        runs=runs,
        commands={name: f"prune --workdir={{network}} --output={{{name}}} --fraction={fraction} --examples={examples}"
                  for name, fraction in FRACTIONS.items()},
        rows={"network": Row("all heads")} | {
            name: Row(f"without {100 * fraction:.0f} % of them", "network", worse if name == "most" else better,
                      0.0 if name == "most" else margin) for name, fraction in FRACTIONS.items()},
        measure=measure, cost="25 minutes on one core")
