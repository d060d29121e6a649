"""What tasks refuse, and the field, file or word that each message names."""

import dataclasses
import json

import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.data import records
from lmrep.data.records import Record
from lmrep.experiment import config as experiments
from lmrep.models.chunks import Chunks
from lmrep.tasks import TASKS, adversarial, distillation, frozen_features
from tests import runs
from tests.tasks import tiny
from tests.tasks.examples import BILSTM, EXAMPLES, PART, SIZES, encoder, made

WORDS = " ".join(tiny.WORDS)


def changed(task, number=1, **fields):
    """The examples of a task, one of them with other fields."""
    return [{**each, **fields} if i == number else each for i, each in enumerate(EXAMPLES[task])]


def tagged(*tags):
    return [{"words": [*"abcdefgh"[: len(own.split())]], "tags": own.split()} for own in tags]


FEATURES = {"model": "none", "frozen": {"features": encoder}}
TEXTS = {"model": "encoder_decoder", "sizes": SIZES, "max_target": 8}
# Examples and the arguments of `Tiny`. Row: name -> (task, examples, arguments, what the message names).
TINY = {
    "one class": ("classification", [{"text": "cat", "label": "pos"}] * 3, {}, ("'pos'", "train.jsonl, line 1")),
    "label not in the list": ("classification", None, {"labels": ("pos", "neg")}, (
        "train.jsonl, line 3", "'zero'", "config.objective.labels")),
    "F1 of three classes": ("classification", None, {"metrics": ("f1",)}, ("config.objective.positive", "zero")),
    "unknown positive class": ("classification", EXAMPLES["classification"][:2], {"metrics": ("f1",), "positive": "2"},
                               ("config.objective.positive", "'2'")),
    "long text": ("classification", changed("classification", text=WORDS), {"length": 9, "form": {"long": "refuse"}},
                  ("train.jsonl, line 2", "config.length is 9", "--config.format.long")),
    "no room for a pair": ("classification", None, {"length": 4, "form": {"long": "truncate"}}, (
        "train.jsonl, line 2", "config.length is 4")),
    "not Unicode": ("classification", changed("classification", text="a \ud800"), {}, ("train.jsonl, line 2",)),
    "pooling of a BCN": ("classification", None, {"network": "bcn", "pooling": "mean", "dense": False}, (
        "config.objective.pooling", "position")),
    "padding of chunks that are counted from the start": ("classification", None, {
        "model": "lstm", "context": "left", "chunks": Chunks(4, "start", padding=True)}, ("chunks.padding", "start")),
    "chunks of a transformer": ("classification", None, {"chunks": Chunks(4)}, (
        "config.objective.chunks.size", "awd_lstm")),
    "chunks below LSTM layers": ("classification", None, {"model": "lstm", "context": "left", **BILSTM,
                                                          "chunks": Chunks(4)}, ("chunks.size", "network=bilstm")),
    "chunks of every position": ("classification", None, {
        "model": "lstm", "context": "left", "chunks": Chunks(4), "linear_gain": True}, ("chunks.size", "linear_gain")),
    "words left out of a transformer": ("classification", None, {"word_dropout": 0.1}, ("word_dropout", "awd_lstm")),
    "adversarial changes of chunks": ("classification", None, {
        "model": "lstm", "context": "left", "chunks": Chunks(4), "adversarial": adversarial.Config(weight=1.0)}, (
        "config.objective.adversarial", "chunks.size is 4")),
    "adversarial changes below batch normalization": ("classification", None, {
        "model": "lstm", "context": "left", "network": "ulmfit", "adversarial": adversarial.Config(weight=1.0)}, (
        "config.objective.adversarial", "network is ulmfit")),
    "chunks of words": ("word_in_context", None, {"model": "lstm", "context": "left", "chunks": Chunks(4)}, (
        "chunks.size", "words")),
    "language model of both sides": ("classification", None, {"auxiliary": 0.5}, (
        "config.objective.auxiliary", "config.objective.context")),
    "nothing to read": ("classification", None, {"model": "none", **BILSTM}, ("config.model.name", "vectors=FILE")),
    "label that is no number": ("regression", changed("regression", label="high"), {}, (
        "train.jsonl, line 2", "'high'")),
    "label that is not finite": ("regression", changed("regression", label="nan"), {}, (
        "train.jsonl, line 2", "'nan'")),
    "label with an underscore": ("regression", changed("regression", label="1_0"), {}, (
        "train.jsonl, line 2", "'1_0'")),
    "label that is too large": ("regression", changed("regression", label="-2e15"), {}, (
        "train.jsonl, line 2", "'-2e15'")),
    "teacher of numbers": ("regression", None, {"teacher": distillation.Config(alpha_ce=0.5)}, (
        "config.objective.teacher.alpha_ce",)),
    "teacher of a CRF": ("tagging", None, {"network": "crf", "teacher": distillation.Config(alpha_ce=0.5)}, (
        "config.objective.teacher.alpha_ce", "network crf")),
    "one choice": ("multiple_choice", changed("multiple_choice", choices=["cat"], label="0"), {}, (
        "train.jsonl, line 2", "'cat'")),
    "long choice": ("multiple_choice", changed("multiple_choice", choices=[WORDS, "cat"]), {
        "length": 9, "form": {"long": "refuse"}}, ("train.jsonl, line 2, choice 0", "config.length is 9")),
    "windows of choices": ("multiple_choice", None, {"form": {"long": "windows"}}, ("config.format.long is windows",)),
    "sense with a space": ("word_senses", changed("word_senses", senses=["a b"]), {}, ("train.jsonl, line 2", "'a b'")),
    "empty lemma": ("word_senses", changed("word_senses", lemma=" "), {}, ("train.jsonl, line 2", "lemma")),
    "nearest of a trained encoder": ("word_senses", None, {"network": "nearest"}, (
        "config.objective.network", "features=")),
    "nearest of nothing": ("word_senses", None, {"network": "nearest", "model": "none"}, (
        "config.objective.network", "features=")),
    "nearest of a mix": ("word_senses", None, {"network": "nearest", **FEATURES, "features": frozen_features.Config(
        layers="mix:all")}, ("config.objective.features.layers", "last")),
    "long pair around a word": ("word_in_context", changed("word_in_context", text2=f"{WORDS} {WORDS}"), {
        "length": 9, "form": {"long": "refuse"}}, ("train.jsonl, line 2", "config.length is 9")),
    "question without answer": ("span_extraction", None, {}, (
        "train.jsonl, line 3", "--config.objective.unanswerable")),
    "context without a token": ("span_extraction", changed("span_extraction", context="\u200b", answers=[]), {
        "unanswerable": True}, ("train.jsonl, line 2",)),
    "long question": ("span_extraction", changed("span_extraction", question=f"{WORDS} {WORDS}"), {
        "unanswerable": True, "length": 12}, ("train.jsonl, line 2", "--config.objective.max_question_tokens")),
    "long context": ("span_extraction", changed("span_extraction", context=WORDS, answers=[]), {
        "unanswerable": True, "length": 10, "form": {"long": "refuse"}}, (
            "train.jsonl, line 2", "--config.format.long=windows")),
    "one tag": ("tagging", tagged("O O O"), {}, ("'O'", "train.jsonl, line 1")),
    "tag of no scheme": ("tagging", tagged("O PER B-X O"), {}, ("train.jsonl, line 1", "word 2", "'PER'")),
    "prefixes of no scheme": ("tagging", tagged("O L-X B-X E-X"), {}, ("B, E, L, O", "--config.objective.scheme=none")),
    "tag of no scheme where one is set": ("tagging", tagged("NN O"), {"scheme": "BIO"}, (
        "train.jsonl, line 1", "word 1", "'NN'", "scheme=none")),
    "tag not in the list": ("tagging", None, {"labels": ("O", "B-X", "I-X")}, (
        "train.jsonl, line 3", "'B-A'", "config.objective.labels")),
    "repair of plain tags": ("tagging", None, {"scheme": "none", "repair": True}, ("config.objective.repair",)),
    "Viterbi of plain tags": ("tagging", None, {"scheme": "none", "decoding": "viterbi"}, (
        "config.objective.decoding",)),
    "repair, where tags are plain": ("tagging", tagged("NOUN VERB"), {"repair": True}, ("config.objective.repair",)),
    "entities of plain tags": ("tagging", tagged("NOUN VERB"), {"metrics": ("token_accuracy", "conll_f1")}, (
        "config.objective.metrics", "conll_f1")),
    "truncated sentences": ("tagging", None, {"form": {"long": "truncate"}}, ("config.format.long is truncate",)),
    "long sentence": ("tagging", tagged("O B-X I-X O O O O"), {"length": 5, "form": {"long": "refuse"}}, (
        "train.jsonl, line 1", "config.length is 5", "--config.format.long")),
    "word that is not Unicode": ("tagging", changed("tagging", words=["\ud800"]), {}, ("train.jsonl, line 2",)),
    "template without a field": ("text_to_text", None, {**TEXTS, "template": "translate"}, (
        "config.objective.template",)),
    "template of an unknown field": ("text_to_text", None, {**TEXTS, "template": "{sentence}"}, (
        "config.objective.template", "{sentence}")),
    "template without a brace": ("text_to_text", None, {**TEXTS, "template": "{text"}, ("config.objective.template",)),
    "template with a format": ("text_to_text", None, {**TEXTS, "template": "{text:d}"}, ("config.objective.template",)),
    "target of an unknown field": ("text_to_text", None, {**TEXTS, "target": "{text3}"}, (
        "config.objective.target", "{text3}")),
    "template of a missing field": ("text_to_text", None, {**TEXTS, "template": "{text} {text2}"}, (
        "train.jsonl, line 1", "text2", "config.objective.template")),
    "F1 of no class": ("text_to_text", None, {**TEXTS, "metrics": ("f1",)}, ("config.objective.positive",)),
    "long target": ("text_to_text", None, {**TEXTS, "max_target": 4}, (
        "train.jsonl, line 3", "config.objective.max_target 4")),
    "target that is no tag": ("text_to_text", None, {**TEXTS, "metrics": ("entity_f1",)}, (
        "train.jsonl, line 1", "'bird'", "entity_f1")),
    "target that is no number": ("text_to_text", None, {**TEXTS, "metrics": ("spearman",)}, (
        "train.jsonl, line 1", "'bird dog cat'", "config.objective.metrics")),
    "template of denoising": ("text_to_text", None, {**TEXTS, "denoise": True, "template": "fill {text}"}, (
        "config.objective.denoise", "template=")),
    "metric of denoising": ("text_to_text", None, {**TEXTS, "denoise": True, "metrics": ("bleu",)}, (
        "config.objective.denoise", "metrics=()")),
    "features between no layers": ("tagging", None, {**FEATURES, "network": "crf", "features": frozen_features.Config(
        "last", "between")}, ("config.objective.features.placement", "config.objective.network is crf")),
    "features between one layer": ("tagging", None, {**FEATURES, **BILSTM, "bilstm": dataclasses.replace(
        BILSTM["bilstm"], layers=1), "features": frozen_features.Config("last", "between")}, (
            "config.objective.features.placement", "bilstm.layers is 1")),
    "features at the output alone": ("tagging", None, {**FEATURES, **BILSTM, "features": frozen_features.Config(
        "last", "output")}, ("config.model.name", "config.objective.features.placement")),
    "missing layer": ("tagging", None, {**FEATURES, "features": frozen_features.Config("3")}, (
        "config.objective.features", "layer 3")),
    "several layers": ("tagging", None, {**FEATURES, "features": frozen_features.Config("0,1")}, (
        "config.objective.features.layers", "mix:0,1")),
    "vectors as features": ("tagging", None, {"model": "none", "frozen": {"features": PART},
                                              "features": frozen_features.Config("last")}, ("config.frozen.features",)),
    "no features": ("tagging", None, {"model": "none", "features": frozen_features.Config("last")}, (
        "config.frozen", "config.objective.features")),
}


