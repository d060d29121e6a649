"""Checkpoints of tasks in both directions against the reference implementation, where that is installed."""

import json
import shutil

import jax
import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.data import tokenizers
from lmrep.data.records import Record
from lmrep.experiment.task_data import tokenize_records
from lmrep.interop import checkpoint_config, conversion, heads, init_from
from lmrep.interop.huggingface import FAMILIES
from lmrep.interop.huggingface.read import assign, read
from lmrep.objectives.base import Carry, Keys
from lmrep.tasks import TASKS
from tests.data import test_sentencepiece
from tests.interop import test_live, test_live_t5
from tests.interop.test_published import GOLDEN, files, same

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

CASES = test_live.CASES | {"T5Model": test_live_t5.SIZES | {"decoder_start_token_id": 0}}
BASES = {"bert": "BertModel", "roberta": "RobertaForMaskedLM", "electra": "ElectraForMaskedLM",
         "albert": "AlbertForMaskedLM", "distilbert": "DistilBertForMaskedLM",
         "modernbert": "ModernBertForMaskedLM", "modernbert-decoder": "ModernBertDecoderForCausalLM",
         "openai-gpt": "OpenAIGPTModel", "gpt2": "GPT2Model", "deberta-v2": "DebertaV2ForMaskedLM",
         "xlnet": "XLNetLMHeadModel", "t5": "T5Model"}
# Golden directories, where the names differ.
TOKENIZERS = {"electra": "electra_generator", "distilbert": "bert", "modernbert": "bert", "modernbert-decoder": "bert",
              "openai-gpt": "gpt"}
MODELS = {"t5": ("spiece.model", test_sentencepiece.T5 | {"vocab_size": 100}),  # of SentencePiece
          "deberta-v2": ("spm.model", test_sentencepiece.DEBERTA | {"vocab_size": 66})}
PAD = {"openai-gpt": 52, "gpt2": 52}  # ends of text
NAMES = {"classification": ("b", "no", "a"), "regression": ("LABEL_0",),
         "multilabel": ("b", "no", "a"), "tagging": ("O", "B-x", "I-x", "B-y")}
# Regression and several labels have the class of classification, in every family.
HEADS = [(family, task) for family in BASES for task in FAMILIES[family].tasks
         if family == "bert" or task not in ("regression", "multilabel")]
# All heads of one family, and one head of all families.
some = pytest.mark.parametrize("converted", [
    (family, task) for family, task in HEADS if family == "bert" or task in ("classification", "conditioned_ends")],
    indirect=True, ids="-".join)
TEXTS = ["the cat", "a dog and the", "the"]


def make(family, task):
    """A random model of the reference."""
    labels = NAMES.get(task)
    names = labels and {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    if task == "multilabel":
        names["problem_type"] = heads.HEADS[task].problem_type
    cls = getattr(transformers, FAMILIES[family].tasks[task].name)
    pad = {"pad_token_id": PAD[family]} if family in PAD else {}
    config = cls.config_class(**CASES[BASES[family]], **pad, **(names or {}))
    model, generator = cls(config), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + (0.7 if parameter.ndim == 1 else 0))
    return model.eval()


@pytest.fixture(scope="module", params=HEADS, ids="-".join)
def converted(request, tmp_path_factory):
    """(family, task, model of the reference, its directory, the workdir that it was converted to, the conversion)."""
    family, task = request.param
    model, home = make(family, task), tmp_path_factory.mktemp("x")
    model.save_pretrained(home / "published", max_shard_size="50KB")
    if family in MODELS:
        file, options = MODELS[family]
        (home / "published" / file).write_bytes(test_sentencepiece.model(**options))
    for path in (GOLDEN / TOKENIZERS.get(family, family)).iterdir() if family not in MODELS else ():
        if path.name.startswith(("vocab", "merges", "tokenizer", "spiece")):
            shutil.copy(path, home / "published")
    if family.startswith("modernbert"):  # of which the library reads tokenizer.json alone
        tokenizers.load(GOLDEN / "bert").save(home / "published")
    return family, task, model, home / "published", home / "run", conversion.to_workdir(
        home / "published", home / "run")


def exact(converted, task):
    """Whether hidden states and logits were those of the reference."""
    proof = converted.certificate
    assert proof.against == f"transformers {transformers.__version__}"
    return proof.differences.keys() == {"hidden", task} and max(proof.differences.values()) <= 1e-5


@some
def test_round_trip_gives_the_same_logits_in_the_reference(converted, tmp_path):
    _, task, _, directory, workdir, done = converted
    back = conversion.to_published(workdir, tmp_path / "back")
    assert exact(back, task)
    assert done.checkpoint.heads == (task,) and not done.checkpoint.extra_tensors
    assert same(files(tmp_path / "back"), files(directory))
    assert json.loads((tmp_path / "back/config.json").read_text()) == json.loads(
        (directory / "config.json").read_text())


