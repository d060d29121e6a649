"""Published checkpoints of tasks: their files, what cannot be written, and runs that start from them."""

import json
import re
import shutil

import numpy as np
import pytest

import lmrep
from lmrep.analysis import pruning
from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.experiment.config import default_config
from lmrep.experiment.task_data import tokenize_records
from lmrep.interop import certificate, checkpoint_config, conversion
from lmrep.interop.heads import HEADS, PublishedTask
from lmrep.interop.huggingface import head_classes
from lmrep.interop.huggingface.read import read, specs
from lmrep.interop.huggingface.write import from_network, write
from lmrep.models import transformer
from tests import started
from tests.interop.test_published import GOLDEN, LEFT, files, same
from tests.tasks import tiny

LABELS = ("no", "yes", "maybe")
POOLED, GELU, RELU, BY_TOKEN = {}, {"activation": "gelu"}, {"activation": "relu"}, {"dense": False}
CAUSAL = {"context": "left", "dense": False}
BERT, ELECTRA, ALBERT = {}, {"embedding": 7, "activation": "gelu"}, {"embedding": 7, "share": "all"}
ROBERTA = {"position_offset": 2, "activation": "gelu", "token_types": 1}
DISTILBERT = {"activation": "gelu", "token_types": 0}
SEQUENCE, TOKENS, CHOICE, SPANS = "classification", "tagging", "multiple_choice", "span_extraction"
# Network, task, form of the head; class, and the tensors of the head, without weight and bias.
LAYOUTS = [
    (BERT, SEQUENCE, POOLED, "BertForSequenceClassification", ["bert.pooler.dense", "classifier"]),
    (BERT, "regression", POOLED, "BertForSequenceClassification", ["bert.pooler.dense", "classifier"]),
    (BERT, "multilabel", POOLED, "BertForSequenceClassification", ["bert.pooler.dense", "classifier"]),
    (BERT, TOKENS, BY_TOKEN, "BertForTokenClassification", ["classifier"]),
    (BERT, SPANS, BY_TOKEN, "BertForQuestionAnswering", ["qa_outputs"]),
    (BERT, CHOICE, POOLED, "BertForMultipleChoice", ["bert.pooler.dense", "classifier"]),
    (ROBERTA, SEQUENCE, POOLED, "RobertaForSequenceClassification", ["classifier.dense", "classifier.out_proj"]),
    (ROBERTA, CHOICE, POOLED, "RobertaForMultipleChoice", ["roberta.pooler.dense", "classifier"]),
    (ELECTRA, SEQUENCE, GELU, "ElectraForSequenceClassification", ["classifier.dense", "classifier.out_proj"]),
    (ELECTRA, CHOICE, GELU, "ElectraForMultipleChoice", ["sequence_summary.summary", "classifier"]),
    (ALBERT, SEQUENCE, POOLED, "AlbertForSequenceClassification", ["albert.pooler", "classifier"]),
    (DISTILBERT, SEQUENCE, RELU, "DistilBertForSequenceClassification", ["pre_classifier", "classifier"]),
    (DISTILBERT, TOKENS, BY_TOKEN, "DistilBertForTokenClassification", ["classifier"]),
    (DISTILBERT, SPANS, BY_TOKEN, "DistilBertForQuestionAnswering", ["qa_outputs"]),
    (DISTILBERT, CHOICE, RELU, "DistilBertForMultipleChoice", ["pre_classifier", "classifier"]),
    (LEFT, SEQUENCE, CAUSAL | {"bias": False, "end_of_text": False}, "GPT2ForSequenceClassification", ["score"]),
    (LEFT, TOKENS, CAUSAL, "GPT2ForTokenClassification", ["classifier"]),
    (LEFT, SPANS, CAUSAL, "GPT2ForQuestionAnswering", ["qa_outputs"]),
    ({"norm": "pre", "activation": "gelu", "token_types": 0}, SEQUENCE, POOLED,
     "RobertaPreLayerNormForSequenceClassification", ["classifier.dense", "classifier.out_proj"]),
]  # fmt: skip


def network(changed, task, form):
    """(config of a small network, random parameters with a head, the task)."""
    form = {"context": "both", "dense": True, "activation": "tanh", "bias": True, "dropout": 0.1, **form}
    task = PublishedTask(task, form | ({"labels": LABELS} if task in (SEQUENCE, TOKENS, "multilabel") else {}))
    sizes = {"vocab": len(tiny.tokenizer().tokens), "width": 12, "layers": 2, "heads": 2, "mlp": 20, "max_length": 32}
    config, draw = transformer.Config(**(sizes | changed)), np.random.default_rng(0)
    return config, {path: 0.5 * draw.normal(size=spec.shape).astype(np.float32)
                    for path, spec in specs(config, task).items()}, task


