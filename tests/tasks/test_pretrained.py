"""Tasks that start from pretrained runs of XLNet and of T5."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

import lmrep
from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.experiment.fine_tuning import compose_task
from lmrep.interop import conversion
from tests import started
from tests.tasks import tiny

pytestmark = pytest.mark.slow

FIELDS = {  # of examples of each task
    "classification": lambda r: r, "text_to_text": lambda r: r,
    "span_extraction": lambda r: {"question": "which", "context": r["text"], "answers": [[r["text"].split()[0], 0]]},
}
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A corpus, and labelled texts."""
    home, draw = tmp_path_factory.mktemp("pretrained"), random.Random(0)
    (home / "texts").mkdir()
    for number in range(40):
        words = ["".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(draw.randint(1, 4)))
                 for _ in range(60)]
        (home / f"texts/{number}.txt").write_text(". ".join(map(" ".join, zip(*[iter(words)] * 6, strict=True))) + ".")
    records = [{"text": tiny.sentence(draw, 3), "text2": "the cat", "label": str(i % 2), "target": "a dog"}
               for i in range(32)]
    for task, fields in FIELDS.items():
        tiny.write(home / f"{task}.jsonl", [fields(record) for record in records])
    return home


def pretrain(home, page, **fields):
    """Two steps of a page with a small network."""
    config = loading.load(EXPERIMENTS / page, "size=tiny,data=files,mesh=1x1x1")
    config.model.update({"width": 16, "heads": 2, "mlp": 32, "layers": 2})
    config.data.update({"files": f"{home}/texts/*.txt", "validation": 0.1, "test": 0.1})
    config.update({"steps": 2, "batch_size": 4, "length": 32, "stages": ()})
    config.tokenizer.vocab_size = 128
    config.log.update({"tensorboard": False, "report": False})
    config.update_from_flattened_dict(fields)
    lmrep.train(config, home / page)
    return home / page


def fine_tune(home, task, init, name="", **fields):
    data, workdir = home / f"{task}.jsonl", home / (name or f"{task}-{Path(init).name}")
    config = tiny.config(task, data, None, f"mesh=1x1x1,init={init}", steps=2, checkpoint__best="", **fields)
    lmrep.train(config, workdir)
    return lmrep.load(workdir)


def test_a_classifier_on_xlnet_reads_cls_last(home):
    init = pretrain(home, "xlnet.py", **{"model.memory": 16})
    run = fine_tune(home, "classification", init, optimizer__layer_decay=0.75, optimizer__layer_decay_of="gradient")
    special = run.tokenizer.vocabulary.specials
    assert run.objective.uses.conditions_on == "both" and run.special_tokens == ([], [special["sep"], special["cls"]])
    inputs = run.inputs([("the cat", "a dog")])
    length = int((np.asarray(inputs.attention_mask.segment_ids) > 0).sum())
    ids, types = inputs.tokens[0, :length].tolist(), inputs.token_type_ids[0, :length].tolist()
    assert ids[-2:] == [special["sep"], special["cls"]] and ids.count(special["sep"]) == 2
    assert types == sorted(types) and types[-1] == 2 and set(types) == {0, 1, 2}
    assert {prediction["label"] for prediction in run.predict([("the cat", "a dog")])} <= {"0", "1"}


@pytest.fixture(scope="module")
def t5(home):
    return pretrain(home, "t5.py")


@pytest.fixture(scope="module")
def classifier(home, t5):
    return fine_tune(home, "classification", t5)


@pytest.mark.parametrize("task", ["classification", "span_extraction"])
def test_tasks_read_texts_with_the_encoder_of_t5_alone(home, t5, classifier, task):
    """The decoder is no part of their runs: it has no gradient, no optimizer state, and is not saved."""
    run = classifier if task == "classification" else fine_tune(home, task, t5)
    pretrained, end = lmrep.load(t5), run.tokenizer.vocabulary.specials["eos"]
    assert run.params["encoder"].keys() == {"embedding", "encoder"} == pretrained.params["encoder"].keys() - {"decoder"}
    assert run.objective.uses.conditions_on == "both" and run.special_tokens == ([], [end])
    if hasattr(run.experiment, "objective") and "pooling" in run.experiment.objective:
        assert run.experiment.objective["pooling"] == "mean"
    record = json.loads((home / f"{task}.jsonl").read_text().splitlines()[0])
    assert run.predict([record]) == run.predict([record])
    if task == "classification":
        again = fine_tune(home, task, run.directory)  # which keeps head and encoder
        assert again.params["encoder"].keys() == run.params["encoder"].keys()


