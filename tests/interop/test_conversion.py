"""`lmrep convert` where the reference implementation is not installed."""

import json
import shutil

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer as Library

import lmrep
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import temporary_name
from lmrep.core.params import flatten
from lmrep.data import formats
from lmrep.inference import pairs
from lmrep.interop import certificate, conversion, init_from, tensor_files
from lmrep.interop.huggingface.read import read
from lmrep.interop.huggingface.write import tensors as tensors_of
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs
from lmrep.objectives import OBJECTIVES, replaced_token
from tests import given, small
from tests.interop.test_published import GOLDEN, LEFT, NAMES, copy, files, rewrite, same

slow = pytest.mark.slow


QUICK = ("bert_tanh", "roberta", "electra_discriminator", "gpt", "gpt2")


def some(names, *quick):
    """Golden directories as parameters, of which all but `quick` are slow."""
    return [pytest.param(name, marks=() if name in quick else slow) for name in names]


@pytest.fixture(scope="module", params=some(NAMES, *QUICK))
def converted(request, tmp_path_factory):
    """(published directory, converted workdir, output of the command)."""
    home = tmp_path_factory.mktemp(request.param)
    directory, workdir = GOLDEN / request.param, home / "deep" / "run"
    return directory, workdir, small.command("convert", directory, workdir)


def test_published_directory_becomes_a_workdir(converted):
    directory, workdir, result = converted
    assert result.code == 0 and not result.err
    run, expected = lmrep.load(workdir), read(directory)
    assert run.step == 0 and lmrep.experiment.config.model_config(run.experiment.model) == expected.config
    assert same(conversion.read_arrays(workdir)[0], expected.params | expected.extra_tensors)
    proof = json.loads((workdir / "certificate.json").read_text())
    assert proof["against"].startswith("itself written and read again") and set(proof["differences"].values()) == {0}
    assert "largest difference from itself written and read again (transformers is not installed)" in result.out
    assert [path.name for path in workdir.parent.iterdir()] == ["run"]  # no temporary directory is left


def test_unmatched_and_missing_tensors_are_reported(converted):
    directory, _, result = converted
    kept = {"bert_tanh": "bert.embeddings.position_ids I64[1, 23]", "gpt2": "h.0.attn.bias F32[1, 1, 23, 23]",
               "electra_generator": "electra.embeddings.position_ids I64[1, 23]"}.get(directory.name)
    assert ("kept beside the parameters, since our network has no such tensor: " in result.out) == (kept is not None)
    assert (kept or "") in result.out
    assert ("no masked-LM head" in result.out) == (directory.name == "bert_half")
    assert ("a discriminator without its generator" in result.out) == (directory.name == "electra_discriminator")


@pytest.mark.parametrize("converted", some(["roberta", "electra_generator"], "roberta"), indirect=True)
def test_converted_run_fills_masks_like_the_checkpoint(converted):
    directory, workdir, _ = converted
    checkpoint, run = read(directory), lmrep.load(workdir)
    special, mask = run.tokenizer.vocabulary.specials, run.tokenizer.mask_token
    text = f"the {mask}"
    ids = np.array([[special["cls"], *run.tokenizer.encode(text, specials=True).ids, special["sep"]]])
    batch = certificate.RandomBatch(ids, np.zeros_like(ids), np.ones_like(ids))
    logits = certificate.our_outputs(checkpoint, batch)["masked"][0, -2, : run.tokenizer.size]
    words = [word for word, _ in run.fill_masks([text], 3)[0][0]]
    assert words == [run.tokenizer.id_to_token(int(i)) for i in np.argsort(-logits)[:3]]


@pytest.mark.parametrize("converted", some(
    ["bert", "bert_half", "electra_discriminator", "gpt2"], "electra_discriminator"), indirect=True)
def test_converted_run_is_evaluated_if_it_has_the_heads(converted, tmp_path):
    """A spare pooler does not matter; a missing head, or the missing corpus, is an error message."""
    directory, workdir, _ = converted
    (tmp_path / "a.txt").write_text("the cat sees the dog. " * 200)
    base = ["evaluate", f"--workdir={workdir}", f"--data_dir={tmp_path}/data"]
    result = small.command(*base, f"--files={tmp_path}/a.txt")
    metric = {"masked": "mlm_loss", "causal": "lm_loss"}.get("".join(read(directory).heads[:1]))
    assert result.code == (0 if metric else 2), result
    assert metric in result.out if metric else "lacks parameters of its objective" in result.err
    result = small.command(*base)
    assert result.code == 2 and "was converted, not trained, and has no corpus of its own" in result.err
    result = small.command("inspect", f"--workdir={workdir}")
    assert result.code == 2 and "was converted, not trained" in result.err


