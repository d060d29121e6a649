"""Commands end to end, with common mistakes: refusals, messages, and what stays unchanged."""

import json
import shutil

import jax
import pytest

from lmrep.metrics import COMMON
from lmrep.objectives import OBJECTIVES
from tests import small

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def home(small_home):
    return small_home


def train(home, workdir, *words, choices=""):
    """The command line of the small experiment."""
    return ["train", f"--config={home}/small.py{choices}", f"--workdir={workdir}", f"--data_dir={home}/data", *words]


@pytest.fixture
def copy(home, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(home / "run", tmp_path / "run")


@pytest.fixture
def compilations():
    """The programs that a test compiles, as a list that grows."""
    found = []

    def listen(event, seconds, **_):
        if event == COMPILED:
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def refused(result, *texts, code=2):
    """Checks that a command printed one short message, which contains these texts, and no traceback."""
    assert result.code == code, result
    message = result.err[result.err.index("lmrep: error: "):]
    assert message.count("\n") <= 3 and "Traceback" not in result.err
    for text in texts:
        assert text in message, message


# Invalid configs, refused before anything is compiled or written

INVALID = {
    "misspelt field": (["--config.optimizer.learning_rat=1"], "no field 'learning_rat'; did you mean 'learning_rate'?"),
    "misspelt choice": ({"choices": ":formt=packed"}, "no choice 'formt'; did you mean 'format'?"),
    "unknown choice": ({"choices": ":format=paked"}, "format is 'paked'; expected one of packed, segment_pair"),
    "unknown mesh": ({"choices": ":mesh=4x4"}, "mesh is '4x4'; expected data, fsdp, or sizes"),
    "wrong type": (["--config.steps=many"], "config.steps cannot be 'many'; expected a whole number"),
    "not a number": (["--config.optimizer.learning_rate=nan"], "learning_rate cannot be 'nan'; expected a number"),
    "infinite": (["--config.optimizer.weight_decay=1e999"], "weight_decay is inf; expected a finite number"),
    "negative rate": (["--config.optimizer.learning_rate=-1e-3"], "learning_rate is -0.001; expected above 0"),
    "negative dropout": (["--config.model.dropout=-0.1"], "dropout is -0.1; expected at least 0"),
    "no steps": (["--config.steps=0"], "config.steps is 0; expected at least 1"),
    "batch on mesh": (["--config.batch_size=12", "--config.mesh.data=8"], "batch_size is 12", "8 does not divide"),
    "microbatches": (["--config.microbatches=3"], "batch_size is 16, which 3 microbatches do not divide"),
    "heads on mesh": (["--config.mesh.tensor=8"],
                      "attention/key/bias has 4 heads, which mesh.tensor=8 does not divide", "1, 2, 4"),
    "heads": (["--config.model.heads=5"], "model.width is 32, which model.heads=5 does not divide"),
    "devices": (["--config.mesh.data=16"], "mesh is data=16", "there are 8 device(s)"),
    "vocabulary": (["--config.model.vocab=100"], "the tokenizer has 200 ids, and the model's table 100 rows"),
    "pairing": (["--config.objective.sentence_pair=True"], "needs pair_label, which format 'packed' does not give",
                "formats that do: segment_pair"),
    "objective": (["--config.objective.name=maskd"], "objective.name is 'maskd'", "did you mean 'masked'?"),
    "length": (["--config.length=64"], "length is 64, and the model has positions for 32"),
    "warm-up": (["--config.optimizer.schedule.warmup=13"], "warmup is 13, more than the 12 steps of the run"),
    "fractions": (["--config.objective.mask=0.5"], "mask + keep + random is 0.7", "must add to 1"),
    "no such file": ({"file": "smal.py"}, "there is no config file", "did you mean 'small.py'?"),
    "syntax": ({"file": "syntax.py"}, "syntax.py:2: SyntaxError"),
    "fails": ({"file": "fails.py"}, "fails.py:2: ZeroDivisionError"),
    "no files": (["--config.data.files=nowhere/*.txt"], "data.files 'nowhere/*.txt' matches no file"),
    "one document": (["--config.data.files={home}/one/*.txt"], "the corpus has 1 document: too few for the splits"),
    "little text": (["--config.batch_size=4096"], "examples of length 32, fewer than batch_size=4096; give more text"),
    "latin-1": (["--config.data.files={home}/latin/*.txt"], "latin/a.txt, line 2: byte 0xe9 is not UTF-8 text"),
    "no vocabulary": (["--config.tokenizer.vocab_file={home}/none.txt"], "cannot read the vocabulary", "none.txt"),
    "not a vocabulary": (["--config.tokenizer.vocab_file={home}/texts/00.txt"], "expected"),
    "another language": (["--config.tokenizer.vocab_file={home}/vocab.txt"], "tokens are unknown to"),
    "long sample": (["--config.samples=" + "cat " * 40 + "[MASK]"], "has 43 tokens; the model takes 32 at most"),
    "word": (["steps=3"],
             "lmrep train takes no argument 'steps=3'; set a field of the config with --config.FIELD=VALUE"),
    "data_dir": (["--data_dir={home}/small.py"], "cannot write to the data directory"),
    "Weights & Biases": (["--config.log.wandb=mine"], "pip install -e '.[wandb]'"),
}


@pytest.fixture(scope="module")
def home_with_invalid_files(home):
    for name, content in {
        "one/a.txt": b"The red cat.", "latin/a.txt": "The red cat.\nUn caf\xe9.\n".encode("latin-1"),
        "syntax.py": b"\ndef get_config(:\n", "fails.py": b"def get_config(argument=''):\n    1 / 0\n",
        "vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "а", "б"]).encode(),
    }.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(content)
    return home


@pytest.mark.parametrize("case", INVALID)
def test_invalid_config_is_refused_before_any_work(home_with_invalid_files, tmp_path, compilations, monkeypatch, case):
    home, (change, *texts) = home_with_invalid_files, INVALID[case]
    words = [word.format(home=home) for word in change] if isinstance(change, list) else []
    line = train(home, tmp_path / "run", *words, choices=change.get("choices", "") if isinstance(change, dict) else "")
    if isinstance(change, dict) and "file" in change:
        line[1] = f"--config={home}/{change['file']}"
    if case == "Weights & Biases":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(small.command(*line), *texts)
    assert not (tmp_path / "run").exists() and not compilations


@pytest.mark.parametrize("path", ["small.py", "small.py/run", "texts/00.txt/deep/run"])
def test_unusable_workdir_is_refused_before_data_are_read(home, tmp_path, path):
    line = [*train(home, home / path), f"--data_dir={tmp_path}/data"]
    refused(small.command(*line), f"the workdir {home / path} cannot be used", "is not a directory; give another")
    assert not (tmp_path / "data").exists()


# Resuming

CHANGES = {
    "learning rate": (["--config.optimizer.learning_rate=2e-3"], "config.optimizer.learning_rate: 0.001 -> 0.002"),
    "seed": (["--config.seed=1"], "config.seed: 0 -> 1"),
    "batch": (["--config.batch_size=8"], "config.batch_size: 16 -> 8"),
    "text": (["--config.data.files={home}/other/*.txt"], "data.train: '"),
    "splits": (["--config.data.test=0.2"], "config.data.test: 0.1 -> 0.2"),
    "tokenizer": (["--config.tokenizer.vocab_size=150"], "config.tokenizer.vocab_size: 200 -> 150"),
    "fewer steps": (["--config.steps=8"], "holds a run at step 12, and steps is 8; set steps to 12 or more"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_resuming_refuses_changes_that_affect_results_and_shows_a_diff(home, copy, case):
    if not (home / "other").exists():
        small.corpus(home / "other", seed=1)
    before = small.contents(copy)
    words, *texts = CHANGES[case]
    result = small.command(*train(home, copy, *(word.format(home=home) for word in words)))
    assert result.code == 2 and "Traceback" not in result.err
    for text in texts:
        assert text in result.err
    if case != "fewer steps":
        assert "give these fields their previous values to resume it, or another --workdir" in result.err.lower()
    assert small.contents(copy) == before


@pytest.mark.slow
def test_resuming_allows_changes_that_do_not_affect_results(home, copy, tmp_path):
    """Mesh, cadences, what is kept, samples, moved files; and more steps, which leave the lines before them alone. The
    config is that in the workdir."""
    shutil.copytree(home / "texts", tmp_path / "moved/texts")
    done = (copy / "metrics.jsonl").read_text()
    result = small.command(
        "train", f"--workdir={copy}", f"--data_dir={home}/data",
        "--config.steps=14", "--config.mesh.data=2", f"--config.data.files={tmp_path}/moved/texts/*.txt",
        "--config.checkpoint.every=1", "--config.checkpoint.keep=9", "--config.evaluation.every=1",
        "--config.log.every=2", "--config.log.tensorboard=True", "--config.samples=()")
    assert result.code == 0 and "resuming from step 12 of 14" in result.err, result
    found = (copy / "metrics.jsonl").read_text()
    assert found.startswith(done)
    added = [json.loads(line) for line in found.removeprefix(done).splitlines()]
    assert [(line["step"], line["split"]) for line in added] == [
        (13, "validation"), (14, "train"), (14, "validation")]
    assert {"12", "13", "14"} <= {path.name for path in (copy / "checkpoints").iterdir()}
    assert list((copy / "tensorboard").iterdir())
    assert json.loads((copy / "config.json").read_text())["config"]["steps"] == 14


@pytest.mark.slow
def test_workdir_has_the_config_of_its_run(home, copy, tmp_path):
    result = small.command("train", f"--workdir={copy}", f"--data_dir={home}/data", "--config.seed=1")
    assert result.code == 2 and "config.seed: 0 -> 1" in result.err
    refused(small.command("train", f"--workdir={tmp_path}/none"), "there is no run in", "with --config")
    result = small.command("doctor", f"--workdir={copy}", f"--data_dir={home}/data")
    assert result.code == 0 and "12 steps" in result.out and "FAILED" not in result.out, result
    refused(small.command("doctor"), "needs an experiment")


def test_finished_run_is_not_changed(home, copy):
    before = small.contents(copy)
    result = small.command(*train(home, copy, f"--config.samples={small.SAMPLE}"))
    assert result.code == 0 and "all 12 steps are done" in result.err
    assert result.out.replace(str(copy), str(home / "run")) == (home / "printed").read_text()
    after = small.contents(copy)
    changed = {path for path in after if before.get(path) != after[path]}
    assert changed <= {"provenance.jsonl", "timing.jsonl", ".lock"}


def test_resuming_refuses_moved_stage_boundaries(home, copy):
    stages = [{"name": "a", "fraction": 0.5}, {"name": "b", "fraction": 0.5}]
    record = json.loads((copy / "config.json").read_text())
    record["config"]["stages"], record["data"]["plans"] = stages, 2 * record["data"]["plans"]
    (copy / "config.json").write_text(json.dumps(record))
    before = small.contents(copy)
    refused(small.command(*train(home, copy, "--config.steps=14", f"--config.stages={stages}")),
            "with steps=14 the stages", "would have changed before its step 12; keep steps=12")
    assert small.contents(copy) == before


def test_runs_whose_text_was_split_by_other_rules_are_not_resumed_or_evaluated(home, copy):
    record = json.loads((copy / "config.json").read_text())
    del record["data"]["rules"]
    (copy / "config.json").write_text(json.dumps(record))
    before = small.contents(copy)
    for line in (train(home, copy, "--config.steps=14"), ("evaluate", f"--workdir={copy}", f"--data_dir={home}/data")):
        refused(small.command(*line), "divided text into splits and sentences by other rules", "splits-2")
    assert small.contents(copy) == before


# Damage

def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest_file(checkpoint):
    return max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.slow
def test_damaged_checkpoint_is_skipped_with_the_same_final_result(home, copy):
    lines = (copy / "metrics.jsonl").read_text()
    flip_bit(largest_file(copy / "checkpoints/12"))
    result = small.command("predict", f"--workdir={copy}", "The [MASK].")
    assert result.code == 0 and result.err.startswith("warning: checkpoint 12 in")
    result = small.command(*train(home, copy))
    assert result.code == 0 and "warning: checkpoint 12 in" in result.err and "is damaged and skipped" in result.err
    assert "resuming from step 8 of 12" in result.err
    assert (copy / "metrics.jsonl").read_text() == lines
    assert small.command("predict", f"--workdir={copy}", "--step=12", "The [MASK].").code == 0  # saved again


def test_run_without_a_valid_checkpoint_does_not_start_over(home, copy):
    for checkpoint in (copy / "checkpoints").iterdir():
        flip_bit(largest_file(checkpoint))
    before = small.contents(copy)
    refused(small.command(*train(home, copy)), "none of the checkpoints in", "the run will not start over", code=3)
    refused(small.command("predict", f"--workdir={copy}", "a [MASK]"), "none of the checkpoints in", code=3)
    assert {k: v for k, v in small.contents(copy).items() if k != ".lock"} == {
        k: v for k, v in before.items() if k != ".lock"}


@pytest.mark.slow
def test_loss_that_is_not_finite_exits_3(home, tmp_path, compilations):
    changes = ["--config.optimizer.learning_rate=1e38", "--config.optimizer.clip=0", "--config.data.validation=0",
               "--config.model.layers=1"]
    result = small.command(*train(home, tmp_path / "run", *changes))
    refused(result, " at step 2 (stage 'main', examples ", "this state is not saved", code=3)
    assert not list((tmp_path / "run").glob("checkpoints/[0-9]*"))
    assert compilations  # so that a refusal that compiles would fail its test


# The other commands

def test_training_prints_results_and_next_commands(home):
    printed = (home / "printed").read_text()
    for text in ("Trained to step 12.", "token frequencies (unigram)", "this model before training",
                 "this model at step 12", "The [MASK] cat sees the old dog.", "\nNext:\n", f"--workdir={home}/run",
                 f"lmrep report {home}/run\n"):  # it wrote neither a report nor files of TensorBoard
        assert text in printed


def test_evaluate_prints_what_it_writes(home):
    result = small.command("evaluate", f"--workdir={home}/run", f"--data_dir={home}/data")
    written = json.loads((home / "run/eval.json").read_text())
    shown = dict(line.split() for line in result.out.splitlines())
    formats = COMMON | OBJECTIVES["masked"].metrics  # as while training
    assert result.code == 0 and shown == {
        name: format(value, formats[name].format) for name, value in written["metrics"].items()}
    assert small.command("evaluate", f"--workdir={home}/run", f"--data_dir={home}/data").out == result.out


def test_checkpoints_of_further_steps_are_kept_and_evaluated(home, tmp_path):
    """The network before training and after powers of two, whatever `keep` says; stopped and continued likewise."""
    flags = ["--config.steps=6", "--config.checkpoint.keep=1", "--config.checkpoint.keep_best=0",
             "--config.checkpoint.steps=(0,1,2,4)", "--config.checkpoint.every=3", "--config.log.report=false"]
    assert small.command(*train(home, tmp_path / "run", *flags)).code == 0
    saved = sorted(int(folder.name) for folder in (tmp_path / "run/checkpoints").iterdir())
    assert saved == [0, 1, 2, 4, 6]
    again = small.interrupted(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(again / "checkpoints/4")
    assert small.command(*train(home, again, *flags)).code == 0
    assert small.losses(again) == small.losses(tmp_path / "run")
    assert sorted(int(folder.name) for folder in (again / "checkpoints").iterdir()) == saved
    evaluate = ["evaluate", f"--workdir={tmp_path}/run", f"--data_dir={home}/data", "--split=validation"]
    result = small.command(*evaluate, "--checkpoints=all")
    head, *rows = (line.split() for line in result.out.splitlines())
    assert head[0] == "step" and [int(row[0]) for row in rows] == saved
    validated = {line["step"]: line["loss"] for line in small.lines(tmp_path / "run", "validation")}
    for step, row in ((0, rows[0]), (6, rows[-1])):
        assert float(row[head.index("loss")]) == pytest.approx(validated[step], abs=1e-3)
    stored = [json.loads(line)["step"] for line in (tmp_path / "run/eval.jsonl").read_text().splitlines()]
    assert stored == saved
    refused(small.command(*evaluate, "--checkpoints=all", "--step=2"), "--checkpoints is 'all', and --step 2")


def test_predict_reads_texts_from_arguments_or_lines(home):
    texts = ["The [MASK] cat.", "[MASK] red [MASK]"]
    words = small.command("predict", f"--workdir={home}/run", "--k=2", *texts)
    lines = small.command("predict", f"--workdir={home}/run", "--k=2", stdin="\n" + "\n\n".join(texts))
    assert words.code == 0 and words == lines
    shown = words.out.splitlines()
    assert [line for line in shown if not line.startswith(" ")] == texts
    assert [line.strip() for line in shown if "[MASK]" in line and line.startswith(" ")] == [
        "[MASK]", "[MASK] 1", "[MASK] 2"]
    candidates = [line.split() for line in shown if "%" in line]
    assert len(candidates) == 6 and all(len(candidate) == 2 for candidate in candidates)


@pytest.mark.parametrize(("words", "stdin", "texts"), [
    (["The cat."], "", ["no [MASK] in 'The cat.'; write [MASK] for each word to predict"]),
    (["The [MASK] " + "cat " * 40], "", ["has 44 tokens; the model takes 32 at most"]),
    ([], "", ["standard input has no text"]),
    ([], " \n\n", ["standard input has no text"]),
    (["--k=0", "a [MASK]"], "", ["--k is 0; expected at least 1"]),
    (["--step=5", "a [MASK]"], "", ["holds no checkpoint 5; it holds 4, 8, 12"]),
    (["--workdir=/nowhere", "a [MASK]"], "", ["there is no run in /nowhere"]),
    (["--config=small.py", "a [MASK]"], "", ["takes the config of the run in --workdir; leave --config out"]),
    (["--sample=3", "a [MASK]"], "", ["has no flag --sample; did you mean '--samples'?"]),
    (["--temperature=2", "a [MASK]"], "",
     ["--temperature is no option of a model that fills in masked words; its option"]),
])
def test_predict_refuses_invalid_arguments(home, words, stdin, texts):
    refused(small.command("predict", f"--workdir={home}/run", *words, stdin=stdin), *texts)


@pytest.mark.parametrize(("words", "text"), [
    (["--split=dev"], "no split 'dev'; this run's corpus has train, validation, test"),
    (["--examples=-1"], "examples is -1; expected at least 1"),
    (["--config.seed=1"], "takes the config of the run in --workdir"),
    (["test"], "takes no argument 'test'"),
])
def test_evaluate_refuses_invalid_arguments(home, words, text):
    refused(small.command("evaluate", f"--workdir={home}/run", f"--data_dir={home}/data", *words), text)


def test_inspect_shows_corpus_tokenizer_and_examples(home):
    result = small.command("inspect", f"--workdir={home}/run", f"--data_dir={home}/data")
    assert result.code == 0
    for text in ("Corpus text_files", "documents", "unknown", "tokens, ", "most frequent: the ",
                 "white space of documents: ", "text is lower-cased and stripped of accents",
                 "packed examples of 32 tokens", "12 steps", "epochs", "padding"):
        assert text in result.out
    assert result.out.count("Example ") == 5 and result.out.count("-> [MASK]}") >= 5
    assert "pair label" not in result.out


def test_inspect_shows_pairs_with_their_labels(home):
    line = ["inspect", f"--config={home}/small.py:format=segment_pair", "--config.objective.sentence_pair=True",
            f"--data_dir={home}/data", "--examples=6"]
    result = small.command(*line)
    assert result.code == 0 and result.out.count("Example ") == 6
    examples = result.out.split("Example ")[1:]
    assert all(example.count("[SEP]") == 2 and example.count("[CLS]") >= 1 for example in examples)
    assert {"0", "1"} == {example.split("[pair label ")[1][0] for example in examples}
    assert small.command(*line).out == result.out


@pytest.mark.parametrize(("words", "text"), [
    (["--split=dev"], "no split 'dev'; this corpus has train, validation, test"),
    (["--examples=-1"], "examples is -1; expected at least 0"),
    (["train"], "takes no argument 'train'"),
])
def test_inspect_refuses_invalid_arguments(home, words, text):
    refused(small.command("inspect", f"--config={home}/small.py", f"--data_dir={home}/data", *words), text)