def test_run_is_exported_to_the_class_of_the_task(converted, tmp_path):
    """Without the record of the files that it was read from, as a run that was trained here."""
    _, task, model, _, workdir, read_from = converted
    shutil.copytree(workdir, tmp_path / "run", ignore=shutil.ignore_patterns("interop"))
    done = conversion.to_published(tmp_path / "run", tmp_path / "out")
    assert exact(read_from, task) and exact(done, task)
    assert done.checkpoint.class_name == type(model).__name__ and not done.remarks
    again, loading_info = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(loading_info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    theirs, ours = model.config, again.config
    assert (ours.id2label, ours.label2id, ours.pad_token_id) == (theirs.id2label, theirs.label2id, theirs.pad_token_id)
    assert ours.problem_type == (heads.HEADS[task].problem_type or None)


@pytest.mark.parametrize("task", ["classification", "tagging", "span_extraction", "multiple_choice"])
def test_a_modernbert_head_starts_where_the_library_starts_it(task, tmp_path):
    """From the masked-LM head, which has the same names in the library's classes for tasks."""
    masked = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**CASES["ModernBertForMaskedLM"]))
    with torch.no_grad():
        masked.head.norm.weight.mul_(torch.arange(1.0, 1 + len(masked.head.norm.weight)))
    masked.save_pretrained(tmp_path)
    tokenizers.load(GOLDEN / "bert").save(tmp_path)
    theirs = getattr(transformers, FAMILIES["modernbert"].tasks[task].name).from_pretrained(tmp_path)
    fields = checkpoint_config.facts(tmp_path, task).head
    ours = init_from.for_task(init_from.load(tmp_path), TASKS[task].initial, {"name": task, **fields}, False).params
    np.testing.assert_array_equal(ours[f"objective/{task}/dense/kernel"].T, theirs.head.dense.weight.detach())
    np.testing.assert_array_equal(ours[f"objective/{task}/norm/scale"], theirs.head.norm.weight.detach())
    assert f"objective/{task}/out/kernel" not in ours


def reference_logits(model, directory, texts, seconds=None):
    """Of the reference, with its own tokenizer, one text at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    pairs = zip(texts, seconds or [None] * len(texts), strict=True)
    types = {"return_token_type_ids": model.config.model_type == "xlnet" or
             getattr(model.config, "type_vocab_size", 0) > 1}
    with torch.no_grad():
        return [model(**tokenizer(*pair, return_tensors="pt", **types)).logits[0].numpy() for pair in pairs]


@pytest.mark.parametrize("converted", [head for head in HEADS if head[1] == "classification"], indirect=True,
                         ids="-".join)
def test_predictions_equal_the_reference(converted):
    """With the tokens, special tokens and token types that the reference's tokenizer gives. (It puts nothing between
    two texts for GPT-2.)"""
    family, _, model, directory, workdir, _ = converted
    run = lmrep.load(workdir)
    cases = [(TEXTS, None)] if "gpt" in family else [(TEXTS, None), (TEXTS, TEXTS[::-1])]
    for texts, seconds in cases:
        logits = reference_logits(model, directory, texts, seconds)
        found = run.predict(texts if seconds is None else list(zip(texts, seconds, strict=True)))
        for prediction, expected in zip(found, logits, strict=True):
            expected = np.exp(expected - np.logaddexp.reduce(expected))
            assert list(prediction["probabilities"]) == list(NAMES["classification"])
            np.testing.assert_allclose(list(prediction["probabilities"].values()), expected, rtol=0, atol=1e-5)
            assert prediction["label"] == NAMES["classification"][expected.argmax()]


@pytest.mark.parametrize("name", ["Camembert", "XLMRoberta", "MT5"])
def test_variants_with_their_tokenizers_predict_as_the_reference(name, tmp_path):
    """XLM-RoBERTa's, of which files hold more forms: tokenizer.json is the one with the model's ids."""
    cls = getattr(transformers, f"{name}ForSequenceClassification")
    sizes = test_live_t5.SIZES if name == "MT5" else test_live.SIZES | {"type_vocab_size": 1}
    (home := tmp_path / "x").mkdir()
    (home / ("spiece.model" if name == "MT5" else "sentencepiece.bpe.model")).write_bytes(
        test_sentencepiece.model(**(test_sentencepiece.T5 if name == "MT5" else {})))
    made = getattr(transformers, f"{name.replace('MT5', 'T5')}Tokenizer").from_pretrained(home)
    if name != "Camembert":
        made.save_pretrained(home)
    model = cls(cls.config_class(**sizes | {"vocab_size": len(made), "num_labels": 3})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(home)
    if name == "Camembert":
        with pytest.raises(UserError, match="the ids of CamembertTokenizer are not those of this model"):
            conversion.to_workdir(home, tmp_path / "run")
        made.save_pretrained(home)
    done = conversion.to_workdir(home, tmp_path / "run")
    assert done.certificate.against.startswith("transformers") and max(done.certificate.differences.values()) <= 1e-5
    run, pairs = lmrep.load(tmp_path / "run"), list(zip(TEXTS, TEXTS[::-1], strict=True))
    for prediction, logits in zip([*run.predict(TEXTS), *run.predict(pairs)], [
            *reference_logits(model, home, TEXTS), *reference_logits(model, home, TEXTS, TEXTS[::-1])], strict=True):
        expected = np.exp(logits - np.logaddexp.reduce(logits))
        np.testing.assert_allclose([prediction["probabilities"][f"LABEL_{i}"] for i in range(3)], expected, atol=1e-5)


def test_the_names_of_classes_are_those_of_the_reference():
    """But for NeoBERT's, whose code comes with its checkpoints."""
    missing = {family.name for family in FAMILIES.values() for each in family.heads
               if not hasattr(transformers, each.name)}
    assert missing == {"neobert"}


