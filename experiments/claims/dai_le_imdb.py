"""A language model or an autoencoder as initial values of a classifier halves its error (Dai and Le, 2015, IMDb).

    lmrep reproduce dai_le:imdb --workdir=claims/dai_le_imdb --seeds=0-2

The errors on IMDb are 13.50 % with an LSTM, 7.64 from a language model, 7.24 from a sequence autoencoder, 9.17 from the
autoencoder with labels at all words (linear gain), and 14.70 where the autoencoder is trained beside the labels instead
of before. They are those that Dieng et al. (2017) report.

The miniature is `dai_le.py:size=tiny` on the first 128 words of unlabelled reviews, and classifiers that read 64 words
of a review. The row without pretraining starts from one step of it, which gives it the same words. All rows are
measured on 2,500 reviews of the test set.

In one seed the errors were 48.6 % without pretraining, 28.1 from the language model, 28.5 from the autoencoder, 26.0
with linear gain, and 46.9 with the autoencoder beside the labels. The last three differences have the other sign than
in the paper. Networks that were not pretrained are close to chance, so that the difference between them says little.

Data: the folder aclImdb in the current directory (Maas et al., 2011), with the folders pos, neg and unsup in its folder
train. Other files: --config.RUN.data.files=FILES for the runs untrained, language_model and autoencoder, and
--config.NAME.data.train=FILE and --config.NAME.data.validation=FILE for each row NAME.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

ROWS = {"plain": ("LSTM", "untrained", "", 13.50), "lm": ("a language model first", "language_model", "", 7.64),
        "sa": ("an autoencoder first", "autoencoder", "", 7.24),
        "gain": ("an autoencoder first, linear gain", "autoencoder", ",linear_gain=yes", 9.17),
        "joint": ("an autoencoder beside the labels", "untrained", ",joint=sequence_autoencoder", 14.70)}
CLAIMED = {"lm": ("plain", "below"), "sa": ("lm", "below"), "gain": ("sa", "above"), "joint": ("plain", "above")}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    size, files, fields, changes, evaluated = at_scale(
        scale, miniature=("size=tiny,", "unsup/1*.txt", {"steps": 400, "batch_size": 16, "length": 128},
                          {"epochs": 0.6, "length": 64, "batch_size": 16, "optimizer.learning_rate": 2e-3,
                           "evaluation.examples": 2500}, {"examples": "2500"}),
        single=("", "[pnu]*/*.txt", {"steps": 20_000}, {}, {}), paper=("", "[pnu]*/*.txt", {}, {}, {}))
    page = f"dai_le.py:{size}data=files"
    fields = fields | {"data.files": f"aclImdb/train/{files}", "data.documents": "file"}
    return Claim(
        paper="Dai and Le, 2015, IMDb", statement="Pretraining lowers the error, and an autoencoder more than a model.",
        runs={"untrained": (page, fields | {"steps": 1}), "language_model": (f"{page},objective=causal", fields),
              "autoencoder": (page, fields)} | {
            name: (f"tasks/dai_le.py:data=aclImdb,init={{{start}}}{choices}", changes)
            for name, (_, start, choices, _) in ROWS.items()},
        rows={name: Row(title, *CLAIMED.get(name, ("", "")), published=published)
              for name, (title, *_, published) in ROWS.items()},
        published="error on IMDb, in %",
        measure=Measure("error, %", "accuracy", evaluated, lambda accuracy: 100 - 100 * accuracy),
        cost="105 minutes of CPU time, by one of the seeds, with the files of IMDb")