def publish(directory, changed=BERT, name=SEQUENCE, form=POOLED):
    """Writes such a network as a published directory, and returns the checkpoint."""
    config, params, task = network(changed, name, form)
    specials = {**tiny.tokenizer().vocabulary.specials, **({"pad": 1} if changed is ROBERTA else {})}
    checkpoint, _ = from_network(config, params, specials, name, task)
    directory.mkdir()
    write(checkpoint, directory, 10**9)
    tiny.tokenizer().save(directory)
    return checkpoint


@pytest.mark.parametrize(("changed", "name", "form", "class_name", "head"), LAYOUTS)
def test_files_are_those_of_the_class(tmp_path, changed, name, form, class_name, head):
    checkpoint = publish(tmp_path / "x", changed, name, form)
    tensors, found = files(tmp_path / "x"), json.loads((tmp_path / "x/config.json").read_text())
    parts = ["weight"] if form.get("bias") is False else ["weight", "bias"]
    encoder = publish_names(checkpoint)
    assert tensors.keys() - encoder == {f"{each}.{part}" for each in head for part in parts}
    out = checkpoint.params[f"objective/{name}/out/kernel"]
    np.testing.assert_array_equal(tensors[f"{head[-1]}.weight"], out.T)
    assert found["architectures"] == [class_name]
    assert found.get("problem_type") == (HEADS[name].problem_type or None)
    if name in (SEQUENCE, TOKENS, "multilabel"):
        assert found["id2label"] == {"0": "no", "1": "yes", "2": "maybe"} and found["num_labels"] == 3
        assert found["label2id"] == {"no": 0, "yes": 1, "maybe": 2}
    again = read(tmp_path / "x")
    assert again.task.name == name and again.task.labels == checkpoint.task.labels and again.heads == (name,)
    assert same(again.params, checkpoint.params) and again.class_name == class_name


def publish_names(checkpoint):
    """The names of the encoder's tensors."""
    paths = {path: value.shape for path, value in checkpoint.params.items() if path.startswith("encoder/")}
    prefix = f"{checkpoint.family.prefix}."
    return {names[0] for _, names in checkpoint.family.locations(prefix, checkpoint.config, paths)}


@pytest.mark.parametrize(("specials", "end_of_text", "pad", "remark"), [
    ({"eos": 3, "bos": 3}, False, 3, ""),
    ({"eos": 3, "bos": 3}, True, None, "id 3, at its end; .*one text at a time"),
    ({"eos": 3, "pad": 3}, True, None, "one text at a time"),
    ({"eos": 3, "pad": 0}, True, 0, "id 3, at its end"),
    ({"cls": 1, "sep": 2, "pad": 0}, True, 0, ""),
])
def test_padding_of_gpt2_is_no_token_that_ends_a_text(specials, end_of_text, pad, remark):
    """The class reads the vector of the last token that is not padding."""
    form = CAUSAL | {"bias": False, "dropout": 0.0, "end_of_text": end_of_text}
    config, params, task = network(LEFT, SEQUENCE, form)
    checkpoint, remarks = from_network(config, params, specials, SEQUENCE, task)
    assert checkpoint.config_json["pad_token_id"] == pad and len(remarks) == bool(remark)
    assert re.search(remark, "".join(remarks))
    again = head_classes.read_task(checkpoint.family.tasks, checkpoint.config_json, "config.json")
    assert again.head.end_of_text == end_of_text


def test_labels_without_names_are_numbered_as_in_the_library(tmp_path):
    publish(tmp_path / "x")
    file = tmp_path / "x/config.json"
    absent = dict.fromkeys(("id2label", "problem_type"))
    file.write_text(json.dumps(json.loads(file.read_text()) | absent | {"label2id": {"LABEL_0": 1}}))
    assert read(tmp_path / "x").task.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    remarks = conversion.to_workdir(tmp_path / "x", tmp_path / "run").remarks
    assert any("label2id of config.json has other numbers than id2label for LABEL_0" in each for each in remarks)


# --- runs ---