def test_pairs_have_one_end_between_them_as_in_t5(classifier):
    run, end = classifier, classifier.tokenizer.vocabulary.specials["eos"]
    inputs = run.inputs([("the cat", "a dog")])
    ids = inputs.tokens[0, np.asarray(inputs.attention_mask.segment_ids[0]) > 0].tolist()
    assert ids == [*run.tokenizer.encode("the cat").ids, end, *run.tokenizer.encode("a dog").ids, end]


def test_texts_from_texts_by_the_encoder_alone_need_a_decoder(home, classifier):
    """Which starts anew."""
    with pytest.raises(UserError, match=r"'text_to_text' generates texts with a decoder, and the network of "
                       "init=.*/classification-t5.py is an encoder alone; set --config.model.stacks=both for a decoder "
                       "that starts with random parameters, or start from a checkpoint that has one$"):
        fine_tune(home, "text_to_text", classifier.directory, objective__max_target=8)
    both = fine_tune(home, "text_to_text", classifier.directory, "both", objective__max_target=8, model__stacks="both")
    assert both.params["encoder"].keys() == {"embedding", "encoder", "decoder"}
    assert both.predict(["the cat"])[0].keys() == {"text", "score"}


@pytest.mark.slow
def test_a_head_on_the_decoder_of_t5_that_reads_the_same_text_is_written_as_the_published_class(home, t5, tmp_path):
    """And is a network and a head to start from."""
    run = fine_tune(home, "classification", t5, "same", model__stacks="same_text", objective__pooling="position")
    assert run.params["encoder"].keys() == {"embedding", "encoder", "decoder"}
    written = conversion.to_published(run.directory, tmp_path / "written")
    assert written.checkpoint.class_name == "T5ForSequenceClassification" and "classification" in (
        written.certificate.differences)
    again = compose_task("mesh=1x1x1", "classification")
    again = started.from_checkpoint(again, tmp_path / "written")
    assert (again.model.stacks, again.objective.pooling) == ("same_text", "position")
    with pytest.raises(UserError, match=r"same text in both stacks; set --config.model.stacks=both$"):
        fine_tune(home, "text_to_text", run.directory, "generator", objective__max_target=8)


def test_frozen_vectors_of_t5_are_those_of_its_encoder(home, t5):
    config = compose_task(f"mesh=1x1x1,features={t5}", "classification", data=dict.fromkeys(
        ("train", "validation"), str(home / "classification.jsonl")))
    config = started.from_features(config, t5)
    assert config.objective.pooling == "mean" and config.objective.context == "both"
    bcn = compose_task(f"mesh=1x1x1,network=bcn,features={t5}", "classification")
    bcn = started.from_features(bcn, t5)
    assert bcn.objective.pooling == "position"  # it pools in its own way
    config.update({"steps": 2, "batch_size": 16, "length": 32})
    config.log.update({"tensorboard": False, "report": False})
    lmrep.train(config, home / "frozen")
    run = lmrep.load(home / "frozen")
    assert run.params["frozen"]["features"].keys() == {"encoder"}
    assert run.params["frozen"]["features"]["encoder"].keys() == {"embedding", "encoder"}
    assert {prediction["label"] for prediction in run.predict(["the cat"])} <= {"0", "1"}


def test_texts_from_texts_by_t5(home, t5):
    run = fine_tune(home, "text_to_text", t5, objective__max_target=8)
    assert run.objective.uses.conditions_on == "source"
    pretrained = lmrep.load(t5).params["encoder"]
    assert run.params["encoder"]["embedding"]["token"].shape == pretrained["embedding"]["token"].shape
    assert set(run.predict(["the cat"])[0]) == {"text", "score"}
