"""The claims that come with the package."""

import re

import pytest

from lmrep.analysis.sweep import Ending
from lmrep.claims import claim as claims
from lmrep.sweeps import process
from tests import small

STEPS = 8  # one for each stage of gradual unfreezing, whose shortest is an eighth of the steps
SMALLER = {"elmo_cove": ["--config.translation.tokenizer.vocab_size=64"],  # of the few sentences below
           "gptbert_objectives": ["--config.tokenizer.vocab_size=300"]}
SENTENCE = ["The", "old", "cat", "sees", "a", "dog", "."]
WORDS = "".join(f'<sentence id="d.s{number}"><wf lemma="the" pos="DET">The</wf><instance id="d.s{number}.t" '
                'lemma="cat" pos="NOUN">cat</instance></sentence>' for number in range(8))
SENSES = {".data.xml": f'<corpus lang="en" source="small"><text id="d">{WORDS}</text></corpus>',
          ".gold.key.txt": "".join(f"d.s{number}.t cat%1:0{number % 2}:00::\n" for number in range(8))}


@pytest.mark.parametrize("name", claims.installed())
def test_claims_of_the_package_resolve(name, tmp_path):
    """At every scale, all configs are valid, and something is claimed. A night on one GPU trains on fewer tokens than
    the paper, or as many."""
    from lmrep.interop import chain

    file, tokens = claims.find(name), {}
    for scale in claims.SCALES:
        claim = claims.load(file, scale)
        runs = chain.resolve(claim.runs, {}, tmp_path, file)
        assert len(runs) == len(claim.runs) and claim.comparisons
        used = {claim.run_of(row) for row in claim.rows} | {
            word for text in (*claim.commands.values(), *(text for text, _ in claim.runs.values()))
            for word in re.findall(r"{(\w+)}", text)}
        assert used == {*claim.runs, *claim.commands}
        assert bool(claim.cost) == (scale != "paper")
        tokens[scale] = sum(run.experiment.steps * run.experiment.batch_size * run.experiment.length for run in runs)
    assert tokens["single"] <= tokens["paper"]


def labelled_files(folder):
    """Writes some labelled examples of each kind that the claims read, in the layout of the published files."""
    texts = {
        "sst-trees/{train,dev}.txt": "(3 (2 The) (3 cat))\n(1 (2 A) (1 dog))\n" * 8,
        "ud-english-ewt/en_ewt-ud-{train,dev}.conllu": ("".join(
            f"{number}\t{word}\t_\t{'NOUN' if number % 2 else 'VERB'}\t_\t_\t_\t_\t_\t_\n"
            for number, word in enumerate(SENTENCE, 1)) + "\n") * 8,
        "trec/{train_5500.label,TREC_10.label}": "NUM:dist How far is it ?\nLOC:city Where is the cat ?\n" * 8,
        "multi30k/{train.en,train.de,val.en,val.de}": "A quick brown fox jumps over the lazy dog .\nFive boxing "
                                                       "wizards jump very quickly to vex bold jackals .\n" * 8,
        "enwiki-sample/enwiki.txt": "".join(f"The cat sees {n} dogs.\n\n" for n in range(200)),
        "blimp/agreement.jsonl": '{"sentence_good": "The cat sees.", "sentence_bad": "The cat see."}\n'}
    for name in ("Training_Corpora/SemCor/semcor", "Evaluation_Datasets/semeval2007/semeval2007"):
        texts |= {f"WSD_Evaluation_Framework/{name}{suffix}": text for suffix, text in SENSES.items()}
    for pattern, text in texts.items():
        before, names, after = re.fullmatch(r"([^{]*){?([^}]*)}?(.*)", pattern).groups()
        for name in names.split(","):
            path = folder / f"{before}{name}{after}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf8")
    for number, part in enumerate(("train/pos", "train/neg", "train/unsup", "test/pos", "test/neg")):
        path = folder / "aclImdb" / part
        path.mkdir(parents=True)
        for review in range(10, 50 if part == "train/unsup" else 18):
            (path / f"{review}_7.txt").write_text(f"{' '.join(SENTENCE * 50)} {number} {review}", encoding="utf8")


def smallest(claim, seen):
    """Returns the claim with the first row alone whose run, or one before it, has a page that `seen` lacks, from random
    parameters or another run, without what is claimed; None if there is none."""
    texts = {name: text for name, (text, _) in claim.runs.items()} | {**claim.commands}

    def before(run):
        earlier = [name for name in re.findall(r"{(\w+)}", texts[run]) if name != run]
        return [name for one in earlier for name in before(one)] + [run]

    for name, row in claim.rows.items():
        chain = before(claim.run_of(name))
        kinds = {(re.split("[: ]", texts[run])[0], "{" in texts[run]) for run in chain}
        if not kinds <= seen:
            seen |= kinds
            return claim._replace(runs={run: claim.runs[run] for run in dict.fromkeys(chain) if run in claim.runs},
                                  commands={run: claim.commands[run] for run in chain if run in claim.commands},
                                  rows={name: row._replace(against="", claimed="", margin=0.0)})
    return None


def test_missing_labelled_files_are_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = small.command("reproduce", "bert:table5", "--workdir=claim", "--seeds=0")
    assert result.code == 2 and not (tmp_path / "claim").exists(), result
    for text in ("tuned_full", "'sst-trees/train.txt' match no file", "--config.tuned_full.data.train=FILES"):
        assert text in result.err


def smoke_runs():
    """{name: the claim with a row that has a page which no claim before it has}."""
    seen: set = set()
    claimed = {name: smallest(claims.load(claims.find(name)), seen) for name in claims.installed()}
    return {name: claim for name, claim in claimed.items() if claim}


SMOKE_RUNS = smoke_runs()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with labelled files, and the token stores of the tests so far."""
    labelled_files(folder := tmp_path_factory.mktemp("home"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOKE_RUNS)
def test_claims_of_the_package_run(name, home, monkeypatch):
    """A row is trained for some steps on one device and measured, in this process to import once."""
    monkeypatch.chdir(home)
    monkeypatch.setattr(process, "run", lambda words, log, show: (Ending(small.command(*words).code, 0.0), 0))
    monkeypatch.setattr(claims, "load", lambda file, scale: SMOKE_RUNS[name])
    result = small.command("reproduce", name, f"--workdir={home}/{name}", "--seeds=0", f"--config.steps={STEPS}",
                           "--config.batch_size=8", "--config.mesh.data=1", "--config.evaluation.examples=8",
                           "--config.log.report=False", "--config.log.tensorboard=False", *SMALLER.get(name, ()))
    assert result.code == 0 and "not measured" not in result.out, result