EXAMPLES = [{"text": f"{word} {quality}", "label": label} for word in tiny.WORDS
            for quality, label in (("good", "yes"), ("bad", "no"))]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """With a published classifier, the workdir that it was converted to, and files of examples."""
    home = tmp_path_factory.mktemp("home")
    publish(home / "published")
    conversion.to_workdir(home / "published", home / "converted")
    tiny.write(home / "train.jsonl", EXAMPLES)
    tiny.write(home / "other.jsonl", [{**each, "label": f"not {each['label']}"} for each in EXAMPLES])
    return home


@pytest.mark.parametrize(("changed", "form"), [
    (BERT, POOLED), (LEFT, CAUSAL | {"bias": False, "end_of_text": False})], ids=["first token", "last token"])
def test_converted_run_predicts_the_labels_of_the_checkpoint(tmp_path, changed, form):
    checkpoint = publish(tmp_path / "published", changed, SEQUENCE, form)
    conversion.to_workdir(tmp_path / "published", tmp_path / "run")
    run, texts = lmrep.load(tmp_path / "run"), ["cat good dog", "bird"]
    assert tuple(run.experiment.objective["labels"]) == LABELS and run.experiment.format["long"] == "auto"
    ids = [found.ids for found in run.encode(texts)]
    tokens, mask = np.full((2, len(ids[0])), run.tokenizer.vocabulary.specials["pad"]), np.zeros((2, len(ids[0])), int)
    for row, (own, real) in enumerate(zip(tokens, mask, strict=True)):
        own[: len(ids[row])], real[: len(ids[row])] = ids[row], 1
    batch = certificate.RandomBatch(tokens, np.zeros_like(tokens), mask)
    logits = certificate.our_outputs(checkpoint, batch)[SEQUENCE].astype(float)
    for prediction, expected in zip(run.predict(texts), np.exp(logits), strict=True):
        assert list(prediction["probabilities"]) == list(LABELS)
        np.testing.assert_allclose([*prediction["probabilities"].values()], expected / expected.sum(), atol=1e-5)
        assert prediction["label"] == LABELS[expected.argmax()]


def test_run_starts_from_a_published_head(home, tmp_path):
    c = tiny.config(SEQUENCE, home / "train.jsonl", argument=f"init={home}/published")
    assert c.objective.labels == LABELS and c.objective.dense and c.objective.context == "both"
    data, stages = started.stages(c, tmp_path)
    assert data.experiment.objective["labels"] == LABELS
    assert same(stages[0].init_values, read(home / "published").params)


@pytest.mark.parametrize("source", ["published", "converted"])
def test_other_labels_are_refused_with_the_offer_of_a_new_head(home, tmp_path, source):
    init = f"init={home}/{source}"
    c = tiny.config(SEQUENCE, home / "other.jsonl", argument=init)
    with pytest.raises(UserError, match=r"has the labels not no, not yes, and config.objective.labels is no, yes, maybe"
                                        r".*--config.head=new"):
        started.stages(c, tmp_path)
    c.objective.labels = ("yes", "no", "maybe")
    c.data.train = str(home / "train.jsonl")
    with pytest.raises(UserError, match=r"a head for the labels no, yes, maybe, in this order .*--config.head=new"):
        started.stages(c, tmp_path)
    c = tiny.config(SEQUENCE, home / "other.jsonl", argument=f"{init},head=new")
    assert c.objective.labels == ()
    data, stages = started.stages(c, tmp_path)
    assert data.experiment.objective["labels"] == ("not no", "not yes")
    assert all(path.startswith("encoder/") for path in stages[0].init_values)


def test_head_of_another_form_is_refused(home, tmp_path):
    c = tiny.config(SEQUENCE, home / "train.jsonl", argument=f"init={home}/published", objective__activation="relu")
    with pytest.raises(UserError, match=r"objective.activation is 'relu' in this run and 'tanh' in the head of .*"
                                        r"=tanh, or .*--config.head=new"):
        started.stages(c, tmp_path)


def test_flag_for_a_new_head_leaves_labels_to_the_data(home):
    page = "tasks/classify.py"
    own = checkpoint_config.load_config(page, f"init={home}/published")
    new = checkpoint_config.load_config(page, f"init={home}/published", [("head", "new")])
    assert own.objective.labels == LABELS and new.objective.labels == ()


