"""Tasks that start from pretrained runs of XLNet and of T5."""

import random
from pathlib import Path

import numpy as np
import pytest

import lmrep
from lmrep.config import loading
from tests.tasks import tiny

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
    tiny.write(home / "train.jsonl", [{"text": tiny.sentence(draw, 2), "text2": "the cat", "label": str(i % 2),
                                       "target": "a dog"} for i in range(32)])
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


def fine_tune(home, task, init, **fields):
    config = tiny.config(task, home / "train.jsonl", home / "train.jsonl", f"mesh=1x1x1,init={init}", steps=2, **fields)
    lmrep.train(config, home / task)
    return lmrep.load(home / task)


def test_a_classifier_on_xlnet_reads_cls_last(home):
    init = pretrain(home, "xlnet.py", **{"model.memory": 16})
    run = fine_tune(home, "classification", init, optimizer__layer_decay=0.75, optimizer__layer_decay_of="gradient")
    special = run.tokenizer.vocabulary.specials
    assert run.objective.context == "both" and run.special_tokens == ([], [special["sep"], special["cls"]])
    inputs = run.inputs([("the cat", "a dog")])
    length = int((np.asarray(inputs.attention_mask.segment_ids) > 0).sum())
    ids, types = inputs.tokens[0, :length].tolist(), inputs.token_type_ids[0, :length].tolist()
    assert ids[-2:] == [special["sep"], special["cls"]] and ids.count(special["sep"]) == 2
    assert types == sorted(types) and types[-1] == 2 and set(types) == {0, 1, 2}
    assert {prediction["label"] for prediction in run.predict([("the cat", "a dog")])} <= {"0", "1"}


def test_texts_from_texts_by_t5(home):
    init = pretrain(home, "t5.py")
    run = fine_tune(home, "text_to_text", init, objective__max_target=8)
    assert run.objective.context == "source"
    pretrained = lmrep.load(init).params["encoder"]
    assert run.params["encoder"]["embedding"]["token"].shape == pretrained["embedding"]["token"].shape
    assert set(run.predict(["the cat"])[0]) == {"text", "score"}