# --- a training step ---


def examples_of(run, records, pads_left):
    """(a batch of the records, the inputs of the reference without padding that all have)."""
    examples = tokenize_records(run.experiment, run.model, run.tokenizer, records, "x")
    batch = examples.gather(np.arange(examples.examples), int(examples.lengths.max()))
    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["segment_ids"] > 0}
    if "token_type_ids" in run.model.inputs:
        inputs["token_type_ids"] = batch["token_type_ids"]
    if pads_left:
        padding = (~inputs["attention_mask"]).sum(-1, keepdims=True)
        order = (np.arange(batch["tokens"].shape[-1]) - padding) % batch["tokens"].shape[-1]
        inputs = {name: np.take_along_axis(value, order, -1) for name, value in inputs.items()}
    return batch, {name: torch.tensor(value).long() for name, value in inputs.items()}


RECORDS = {
    "classification": [{"text": "the cat", "label": "a"}, {"text": "a dog the", "text2": "and", "label": "b"},
                       {"text": "the", "label": "no"}],
    "regression": [{"text": "the cat", "label": "0.5"}, {"text": "a dog the", "text2": "and", "label": "-1"}],
    "multilabel": [{"text": "the cat", "labels": ("a", "b")}, {"text": "a dog the", "text2": "and", "labels": ()}],
    "tagging": [{"words": ["the", "cat"], "tags": ["O", "B-x"]}, {"words": ["dogs", "the", "a"],
                                                                  "tags": ["B-x", "I-x", "B-y"]}],
    # The reference takes the softmax over padding, too, so that all have one length.
    "span_extraction": [{"question": "the", "context": "a cat the dog", "answers": [("cat", 2)]},
                        {"question": "the", "context": "a cat the dog", "answers": [("the dog", 6)]}],
    "conditioned_ends": [{"question": "the", "context": "a cat the dog", "answers": [("cat", 2)]},
                         {"question": "the", "context": "a cat the dog", "answers": [("the dog", 6)]}],
    "multiple_choice": [{"text": "the cat", "choices": ["a dog", "the"], "label": 1},
                        {"text": "a", "choices": ["the dog and", "a the"], "label": 0}],
}
def no_answers(batch):
    """float32 [b, t], 1 where no answer may begin or end."""
    at = np.arange(batch["tokens"].shape[1])
    inside = (at >= batch["context_first"]) & (at < batch["context_end"])
    return (~(inside | (at == batch["null"]))).astype(np.float32)


TARGETS = {  # batch -> keyword arguments of the reference
    "classification": lambda batch: {"labels": torch.tensor(batch["label"][:, 0]).long()},
    "regression": lambda batch: {"labels": torch.tensor(batch["label"][:, 0])},
    "multilabel": lambda batch: {"labels": torch.tensor(batch["labels"][:, 0]).float()},
    "tagging": lambda batch: {"labels": torch.tensor(np.where(batch["tag"] < 0, -100, batch["tag"])).long()},
    "span_extraction": lambda batch: {f"{name}_positions": torch.tensor(batch[name][:, 0]).long()
                                      for name in ("start", "end")},
    "conditioned_ends": lambda batch: {f"{name}_positions": torch.tensor(batch[name][:, 0]).long()
                                       for name in ("start", "end")} | {"p_mask": torch.tensor(no_answers(batch))},
    "multiple_choice": lambda batch: {"labels": torch.tensor(batch["label"][:, 0]).long()},
}
LOGITS = {  # outputs of the reference -> what `predict` returns
    "classification": lambda outputs: {"log_probabilities": outputs.logits.log_softmax(-1)[:, None]},
    "regression": lambda outputs: {"value": outputs.logits},
    "multilabel": lambda outputs: {"logits": outputs.logits[:, None]},
    "tagging": lambda outputs: {"log_probabilities": outputs.logits.log_softmax(-1)},
    "span_extraction": lambda outputs: {"start": outputs.start_logits, "end": outputs.end_logits},
    "conditioned_ends": lambda outputs: {},  # those of beams have a test
    "multiple_choice": lambda outputs: {"log_probability": outputs.logits.log_softmax(-1)},
}