@pytest.mark.parametrize(("directory", "task", "fields"), [
    ("gpt2", SEQUENCE, {"context": "left", "dense": False, "bias": False, "end_of_text": False}),
    ("roberta", SEQUENCE, {"context": "both", "activation": "tanh", "input_dropout": 0.1}),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in [
        ("gpt2", TOKENS, {"context": "left", "dense": False, "bias": True}),
        ("gpt", SEQUENCE, {"context": "left", "dense": False, "bias": True, "end_of_text": True}),
        ("electra_discriminator", SEQUENCE, {"context": "both", "activation": "gelu", "input_dropout": 0.1}),
        ("albert", "regression", {"context": "both", "activation": "tanh", "input_dropout": 0.0}),
        ("bert", SPANS, {"context": "both"})])])
def test_head_of_a_task_suits_the_network_that_it_starts_from(tmp_path, directory, task, fields):
    """Of a published directory, and of the workdir that it is converted to."""
    conversion.to_workdir(GOLDEN / directory, tmp_path / "run")
    for source in (GOLDEN / directory, tmp_path / "run"):
        config = default_config("bert_tiny", task, "examples")
        config = started.from_checkpoint(config, source)
        assert {name: config.objective[name] for name in fields} == fields
    shutil.rmtree(tmp_path / "run/interop")  # as of a run that was trained here
    found = checkpoint_config.head_fields(tmp_path / "run", task, 1 if directory == "roberta" else 0)
    assert found["context"] == fields["context"] and found.items() >= {
        name: value for name, value in fields.items() if name in found}.items()


def test_run_that_averages_over_windows_is_not_written(home, tmp_path):
    shutil.copytree(home / "converted", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/interop")
    file = tmp_path / "run/config.json"
    record = json.loads(file.read_text())
    record["config"]["format"]["long"] = "windows"
    file.write_text(json.dumps(record))
    with pytest.raises(UserError, match="averages over windows of long texts"):
        conversion.to_published(tmp_path / "run", tmp_path / "out")


@pytest.mark.slow
def test_converted_tagger_is_evaluated_by_entities(tmp_path, monkeypatch):
    """Its labels say that the scheme is BIO."""
    monkeypatch.setattr("tests.interop.test_tasks.LABELS", ("O", "B-x", "I-x"))
    publish(tmp_path / "x", BERT, TOKENS, BY_TOKEN)
    conversion.to_workdir(tmp_path / "x", tmp_path / "run")
    tiny.write(tmp_path / "test.jsonl", [{"words": ["cat", "dog", "good"], "tags": ["B-x", "I-x", "O"]}])
    metrics = lmrep.evaluate(tmp_path / "run", files=str(tmp_path / "test.jsonl"))
    assert {"entity_f1", "token_accuracy"} <= metrics.keys()
    (found,) = lmrep.load(tmp_path / "run").predict(["cat dog"])
    assert len(found["tags"]) == 2 and set(found["tags"]) <= {"O", "B-x", "I-x"}


@pytest.mark.slow
def test_network_without_some_heads_belongs_to_its_family(tmp_path):
    """Its heads of tasks are those of the family, although it cannot be written."""
    conversion.to_workdir(GOLDEN / "roberta", tmp_path / "run")
    run = lmrep.load(tmp_path / "run")
    pruning.prune(run, tmp_path / "pruned", {0: [1]})
    assert checkpoint_config.head_fields(tmp_path / "pruned", SEQUENCE, 1)["input_dropout"] == 0.1
    with pytest.raises(UserError, match="published layouts have the same heads in every layer"):
        conversion.to_published(tmp_path / "pruned", tmp_path / "out")


def test_distilbert_reads_one_separator_between_two_texts(tmp_path):
    """Although it has no token types."""
    publish(tmp_path / "x", DISTILBERT, SEQUENCE, RELU)
    conversion.to_workdir(tmp_path / "x", tmp_path / "run")
    run = lmrep.load(tmp_path / "run")
    record = Record({"text": "cat", "text2": "dog"}, "0", "example 0")
    examples = tokenize_records(run.experiment, run.model, run.tokenizer, [record], "x")
    assert run.tokenizer.decode(examples.gather(np.arange(1), 5)["tokens"][0]) == "[CLS] cat [SEP] dog [SEP]"


@pytest.mark.slow
def test_converted_question_answerer_reads_long_contexts_in_windows(tmp_path):
    publish(tmp_path / "x", BERT, SPANS, BY_TOKEN)
    conversion.to_workdir(tmp_path / "x", tmp_path / "run")
    (found,) = lmrep.load(tmp_path / "run").predict([("cat dog", "bird fish tree " * 40)])
    assert found