@pytest.mark.parametrize("converted", some(["albert", "gpt2"], "gpt2"), indirect=True)
def test_converted_run_has_the_vectors_of_the_checkpoint(converted):
    """Vectors of a causal network depend on the preceding tokens only."""
    directory, workdir, _ = converted
    text, *_ = lmrep.load(workdir).encode(["the cat a the"])
    batch = certificate.RandomBatch(text.ids[None], np.zeros_like(text.ids)[None], np.ones_like(text.ids)[None])
    expected = certificate.our_outputs(read(directory), batch)["hidden"]
    np.testing.assert_allclose(text.hidden, expected, rtol=0, atol=1e-5)


def test_leftovers_of_a_killed_conversion_are_removed(tmp_path):
    name = temporary_name("run").rpartition(".")[0]
    (tmp_path / f"{name}.999999999").mkdir()
    (tmp_path / f"{name}.1").mkdir()  # process 1 lives
    assert small.command("convert", GOLDEN / "bert", tmp_path / "run").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.1", "run"]


@pytest.mark.parametrize("converted", some(NAMES[1:], "bert_tanh", "gpt2"), indirect=True)
def test_round_trip_changes_nothing(converted, tmp_path):
    directory, workdir, _ = converted
    target = tmp_path / "back"
    result = small.command("convert", workdir, target, "--to=huggingface")
    assert result.code == 0 and not result.err
    assert same(files(target), files(directory))
    assert json.loads((target / "config.json").read_text()) == json.loads((directory / "config.json").read_text())
    assert lmrep.data.tokenizers.load(target).fingerprint == lmrep.load(workdir).tokenizer.fingerprint
    for pair in ((directory, target), (target, workdir)):
        assert small.command("diff", *pair).out.splitlines()[-1].startswith("equal: all ")


@pytest.mark.slow
@pytest.mark.parametrize("converted", ["bert_half", "albert", "xlnet", "gpt2"], indirect=True)
def test_run_is_exported_with_the_reference_names(converted, tmp_path):
    directory, workdir, _ = converted
    own = tmp_path / "own"
    shutil.copytree(workdir, own)
    shutil.rmtree(own / "interop")
    written = conversion.to_published(own, tmp_path / "out").checkpoint
    again, before = read(tmp_path / "out"), read(directory)
    assert same(again.params, before.params) and again.config == before.config
    assert written.class_name == before.class_name
    assert not again.extra_tensors