@some
def test_outputs_and_gradients_equal_the_reference(converted):
    """Without dropout."""
    _, task, model, directory, workdir, _ = converted
    run, checkpoint = lmrep.load(workdir), read(directory)
    records = [Record(dict(fields), str(i), f"example {i}") for i, fields in enumerate(RECORDS[task])]
    if (checkpoint.family.name, task) == ("t5", "classification"):  # the reference takes one </s> in every text, or two
        records = [Record({**record.fields, "text2": "dog"}, record.id, record.where) for record in records]
    batch, inputs = examples_of(run, records, checkpoint.family.specials.pads_left and heads.HEADS[task].pooled)
    key = jax.random.key(0)
    prepared = run.objective.prepare(Keys(jax.random.split(key, len(batch["tokens"])), key), batch)

    @jax.jit
    def run_ours(params):
        with jax.default_matmul_precision("highest"):
            found = jax.value_and_grad(lambda p: run.objective.loss(p, prepared, None, Carry())[0])(params)
            return *found, run.objective.predict(params, batch)

    model.zero_grad()
    outputs = model(**inputs, **TARGETS[task](batch))
    outputs.loss.backward()
    loss, gradient, predicted = jax.device_get(run_ours(run.params))
    assert loss == pytest.approx(outputs.loss.item(), rel=1e-5)
    real = batch["segment_ids"] > 0
    predicted = predicted.get("units", {}) | predicted.get("tokens", {})
    for name, expected in LOGITS[task](outputs).items():
        at = real if expected.shape[:2] == real.shape and task in ("tagging", "span_extraction") else slice(None)
        np.testing.assert_allclose(predicted[name][at], expected.detach().numpy()[at], rtol=0, atol=1e-4)
    tensors = {name: (0 * value if value.grad is None else value.grad).detach().numpy()
               for name, value in model.named_parameters()}
    theirs, _ = assign(tensors, checkpoint.family, checkpoint.config, directory, checkpoint.task)
    ours = flatten(gradient)
    assert ours.keys() == theirs.keys()
    scale = max(np.linalg.norm(value) for value in theirs.values())
    for path, value in theirs.items():  # some biases change no loss, so that their gradients are 0 but for rounding
        assert np.linalg.norm(ours[path] - value) <= 1e-4 * max(np.linalg.norm(value), 0.1 * scale), path


@pytest.mark.parametrize("converted", [("xlnet", "conditioned_ends")], indirect=True, ids="-".join)
def test_beams_equal_the_reference(converted):
    """The scores of its best starts and of their ends, and the logit of no answer."""
    _, _, model, _, workdir, _ = converted
    run = lmrep.load(workdir)
    records = [Record(dict(fields), str(i), f"example {i}") for i, fields in enumerate(RECORDS["conditioned_ends"])]
    batch, inputs = examples_of(run, records, False)
    with torch.no_grad():
        outputs = model(**inputs, p_mask=torch.tensor(no_answers(batch)),
                        cls_index=torch.tensor(batch["null"][:, 0]).long())
    ours = jax.device_get(run.objective.predict(run.params, batch))["units"]
    np.testing.assert_allclose(ours["no_answer"][:, 0], outputs.cls_logits, rtol=0, atol=1e-4)
    compared = 0
    for i in range(len(records)):
        beams = outputs.end_top_log_probs[i].reshape(model.end_n_top, model.start_n_top).T  # probabilities
        positions = outputs.end_top_index[i].reshape(model.end_n_top, model.start_n_top).T
        for start, p, ends, at in zip(outputs.start_top_index[i].tolist(), outputs.start_top_log_probs[i], beams,
                                      positions.tolist(), strict=True):
            if start == batch["null"][i, 0]:
                continue
            j = ours["start"][i, 0].tolist().index(start)
            assert ours["start_score"][i, 0, j] == pytest.approx(float(p.log()), abs=1e-4)
            for end, probability in zip(at, ends, strict=True):
                if start <= end != batch["null"][i, 0]:
                    compared += 1
                    assert ours["end_score"][i, 0, j, end - start] == pytest.approx(float(probability.log()), abs=1e-4)
    assert compared > 10
    found = run.predict([("the", "a cat the dog")])[0]
    assert found["answer"] and found["answer"] in "a cat the dog" and 0 < found["probability"] <= 1