@pytest.mark.parametrize("name", TINY)
def test_tasks_refuse(name):
    task, given, options, named = TINY[name]
    row, options = TASKS[task], made(options)
    fields = {key: value for key, value in options.items() if key in row.objective.config.__dataclass_fields__}
    with pytest.raises(UserError) as error:
        row.objective.check(row.objective.config(**fields))
        own = tiny.Tiny(task, given or EXAMPLES[task], **options)
        for record in own.records:
            row.check(own.config, record)
        own.encode()
    assert all(text in str(error.value) for text in named), error.value


WIC = "bank\tN\t4-1\tThey sat on the bank.\tThe bank was closed .\nrun\tV\t1-1\tThey run it\tThey run\n"
PAIR = ("text", "text2", "span", "span2", "label")
# Files that a reader refuses. Row: name -> (name of the file, content, labels beside it, columns, fields, words).
FILES = {
    "no labels": ("a.data.txt", WIC, None, {}, PAIR, ("a.gold.txt",)),
    "too few labels": ("a.data.txt", WIC, "T\n", {}, PAIR, ("a.gold.txt has 1 line", "a.data.txt 2")),
    "unknown label": ("a.data.txt", WIC, "T\nX\n", {}, PAIR, ("a.gold.txt, line 2", "'X'")),
    "word beyond the text": ("a.data.txt", WIC.replace("1-1", "1-2"), "T\nF\n", {}, PAIR, (
        "a.data.txt, line 2", "word 2", "'They run'")),
    "one place": ("a.data.txt", WIC.replace("1-1", "1"), "T\nF\n", {}, PAIR, ("a.data.txt, line 2", "'1'")),
    "missing column": ("a.data.txt", WIC.replace("\tV", ""), "T\nF\n", {}, PAIR, ("a.data.txt, line 2", "4 columns")),
    "empty text": ("a.data.txt", WIC.replace("They run it", " "), "T\nF\n", {}, PAIR, ("a.data.txt, line 2", "''")),
    **{f"span {span}": ("a.jsonl", json.dumps({"text": "on the bank", "span": span}), None, {}, ("text", "span"), (
        "a.jsonl, line 1", f"{span[0]}-{span[1]}", "11")) for span in ([0, 12], [3, 3], [2, 3], [4, 3])},
    **{name: ("a.jsonl", json.dumps({"text": "a", "choices": ["b", choice], "label": label}), None, {}, (
        "text", "choices", "label"), ("a.jsonl, line 1", word)) for name, choice, label, word in (
            ("label beyond the choices", "c", 2, "'2'"), ("negative label", "c", -1, "'-1'"),
            ("empty choice", " ", 0, "choices"))},
    "label that is not 0 or 1": ("a.csv", "text,a,b\nx,1,yes\n", None, {"labels": "a,b"}, ("text", "labels"), (
        "a.csv, line 2", "0 or 1")),
    "missing label": ("a.csv", "text,a\nx,1\n", None, {"labels": "a,b"}, ("text", "labels"), (
        "line 1", "'b'", "'labels'")),
}