@pytest.mark.parametrize("converted", ["bert_tanh"], indirect=True)
def test_tokenizer_without_a_published_form_is_refused(converted, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(converted[1], run)
    for path in (run / "tokenizer").iterdir():
        path.unlink()
    definition = lmrep.data.tokenizers.TOKENIZERS["sentencepiece_bpe"]
    tokenizer = definition.train(20, True, lambda: iter(["banana bandana cabana"] * 9))
    tokenizer.save(run / "tokenizer")
    record = json.loads((run / "config.json").read_text())
    record["config"]["tokenizer"]["name"], record["data"]["tokenizer"] = tokenizer.name, tokenizer.fingerprint
    (run / "config.json").write_text(json.dumps(record))
    result = small.command("convert", run, tmp_path / "out", "--to=huggingface")
    assert result.code == 2
    assert "the tokenizer sentencepiece_bpe" in result.err and "can hold wordpiece, bpe," in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("converted", ["bert_tanh"], indirect=True)
def test_mismatched_conversion_record_is_reported(converted, tmp_path):
    _, workdir, _ = converted
    shutil.copytree(workdir, tmp_path / "run")
    file = tmp_path / "run" / "interop" / "published.json"
    record = json.loads(file.read_text())
    for change in ({"dtypes": {"nowhere": "F32"}}, {"family": "gpt"}):
        file.write_text(json.dumps(record | change))
        with pytest.raises(RunFault, match="does not fit the checkpoint"):
            conversion.to_published(tmp_path / "run", tmp_path / "out")
    for field, value in {"dtypes": None, "family": ["bert"], "metadata": [], "config_json": 1}.items():
        file.write_text(json.dumps(record | {field: value}))
        with pytest.raises(UserError, match=rf"published.json is damaged: {field}"):
            conversion.to_published(tmp_path / "run", tmp_path / "out")
        with pytest.raises(UserError, match=rf"published.json is damaged: {field}"):
            conversion.family_of(tmp_path / "run", None, None)
    file.write_text(json.dumps(record | {"config_json": record["config_json"] | {"hidden_act": "mish"}}))
    with pytest.raises(RunFault, match=r"run/interop cannot be written: .*/out/config.json.*'mish'"):
        conversion.to_published(tmp_path / "run", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("converted", ["bert_tanh"], indirect=True)
def test_run_can_start_from_a_converted_checkpoint(converted):
    directory, workdir, _ = converted
    source = init_from.load(workdir)
    assert same(source.params, read(directory).params)


def test_vocabulary_smaller_than_the_table_is_reported(tmp_path):
    directory = copy("bert", tmp_path / "x")
    lines = (directory / "vocab.txt").read_text().splitlines(keepends=True)
    (directory / "vocab.txt").write_text("".join(lines[:-4]))
    remarks = conversion.to_workdir(directory, tmp_path / "y").remarks
    assert any("the last 4 of the token table's 53 rows have no token" in remark for remark in remarks)


# --- GPT, ELECTRA ---


@pytest.mark.parametrize("converted", ["gpt"], indirect=True)
def test_gpt_reads_and_continues_text_with_its_own_tokenizer(converted, tmp_path):
    directory, workdir, _ = converted
    run, expected = lmrep.load(workdir), json.loads((directory / "expected_ids.json").read_text())
    assert run.objective.name == "causal" and run.tokenizer.name == "bpe" and run.tokenizer.lowercase
    assert {text: run.tokenizer.encode(text, specials=True).ids.tolist() for text in expected} == expected
    end = run.tokenizer.tokens.index("\n</w>")
    assert formats.base.make_layout(run.tokenizer.vocabulary)[:4] == (None, end, end, 1)  # it can go on learning
    assert run.prompt("The in.") == [*run.tokenizer.encode("the in.").ids] and run.prompt("") == [end]  # as published
    result = small.command("predict", f"--workdir={workdir}", "--tokens=6", "--temperature=0", "The thing,")
    assert result.code == 0 and result.out.startswith("The thing,") and "</w>" not in result.out
    assert small.command("convert", workdir, tmp_path / "back", "--to=huggingface").code == 0
    assert same(files(tmp_path / "back"), files(directory))
    for name in ("vocab.json", "merges.txt"):
        assert (tmp_path / "back" / name).read_text().split() == (directory / name).read_text().split()


@pytest.mark.parametrize("converted", ["electra_discriminator"], indirect=True)
def test_discriminator_initializes_all_but_the_generator(converted):
    directory, workdir, _ = converted
    run = lmrep.load(workdir)
    found = init_from.match(run.objective.specs, init_from.load(directory), run.tokenizer.tokens)
    assert not found.unused and all(path.startswith("objective/generator") for path in found.missing)
    assert same(found.values, read(directory).params)
    result = small.command("predict", f"--workdir={workdir}", "a [MASK]")
    assert result.code == 2 and "has no generator; the checkpoint" in result.err
    with pytest.raises(UserError, match=r"no capability 'generate_text' .continues texts."):
        run.generate(["a cat"])
    with pytest.raises(UserError, match=r"--part is 'generator', and .* has a single network"):
        conversion.to_published(workdir, workdir.parent / "part", part="generator")


@pytest.mark.parametrize("converted", ["electra_discriminator"], indirect=True)
def test_converted_discriminator_gives_the_checkpoint_s_probabilities(converted):
    directory, workdir, _ = converted
    run, text = lmrep.load(workdir), "the cat, a quick DOG."
    ids = run.encode([text])[0].ids[None]
    batch = certificate.RandomBatch(ids, np.zeros_like(ids), np.ones_like(ids))
    logits = certificate.our_outputs(read(directory), batch)["discriminator"][0, 1:-1]
    (replaced,) = run.detect_replaced([text])
    np.testing.assert_allclose([token.probability for token in replaced], 1 / (1 + np.exp(-logits)), rtol=0, atol=1e-6)
    assert all(token.word == text[token.start : token.end] for token in replaced)
    result = small.command("predict", f"--workdir={workdir}", text)
    assert result.code == 0 and result.out.count("%") == len(replaced)


@slow
def test_encoder_without_heads_makes_no_predictions(tmp_path):
    def bare(tensors):
        return {name: value for name, value in tensors.items() if not name.startswith("discriminator")}

    directory = rewrite(copy("electra_discriminator", tmp_path / "x", architectures=["ElectraModel"]), bare)
    assert conversion.to_workdir(directory, tmp_path / "run").checkpoint.heads == ()
    shutil.rmtree(tmp_path / "run/interop")  # as of a run that was trained here
    remark, = conversion.to_published(tmp_path / "run", tmp_path / "out").remarks
    assert remark.startswith("ElectraModel is the network alone: the run has no objective/discriminator/")
    result = small.command("predict", f"--workdir={tmp_path / 'run'}", "a cat")
    assert result.code == 2 and "has no discriminator head" in result.err and result.err.count("\n") == 1


@slow
@pytest.mark.parametrize("converted", ["electra_generator"], indirect=True)
def test_generator_is_a_masked_language_model(converted):
    run = lmrep.load(converted[1])
    fields = run.experiment.objective
    assert run.objective.name == "masked" and (fields["mask"], fields["keep"], fields["random"]) == (0.85, 0.15, 0.0)


@pytest.fixture(scope="module")
def joint(tmp_path_factory):
    """A run of both networks of ELECTRA."""
    return lmrep.load(given.workdir(
        tmp_path_factory.mktemp("joint"), "replaced_token", objective_fields={"generator": 0.5, "generator_layers": 1},
        embedding=24, activation="gelu"))


def test_each_network_of_a_joint_run_is_written(joint, tmp_path):
    main = conversion.to_published(joint.directory, tmp_path / "main").checkpoint
    assert main.class_name == "ElectraForPreTraining" and same(files(tmp_path / "main"), tensors_of(main))
    own = {path: np.asarray(value) for path, value in flatten(joint.params).items()}
    assert same(main.params, {path: value for path, value in own.items() if "/generator" not in path})
    generator = conversion.to_published(joint.directory, tmp_path / "part", part="generator").checkpoint
    assert (generator.class_name, generator.config.width, generator.config.layers) == ("ElectraForMaskedLM", 16, 1)

    c, network = replaced_token.Config(generator=0.5, generator_layers=1), joint.model.make_generator(0.5, 1)
    batch = certificate.random_batch(generator)
    inputs = Inputs(tokens=batch.tokens, attention_mask=AttentionMask(batch.attention_mask),
                    token_type_ids=batch.token_types)
    params = replaced_token.generator_as_masked_lm(joint.params, c)["encoder"]
    expected = jax.jit(lambda: network.encode(params, inputs).hidden)()
    found = certificate.our_outputs(read(tmp_path / "part"), batch)
    np.testing.assert_allclose(found["hidden"], expected, rtol=0, atol=1e-5)
    for path, value in flatten(joint.params["objective"]["generator_head"]).items():
        np.testing.assert_array_equal(generator.params[f"objective/masked/{path}"], value)
    result = small.command("convert", joint.directory, tmp_path / "named", "--to=huggingface", "--part=generator")
    assert result.code == 0 and "ElectraForMaskedLM, " in result.out
    assert same(files(tmp_path / "named"), files(tmp_path / "part"))
    result = small.command("convert", tmp_path / "part", tmp_path / "in", "--part=generator")
    assert result.code == 2 and "--part is 'generator'; it needs --to=huggingface" in result.err
    with pytest.raises(UserError, match="--part is 'both'; expected discriminator or generator"):
        conversion.to_published(joint.directory, tmp_path / "both", part="both")
    assert {path.name for path in tmp_path.iterdir()} == {"main", "part", "named"}


# A contract-style objective whose head has BERT's names and shapes, and predicts the token before each position.
def earlier(*arguments):
    built = OBJECTIVES["masked"].build(*arguments)
    return built._replace(uses=built.uses._replace(published_heads={}))


EARLIER = OBJECTIVES["masked"]._replace(build=earlier)


@pytest.mark.parametrize(("objective", "fields", "network", "name", "remark"), [
    ("masked", {}, LEFT, "GPT2Model", "it was trained to see both sides, and GPT2Model reads from left to right"),
    ("earlier", {}, {}, "BertModel", "BertModel is the network alone: no class of bert has a head"),
    ("causal", {}, LEFT, "GPT2LMHeadModel", ""),
    *(pytest.param(*row, marks=slow) for row in [
        ("causal", {"bias": True}, {}, "BertModel", "left out with the head: objective/causal/bias"),
        ("causal", {}, {}, "BertModel", "BertModel is the network alone"),
        ("causal", {"head": "transform"}, {}, "BertLMHeadModel", ""),
        ("causal", {"head": "transform"}, LEFT, "GPT2Model", "GPT2Model is the network alone"),
        ("causal", {"bias": True}, LEFT, "GPT2Model", "GPT2Model is the network alone"),
        ("causal", {}, LEFT | {"tied": False}, "GPT2LMHeadModel", ""),
        ("masked", {}, {"tied": False}, "BertForMaskedLM", "")])])
def test_the_objective_decides_which_heads_are_written(
    tmp_path, monkeypatch, objective, fields, network, name, remark
):
    monkeypatch.setitem(OBJECTIVES, "earlier", EARLIER)
    workdir = given.workdir(tmp_path, objective, objective_fields=fields, **network)
    done = conversion.to_published(workdir, tmp_path / "out")
    assert done.checkpoint.class_name == read(tmp_path / "out").class_name == name
    assert done.certificate.differences.keys() == {"hidden", *done.checkpoint.heads}
    assert any(remark in line for line in done.remarks) if remark else not done.remarks
    if not done.checkpoint.heads:
        assert not any("lm_head" in tensor or "cls." in tensor for tensor in done.checkpoint.dtypes)


@pytest.mark.parametrize(("objective", "format", "before", "after"), [
    ("causal", "stream", [], []), ("causal", "packed", ["[CLS]"], []), ("masked", "packed", ["[CLS]"], ["[SEP]"])])
def test_other_libraries_do_not_end_a_text_that_is_continued(tmp_path, objective, format, before, after):
    """They add what precedes a document in training, and what follows it only for a model that sees both sides."""
    network = LEFT if objective == "causal" else {}
    workdir = given.workdir(tmp_path, objective, format=format, **network)
    config = json.loads((workdir / "config.json").read_text())
    (workdir / "config.json").write_text(json.dumps(config | {"saved": True}))  # a run, not a converted checkpoint
    conversion.to_published(workdir, tmp_path / "out")
    encoding = Library.from_file(str(tmp_path / "out/tokenizer.json")).encode("the cat")
    own = lmrep.load(workdir).tokenizer
    assert encoding.tokens == [*before, *own.encode("the cat").tokens, *after]
    name = json.loads((tmp_path / "out/tokenizer_config.json").read_text())["tokenizer_class"]
    assert name == ("BertTokenizer" if after else "PreTrainedTokenizerFast")
    assert lmrep.data.tokenizers.load(tmp_path / "out").fingerprint == own.fingerprint


@pytest.mark.parametrize(("format", "isolate", "start"), [
    ("stream", True, None), ("stream", False, "[SEP]"), ("packed", None, "[CLS]")])
def test_an_exported_language_model_reads_the_same_start_when_it_is_converted_back(tmp_path, format, isolate, start):
    workdir = given.workdir(tmp_path, "causal", format=format, **LEFT)
    record = json.loads((workdir / "config.json").read_text())
    if isolate is not None:
        record["config"]["format"]["isolate"] = isolate
    (workdir / "config.json").write_text(json.dumps(record | {"saved": True}))
    conversion.to_published(workdir, tmp_path / "out")
    conversion.to_workdir(tmp_path / "out", tmp_path / "back")
    conversion.to_published(tmp_path / "back", tmp_path / "again")
    run, back = lmrep.load(workdir), lmrep.load(tmp_path / "back")
    assert back.converted and not run.converted
    for each in (run, back):
        assert each.start_token == (start and run.tokenizer.ids[start])
        before, after = ([run.tokenizer.ids[token]] for token in ("[CLS]", "[SEP]"))
        assert each.special_tokens == (before * (format == "packed"), after)
        first = [] if each.converted and format == "stream" else [*filter(None, [each.start_token])]  # as the library
        assert each.prompt("the cat") == [*first, *run.tokenizer.encode("the cat").ids]
        assert pairs.around_document(each) == ([*filter(None, [each.start_token])], [])
    assert same(files(tmp_path / "out"), files(tmp_path / "again"))


@pytest.mark.parametrize("converted", ["bert_tanh"], indirect=True)
def test_extra_tensors_are_compared(converted):
    directory, workdir, _ = converted
    assert set(conversion.read_arrays(workdir)[0]) == set(conversion.read_arrays(directory)[0])
    assert tensor_files.read(workdir / "interop" / "extra_tensors.safetensors")[0].keys() == read(
        directory).extra_tensors.keys()


def test_training_leaves_a_published_directory_alone(tmp_path):
    directory = copy("bert", tmp_path / "published")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(UserError, match="lmrep convert"):
        lmrep.train(small.config(small.corpus(tmp_path / "texts")), directory, data_dir=tmp_path / "data")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
