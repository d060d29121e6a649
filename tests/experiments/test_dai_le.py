"""The rows of the tables of Dai and Le (2015): each is a choice or two of a page."""


import pytest

from lmrep.config import loading
from lmrep.core.errors import UserError
from tests.experiments.pages import FILES, build_shapes, load

PAGES = {name: FILES[name] for name in ("dai_le.py", "tasks/dai_le.py")}
TABLE = FILES["tasks/dai_le.py"].read_text().partition("\n    row ")[2].partition("\n\n")[0]
CHOICES = sorted({line.split()[-1] for line in TABLE.splitlines()[1:]} - {"(nothing)"})
SETS = ("imdb", "rotten_tomatoes", "20_newsgroups", "dbpedia")


def test_the_table_has_the_rows():
    assert len(TABLE.splitlines()) == 8
    assert {"linear_gain=yes", "joint=sequence_autoencoder", "init=runs/lm"} <= {*CHOICES}


@pytest.mark.parametrize("choices", ["", *(choice for choice in CHOICES if "init" not in choice), "layers=3",
                                     "bptt=end", "bptt=start", "unknown=remove", "joint=language_model"])
@pytest.mark.parametrize("data_set", SETS)
def test_a_row_without_pretraining_builds(data_set, choices):
    if data_set == "dbpedia" and "unknown" in choices:
        with pytest.raises(UserError, match="unknown=remove"):
            loading.load(PAGES["tasks/dai_le.py"], f"set={data_set},{choices}")
        return
    experiment = load("tasks/dai_le.py", f"set={data_set},{choices}".rstrip(","))
    assert experiment.model["clip_cell"] == 3.0 and experiment.model["width"] == 1024
    chunks = experiment.objective["chunks"]
    assert (chunks["size"], chunks["counted_from"]) == (
        (400, choices[5:]) if choices.startswith("bptt") else (0, "end"))


@pytest.mark.parametrize("argument", ["", "objective=causal", "objective=causal,characters=yes", "characters=yes",
                                      "characters=yes,layers=3", "recipe=released", "unknown=remove"])
def test_a_pretraining_of_the_table_builds(argument):
    experiment = load("dai_le.py", f"{argument},data=files".lstrip(","))
    build_shapes(experiment)
    assert experiment.model["clip_cell"] == (0.0 if "released" in argument else 3.0)
    assert experiment.tokenizer.unknown == ("remove" if "remove" in argument else "keep")