@pytest.mark.parametrize("name", FILES)
def test_readers_refuse(name, tmp_path):
    file, content, gold, columns, fields, named = FILES[name]
    (tmp_path / file).write_text(content)
    if gold is not None:
        (tmp_path / "a.gold.txt").write_text(gold)
    form = {"format": "word_in_context"} if file == "a.data.txt" else {}
    with pytest.raises(UserError) as error:
        records.read(records.Config(train=str(tmp_path / file), columns=columns, **form), "train", fields)
    assert all(text in str(error.value) for text in named), error.value


COPY = {"name": "copy", "data": {"train": "a.jsonl"}, "objective": {"template": "copy {text}"}}
CHOOSE = {"name": "choose", "data": {"train": "b.jsonl"}, "objective": {"template": "choose {text}"}}
# Mixtures. Row: name -> (the sources, fields of the config, what the message names).
MIXTURES = {
    "same names": ([COPY, {**CHOOSE, "name": "copy"}], {}, ("config.sources.1.name", "'copy'")),
    "name of a path": ([{**COPY, "name": "a/b"}, CHOOSE], {}, ("config.sources.0.name", "'a/b'")),
    "shared field": ([COPY, {**CHOOSE, "objective": {"max_target": 3}}], {}, (
        "config.sources.1.objective.max_target", "config.objective.max_target")),
    "template": ([COPY, {**CHOOSE, "objective": {"template": "none"}}], {}, ("template", "'none'")),
    "unknown field of a source": ([COPY, {**CHOOSE, "objective": {"templat": "{text}"}}], {}, ("'template'",)),
    "unknown field of data": ([COPY, {**CHOOSE, "data": {"trian": "x"}}], {}, ("config.sources.1.data", "'train'")),
    "cap without a temperature": ([COPY, CHOOSE], {"size_cap": 64}, ("size_cap", "config.temperature")),
    "limited tokens": ([COPY, CHOOSE], {"format.batch_tokens": 64}, ("batch_tokens",)),
    "text without a task": ([{**COPY, "objective": {"denoise": True, "metrics": ()}}], {}, ("config.sources",)),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_are_refused(name):
    sources, fields, named = MIXTURES[name]
    config = tiny.config("text_to_text", "", None, **{f"model__{field}": value for field, value in SIZES.items()},
                         objective__max_target=8)
    config.sources = tuple(sources)
    config.update_from_flattened_dict(fields)
    with pytest.raises(UserError) as error:
        experiments.parse(config)
    assert all(text in str(error.value) for text in named), error.value


def test_a_head_for_one_data_set_is_not_trained_on_a_mixture():
    config = tiny.config("classification", "a.jsonl")
    config.sources = ({"name": "a"},)
    with pytest.raises(UserError, match=r"config\.sources.*classification.*text_to_text"):
        experiments.parse(config)


def test_text_alone_is_no_data_of_a_task():
    config = tiny.config("text_to_text", "a.jsonl", objective__denoise=True, objective__metrics=(),
                         **{f"model__{field}": value for field, value in SIZES.items()})
    with pytest.raises(UserError, match=r"config\.objective\.denoise"):
        experiments.parse(config)


# Examples that a run is to predict. Row: name -> (shared run, example, what the message names).
PREDICTED = {
    "text that is no string": ("classification", {"text": 3}, ("'text'", "3")),
    "missing text": ("classification", {"words": ["a"]}, ("'text'",)),
    "empty text": ("classification", " ", ("'text'",)),
    "no words": ("tagging", [], ("'words'", "[]")),
    "empty word": ("tagging", ["a", ""], ("'words'", "['a', '']")),
    "word that is no string": ("tagging", ["a", 3], ("list of strings",)),
    "missing words": ("tagging", {"text2": "a"}, ("'words'",)),
}


def test_a_run_on_one_data_set_has_no_source():
    with pytest.raises(UserError, match="'copy'"):
        loaded("text_to_text").predict(["cat"], source="copy")


@pytest.mark.parametrize("name", PREDICTED)
def test_runs_refuse_examples(name):
    run, example, named = PREDICTED[name]
    with pytest.raises(UserError) as error:
        loaded(run).predict([example])
    assert all(text in str(error.value) for text in named), error.value


LOADED = {}


def loaded(name):
    if name not in LOADED:
        LOADED[name] = lmrep.load(runs.folder(name) / "run")
    return LOADED[name]


@pytest.mark.parametrize(("fields", "named"), [
    ({"labels": ("pos", "neg")}, "objective.labels"), ({"end_of_text": False}, "objective.end_of_text"),
    ({}, "classification")])
def test_teachers_are_refused(fields, named):
    """Those with other labels or texts, and those of other tasks."""
    own = tiny.Tiny("classification", EXAMPLES["classification"][:2])
    other = tiny.Tiny("classification", EXAMPLES["classification"][:2], **fields) if fields else tiny.Tiny(
        "tagging", EXAMPLES["tagging"])
    part = encoder()._replace(name="teacher", objective=other.objective, config=other.config, model=other.model)
    config = dataclasses.replace(own.config, teacher=distillation.Config(alpha_ce=0.5))
    with pytest.raises(UserError, match=named):
        distillation.teacher("classification", config, {"teacher": part})


@pytest.mark.parametrize(("metric", "target"), [("token_accuracy", "positive"), ("pearson", "3.8")])
def test_targets_that_a_metric_measures_are_accepted(metric, target):
    task = TASKS["text_to_text"]
    task.check(task.objective.config(metrics=(metric,)), Record({"text": "a", "target": target}, "0", "here"))
