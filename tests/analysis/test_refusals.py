"""What the commands of analysis refuse: the exit code is 2, and one line names the flag, file or value at fault."""

from pathlib import Path

import pytest

from tests import runs, small

ROOT = Path(__file__).parents[2]
slow = pytest.mark.slow
NEIGHBOURS = ("neighbours", "--workdir={masked}/run", "--input={masked}/texts/00.txt")
PROBE = ("probe", "--workdir={masked}/run")
PRUNE = ("prune", "--workdir={classification}/run")


def refused(*words, names):
    return words, names


ROWS = {
    "report of nothing": refused("report", names=["workdir"]),
    "report of no run": refused("report", "nowhere", names=["nowhere"]),
    "report of a run and no run": refused("report", "{masked}/run", "nowhere", names=["nowhere"]),
    "report with a config": refused("report", "--config=x.py", names=["--config"]),
    "probe without a task": refused(*PROBE, names=["--config"]),
    "probe of pretraining": refused(*PROBE, "--config={root}/experiments/quickstart.py", names=["--config"]),
    "probe of no numbers": refused(*PROBE, "--config={root}/experiments/tasks/regress.py", names=["data.validation"]),
    "probe of choices": refused(*PROBE, "--config={root}/experiments/tasks/choose.py", names=["multiple_choice"]),
    "neighbours of no word": refused(*NEIGHBOURS, "The red cat.", names=["'The red cat.'"]),
    "neighbours of a product": refused(*NEIGHBOURS, "2 * 3 * 4", names=["'2 * 3 * 4'"]),
    "neighbours of an empty word": refused(*NEIGHBOURS, "**", names=["'**'"]),
    "neighbours of two words": refused(*NEIGHBOURS, "*The* red *cat*.", names=["2 words", "'*The* red *cat*.'"]),
    "neighbours of no sentence": refused(*NEIGHBOURS, names=["one sentence"]),
    "neighbours of two sentences": refused(*NEIGHBOURS, "*a*", "*b*", names=["one sentence"]),
    "neighbours in no corpus": refused(*NEIGHBOURS[:2], "--input=", "*a*", names=["--input"]),
    "neighbours in a missing corpus": refused(*NEIGHBOURS[:2], "--input=/nowhere/x", "*a*", names=["/nowhere/x"]),
    "no neighbours": refused(*NEIGHBOURS, "--top=0", "*a*", names=["--top"]),
    "neighbours in all layers": refused(*NEIGHBOURS, "--layers=all", "*a*", names=["layers", "'all'"]),
    "neighbours in a missing layer": refused(*NEIGHBOURS, "--layers=9", "*a*", names=["layer 9"]),
    "prune to nowhere": refused(*PRUNE, "--heads=0:0", names=["--output"]),
    "prune nothing": refused(*PRUNE, "--output=x", names=["--fraction", "--heads"]),
    "prune twice": refused(*PRUNE, "--output=x", "--fraction=0.5", "--heads=0:0", names=["--fraction", "--heads"]),
    "prune all heads": refused(*PRUNE, "--output=x", "--heads=0:0,1", names=["--heads", "layer 0"]),
    "prune a missing layer": refused(*PRUNE, "--output=x", "--heads=7:0", names=["--heads", "7:0"]),
}
SLOW = {
    "prune less than a head": refused(*PRUNE, "--output=x", "--fraction=0.1", names=["--fraction"]),
    "heads of an LSTM": refused("heads", "--workdir={recurrent}/run", names=["attention", "{recurrent}/run"]),
}


@pytest.mark.parametrize(("words", "names"), [
    *(pytest.param(*row, id=name) for name, row in ROWS.items()),
    *(pytest.param(*row, id=name, marks=slow) for name, row in SLOW.items())])
def test_a_refusal_names_what_is_at_fault(words, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    used = {name: runs.folder(name) for name in runs.RUNS if f"{{{name}}}" in "".join(words)}
    answer = small.command(*(word.format(root=ROOT, **used) for word in words))
    assert answer.code == 2 and answer.err.startswith("lmrep: error: ") and answer.err.count("\n") == 1, answer
    assert [name for name in names if name.format(**used) not in answer.err] == [], answer.err
    assert not [*tmp_path.iterdir()]
