"""What reading, writing and converting checkpoints refuse: a change, and the fields, files and flags that the message
names. Malformed safetensors files have a table in `test_tensor_files.py`, values outside an HDF5 file in
`test_bilm.py`."""

import json

import numpy as np
import pytest

from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import ParamSpec
from lmrep.interop import bilm, checkpoint_config, conversion, init_from, student
from lmrep.interop.huggingface.read import read, specs
from lmrep.interop.huggingface.write import from_network
from lmrep.interop.path_mapping import origins
from lmrep.models import bilstm, transformer_xl
from tests import small
from tests.interop import test_init_from, test_tasks
from tests.interop.test_bilm import OPTIONS, write_files
from tests.interop.test_bilm_conversion import WORDS, set_bias, write_vocabulary
from tests.interop.test_path_mapping import NUMBERED, PATHS, STACKED
from tests.interop.test_published import GOLDEN, LEFT, copy, network, rewrite
from tests.interop.test_tasks import BERT, BY_TOKEN, CAUSAL, CHOICE, ELECTRA, GELU, SEQUENCE, TOKENS

# Golden directory, keys of its config.json that are changed (None: deleted), and names in the message.
CONFIGS = [
    ("bert", {"model_type": "t5", "architectures": ["T5ForSequenceClassification"], "decoder_start_token_id": 2},
     ["decoder_start_token_id 2", "T5ForSequenceClassification"]),
    ("bert", {"model_type": "xlm", "architectures": ["XLMWithLMHeadModel"]}, ["XLMWithLMHeadModel", "BertModel: xlm"]),
    ("bert", {"model_type": "bart", "architectures": None, "is_encoder_decoder": True},
     ["'bart'", "T5EncoderModel: bart"]),
    ("bert", {"model_type": "deberta", "architectures": ["DebertaForMaskedLM"]}, [" DebertaV2ForMaskedLM"]),
    ("bert", {"model_type": "nomic_bert", "architectures": ["NomicBertForTokenClassification"]},
     [" BertForTokenClassification"]),
    ("bert", {"model_type": "longformer", "architectures": ["LongformerForQuestionAnswering"]},
     [" RobertaForQuestionAnswering: longformer"]),
    ("bert", {"model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"]},
     [" MT5ForConditionalGeneration: umt5"]),
    ("bert", {"model_type": "hubert", "architectures": ["HubertModel"]}, ["nothing near: hubert"]),
    ("bert", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, ["LlamaForCausalLM", "GPT2LMHeadModel"]),
    ("bert", {"model_type": "mistral", "architectures": ["MistralForSequenceClassification"]},
     ["GPT2ForSequenceClassification"]),
    ("bert", {"model_type": 7, "architectures": None}, ["model_type '7'"]),
    ("bert", {"model_type": None, "architectures": None}, ["model_type", "architectures"]),
    ("bert", {"architectures": ["RobertaModel"]}, ["architectures RobertaModel", "'bert'"]),
    ("bert", {"architectures": ["BertLMHeadModel"]}, ["is_decoder False", "BertLMHeadModel"]),
    ("bert", {"model_type": "bert-decoder"}, ["'bert-decoder'", "BertForPreTraining"]),
    ("bert", {"auto_map": {"AutoModel": "evil.Model"}}, ["auto_map"]),
    ("bert", {"quantization_config": {"bits": 4}}, ["quantised"]),
    ("bert", {"pruned_heads": {"0": [1]}}, ["pruned_heads"]),
    ("bert", {"hidden_act": "gelu_10"}, ["hidden_act is 'gelu_10'"]),
    ("bert", {"hidden_size": 16}, ["hidden_size 16", "3 heads"]),
    ("bert", {"hidden_size": 18}, ["word_embeddings.weight", "[53, 15]", "[53, 18]"]),
    ("bert", {"num_hidden_layers": 3}, ["bert.encoder.layer.2.attention.self.query.weight"]),
    ("bert", {"num_hidden_layers": 10**6}, ["1,000,000 layers", "46 tensors"]),
    ("bert", {"vocab_size": 10**30}, ["vocab_size"]),
    ("bert", {"vocab_size": 10**9}, ["vocab_size"]),
    ("bert", {"layer_norm_eps": 10**400}, ["config.json", "401 digits"]),
    ("bert", {"layer_norm_eps": "1" * 400}, ["layer_norm_eps"]),
    ("bert", {"layer_norm_eps": "1e-12"}, ["layer_norm_eps is '1e-12'"]),
    ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type", "'relative_key'"]),
    ("bert", {"is_decoder": True}, ["is_decoder True", "BertForPreTraining", "BertLMHeadModel"]),
    ("bert", {"is_decoder": "yes", "architectures": ["BertLMHeadModel"]}, ["is_decoder is 'yes'"]),
    ("bert", {"is_decoder": True, "architectures": ["BertLMHeadModel"], "add_cross_attention": True},
     ["add_cross_attention"]),
    ("bert", {"tie_word_embeddings": False}, ["tie_word_embeddings", "cls.predictions.decoder.weight"]),
    ("roberta", {"hidden_act": "relu"}, ["hidden_act", "'relu'", "RobertaForMaskedLM", "RobertaModel"]),
    ("electra_generator", {"hidden_act": "gelu_new"}, ["ElectraForMaskedLM", "ElectraModel"]),
    ("electra_discriminator", {"embedding_size": 15}, ["word_embeddings.weight", "[53, 7]"]),
    ("albert", {"is_decoder": True}, ["is_decoder is True"]),
    ("albert", {"num_hidden_groups": 2}, ["num_hidden_groups is 2"]),
    ("albert", {"embedding_size": 15}, ["embedding_size 15", "hidden_size"]),
    ("gpt", {"afn": "tanh"}, ["afn is 'tanh'"]),
    ("gpt2", {"n_embd": 16}, ["n_embd 16", "3 heads"]),
    ("gpt2", {"n_inner": 23}, ["mlp.c_fc.weight", "[15, 22]", "[15, 23]"]),
    ("gpt2", {"num_attention_heads": 5}, ["n_head 3", "num_attention_heads 5"]),
    ("xlnet", {"d_model": 15, "d_head": 5}, ["config.json", "d_model is 15"]),
    ("gpt2", {"tie_word_embeddings": False}, ["tie_word_embeddings", "lm_head.weight"]),
    ("gpt2", {"model_type": "openai-gpt"}, ["'openai-gpt'", "GPT2LMHeadModel"]),
    ("xlnet", {"attn_type": "uni"}, ["attn_type is 'uni'"]),
    ("xlnet", {"bi_data": True}, ["bi_data is True"]),
    ("xlnet", {"same_length": True}, ["same_length is True"]),
    ("xlnet", {"d_head": 7}, ["d_head 7", "d_model"]),
    ("xlnet", {"clamp_len": -2}, ["clamp_len is -2"]),
    ("xlnet", {"architectures": ["XLNetForQuestionAnswering"]}, ["start_logits.dense.weight"]),
]
# Keys of the config.json of a classifier of three labels, or of ELECTRA's multiple choice.
TASK_CONFIGS = [
    ((), {"problem_type": "multi_label"}, ["'multi_label'", "3 labels"]),
    ((), {"num_labels": 5}, ["num_labels 5", "3 labels"]),
    ((), {"problem_type": "regression"}, ["'regression'", "3 labels"]),
    ((), {"id2label": {"0": "a", "2": "b"}}, ["id2label"]),
    ((), {"id2label": {"0": "a", "1": "a"}}, ["id2label"]),
    ((), {"id2label": ["a", "b"]}, ["id2label"]),
    ((), {"id2label": {}}, ["id2label"]),
    ((), {"id2label": None, "num_labels": 10**9}, ["num_labels 1000000000"]),
    ((), {"id2label": {"0": "a", "1": "b"}, "num_labels": None}, ["classifier.weight", "[3, 12]", "[2, 12]"]),
    ((), {"classifier_dropout": 1.5}, ["classifier_dropout 1.5"]),
    ((ELECTRA, CHOICE, GELU), {"summary_type": "mean"}, ["summary_type mean", "ElectraForMultipleChoice"]),
]


def without(part):
    return lambda tensors: {name: value for name, value in tensors.items() if part not in name}


def other_output(tensors):
    return tensors | {"cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"] + 1}


# Golden directory, change of its tensors.
TENSORS = [
    ("gpt2", without("h.1.attn.c_attn.weight"), ["h.1.attn.c_attn.weight"]),
    ("gpt2", without("ln_f.bias"), ["ln_f.bias"]),
    ("electra_discriminator", without("discriminator_predictions.dense.bias"),
     ["discriminator_predictions.dense.bias"]),
    ("electra_discriminator", without("embeddings_project.weight"), ["electra.embeddings_project.weight"]),
    ("albert", without("albert.pooler.weight"), ["albert.pooler.weight"]),
    ("bert", without("layer.1.output.dense"),
     ["bert.encoder.layer.1.output.dense.weight", "bert.encoder.layer.1.output.dense.bias"]),
    ("bert", without("cls.predictions.bias"), ["cls.predictions.bias"]),
    ("bert", without("pooler"), ["bert.pooler.dense.weight"]),
    ("bert", other_output, ["decoder.weight", "tie_word_embeddings"]),
    ("bert", lambda tensors: tensors | {"cls.predictions.bias": np.zeros(53)}, ["cls.predictions.bias", "F64[53]"]),
]
INDEX = "model.safetensors.index.json"
# Golden directory, files of other content.
FILES = [
    ("bert_half", {INDEX: '{"weight_map": {"a": "../../etc/passwd"}}'}, [INDEX]),
    ("bert_half", {INDEX: '{"weight_map": {"a": "../x.safetensors"}}'}, [INDEX]),
    ("bert_half", {INDEX: '{"weight_map": ["a"]}'}, [INDEX, "weight_map"]),
    ("bert_half", {INDEX: '{"weight_map": {"a": "none.safetensors"}}'}, ["none.safetensors"]),
    ("bert_half", {INDEX: '{"weight_map": {"a": "model-00001-of-00003.safetensors"}}'}, [INDEX]),
    ("bert", {"tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["evil.T", null]}}'}, ["auto_map"]),
    ("bert", {"model.safetensors": None, "pytorch_model.bin": ""}, ["pytorch_model.bin", "weights_only=True"]),
]
# Network and heads that belong to no family: names of families with the fields that differ.
NETWORKS = [
    (lambda: network({"share": "all"}, "masked"), ["bert (share=all)", "albert (embedding=0)"]),
    (lambda: network({"norm": "pre"}, "masked"), [
        "bert (norm=pre)", "gpt2 (embedding_norm=True, token_types=2)",
        "roberta-prelayernorm (activation=gelu_tanh)"]),
    (lambda: network({"gated": True, "bias": False, "window": 2}, "masked"),
     ["bert (bias=False, gated=True, window=2)"]),
    (lambda: network({"positions": "none"}, "masked"), ["bert (positions=none)"]),
    (lambda: network({"embedding_norm": False}, "masked"), ["bert (embedding_norm=False)"]),
    (lambda: network({"share": "attention", "embedding": 6}, "masked"),
     ["electra (share=attention, activation=gelu_tanh)"]),
    (lambda: network(LEFT | {"norm": "post"}, "masked"), ["openai-gpt (mlp=20)"]),
    (lambda: xlnet(), ["xlnet (causal=True, segments=False, untie=False, scale_embedding=True)"]),
    (lambda: xlnet(causal=False, segments=True, scale_embedding=False, norm="pre", untie=True), ["xlnet (norm=pre)"]),
    (lambda: test_tasks.network(BERT, SEQUENCE, {"activation": "relu"}),
     ["bert (objective.activation=relu)", "electra ("]),
    (lambda: test_tasks.network(BERT, SEQUENCE, {"dense": False}), ["bert (objective.dense=False)"]),
    (lambda: test_tasks.network(BERT, SEQUENCE, {"bias": False}), ["bert (objective.bias=False)"]),
    (lambda: test_tasks.network(BERT, TOKENS, BY_TOKEN | {"context": "left"}), ["bert (objective.context=left)"]),
    (lambda: test_tasks.network(BERT, TOKENS, {"dense": True}), ["bert (objective.dense=True)"]),
    (lambda: test_tasks.network(LEFT, CHOICE, CAUSAL), ["gpt2 (no class for multiple_choice)"]),
    (lambda: test_tasks.network(LEFT, SEQUENCE, CAUSAL), ["gpt2 (objective.bias=True)"]),
]
# Of `origins`: path of ours -> path of the source.
MAPPINGS = [
    ({"encoder/layer": "encoder/layers"}, ["'encoder/layer'", "'encoder/layers'"]),
    ({"encoder/layers": "encoder/layer"}, ["'encoder/layer'", "'encoder/layers'"]),
    ({"encoder/layers": "objective/zzzzzzzzz"}, ["objective/zzzzzzzzz", "generator", "masked"]),
    ({"encoder/layers": "encoder/layers[0,12]"}, ["encoder/layers[0,12]", "12 layers"]),
    ({"encoder/layers": "encoder/layers[12:]"}, ["encoder/layers[12:]", "12 layers"]),
    *(({"encoder/layers": f"encoder/layers{index}"}, [f"encoder/layers{index}"])
      for index in ("[a]", "[]", "[-]", "[0:-]", "[::0]", "[0")),
]
# Keys of ELMo's options, or other values of its parts (...: absent).
ELMO = [
    ({"lstm": {"dim": 13}}, ["W_0"]),
    ({"lstm": {"n_layers": 3}}, ["RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0"]),
    ({"char_cnn": {"filters": [[1, 4], [3, 4]]}}, ["filters", "[1, 3]"]),
    ({"lstm": {"projection_dim": 12}}, ["options.json", "width 12"]),
    ({"lstm": {"dim": "12"}}, ["options.json", "lstm.dim is '12'"]),
    ({"lstm": {"n_layers": 0}}, ["options.json", "lstm.n_layers is 0"]),
    ({"lstm": {"proj_clip": -1}}, ["options.json", "lstm.proj_clip is -1.0"]),
    ({"lstm": {"use_skip_connections": "no"}}, ["use_skip_connections"]),
    ({"lstm": {"cell_clip": [3]}}, ["options.json"]),
    *(({part: value}, ["options.json"]) for part in ("lstm", "char_cnn")
      for value in (None, ..., "x" * 10**5, [1], {})),
    *(({"char_cnn": {key: value}}, ["options.json"]) for key in ("filters", "embedding", "n_highway", "activation")
      for value in (3, "x", [[1, []]], {"a": 1}) if (key, value) != ("n_highway", 3)),
]


def xlnet(**changed):
    config = transformer_xl.Config(vocab=31, width=12, layers=2, heads=2, mlp=20, **changed)
    return config, {path: np.zeros(spec.shape, np.float32) for path, spec in specs(config).items()
                    if "encoder/" in path}


def read_config(directory, name, changed):
    read(copy(name, directory / "x", **changed))


def read_task(directory, layout, changed):
    test_tasks.publish(directory / "x", *layout)
    file = directory / "x/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    read(directory / "x")


def read_tensors(directory, name, change):
    read(rewrite(copy(name, directory / "x"), change))


def read_files(directory, name, contents):
    source = copy(name, directory / "x")
    for file, content in contents.items():
        (source / file).write_text(content) if content is not None else (source / file).unlink()
    read(source)


def write_network(directory, make):
    config, params, *task = make()
    from_network(config, params, {}, *([task[0].name, *task] if task else []))


def read_elmo(directory, changed):
    options = OPTIONS | {part: OPTIONS[part] | value if isinstance(value, dict) and value else value
                         for part, value in changed.items()}
    write_files(directory, {part: value for part, value in options.items() if value is not ...})
    bilm.read(*bilm.find(directory))


def several_options(directory):
    write_files(directory)
    (directory / "other_options.json").write_text("{}")
    bilm.find(directory)


def start_from_elmo(directory, field):
    init_from.directory_of(write_files(directory), field)


def not_finite(directory):
    def damage(tensors):
        tensors["bert.pooler.dense.bias"][3] = np.nan
        return tensors

    conversion.to_workdir(rewrite(copy("bert", directory / "x"), damage), directory / "y")


def many_tokens(directory):
    with open(copy("bert", directory / "x") / "vocab.txt", "a") as file:
        file.write("".join(f"word{i}\n" for i in range(20)))
    conversion.to_workdir(directory / "x", directory / "y")


def match(directory, **changed):
    source = test_init_from.SOURCE
    init_from.match(test_init_from.specs(4, **changed) if changed else {"other": ParamSpec((1,), (None,))}, source,
                    test_init_from.OLD)


def take_head(directory, theirs, ours):
    source = test_init_from.SOURCE._replace(objective={"name": SEQUENCE, **theirs})
    init_from.for_task(source, {}, {"name": SEQUENCE, **ours}, False)


OTHERS = [
    (UserError, take_head, ({"labels": ["a", "b"]}, {"labels": ("b", "a")}), ["a, b", "b, a", "--config.head=new"]),
    (UserError, take_head, ({"context": "left"}, {"context": "both"}), ["objective.context is 'both'", "'left'"]),
    (RunFault, not_finite, (), ["sentence-pair logits nan"]),
    (UserError, many_tokens, (), ["73 ids", "53 rows"]),
    (UserError, several_options, (), ["other_options.json", "elmo_2x12_6_options.json"]),
    (UserError, start_from_elmo, ("init",), ["init is", "lmrep convert"]),
    (UserError, start_from_elmo, ("features",), ["features is", "lmrep convert"]),
    (UserError, lambda directory: bilm.write(directory, bilstm.Config(reads="words", vocab=5), {}), (),
     ["characters"]),
    (UserError, lambda directory: match(directory, width=5), (), ["encoder/w", "(5,)", "(3,)", "elsewhere"]),
    (UserError, match, (), ["elsewhere", "encoder/table"]),
    (UserError, lambda directory: student.pick_layers(2, 3), (), ["layers is 3"]),
    (UserError, lambda directory: origins(["encoder/layers/0/kernel"], NUMBERED, {
        "encoder/layers": "encoder/layers[4]"}), (), ["encoder/layers[4]", "4 layers"]),
    (UserError, lambda directory: checkpoint_config.facts(directory / "none"), (),
     ["init is", "none"]),
    (UserError, lambda directory: checkpoint_config.facts(directory), (),
     ["init is", "config.json"]),
]
ROWS = [*OTHERS, *(
    (UserError, act, row[:-1], row[-1]) for act, rows in (
        (read_config, CONFIGS), (read_task, TASK_CONFIGS), (read_tensors, TENSORS), (read_files, FILES),
        (write_network, NETWORKS), (lambda directory, mapping: origins(PATHS, STACKED, mapping), MAPPINGS),
        (read_elmo, ELMO)) for row in rows)]


@pytest.mark.parametrize(("error", "act", "arguments", "names"), ROWS, ids=[names[0] for *_, names in ROWS])
def test_a_refusal_names_what_is_at_fault(error, act, arguments, names, tmp_path):
    with pytest.raises(error) as caught:
        act(tmp_path, *arguments)
    message = str(caught.value)
    assert [name for name in names if name not in message] == [] and len(message) < 1000, message


# Words of `lmrep convert`; {new} is a path where nothing is, and nothing is afterwards.
COMMANDS = [
    (["{bert}"], ["two directories"]),
    (["{bert}", "{new}", "--to=tf"], ["--to is 'tf'", "huggingface"]),
    (["{bert}", "{new}", "--to=huggingface"], ["{bert}"]),
    (["{run}", "{new}"], ["{run}", "--to=huggingface"]),
    (["{none}", "{new}"], ["{none}"]),
    (["{none}", "{new}", "--to=huggingface"], ["{none}"]),
    (["google/bert_uncased", "{new}"], ["lmrep convert hf://google/bert_uncased"]),
    (["{bert}", "{full}"], ["{full}"]),
    (["{run}", "{full}", "--to=huggingface"], ["{full}"]),
    (["{run}", "{new}", "--to=huggingface", "--step=3"], ["checkpoint 3"]),
    (["{run}", "{new}", "--to=huggingface", "--shard_mb=0"], ["--shard_mb"]),
    (["{bert}", "{new}", "--part=generator"], ["--part", "--to=huggingface"]),
    (["{elmo}", "{new}", "--to=bilm"], ["{elmo}"]),
    (["{elmo_run}", "{new}"], ["{elmo_run}", "--to=bilm"]),
    (["{elmo_run}", "{new}", "--to=huggingface"], ["bilstm", "transformer"]),
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    home = tmp_path_factory.mktemp("refusals")
    (home / "elmo").mkdir()
    write_files(home / "elmo")
    for name, source in (("run", GOLDEN / "bert_half"), ("elmo_run", home / "elmo")):
        assert small.command("convert", source, home / name).code == 0
    return {"bert": GOLDEN / "bert", **{name: home / name for name in ("run", "elmo", "elmo_run")}}


@pytest.mark.parametrize(("words", "names"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_a_refused_conversion_writes_nothing(words, names, paths, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    paths = paths | {name: tmp_path / name for name in ("new", "none", "full")}
    result = small.command("convert", *(word.format(**paths) for word in words))
    assert result.code == 2 and result.err.count("\n") == 1
    assert [name for name in names if name.format(**paths) not in result.err] == [], result.err
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "kept"]


@pytest.mark.parametrize(("change", "names"), [
    (lambda home: write_vocabulary(home, WORDS[3:]), ["<S>", "</S>"]),
    (lambda home: [write_vocabulary(home), (home / "vocab.txt").touch()], ["vocab-2016.txt", "vocab.txt"]),
    (lambda home: (home / "elmo_2x12_6_weights.hdf5").write_bytes(b"<html>"), ["elmo_2x12_6_weights.hdf5"]),
    (lambda home: set_bias(home, np.nan), ["encoder/embedding/projection/bias"]),
    (lambda home: (home / "elmo_2x12_6_options.json").unlink(), ["elmo_2x12_6_weights.hdf5", "options.json"]),
    (lambda home: (home / "elmo_2x12_6_weights.hdf5").unlink(), ["elmo_2x12_6_options.json", "lm_weights.hdf5"]),
])
def test_files_of_elmo_that_are_refused_write_nothing(change, names, tmp_path):
    (tmp_path / "elmo").mkdir()
    change(write_files(tmp_path / "elmo"))
    result = small.command("convert", tmp_path / "elmo", tmp_path / "run")
    assert result.code == 2 and result.err.count("\n") == 1
    assert [name for name in names if name not in result.err] == [], result.err
    assert [path.name for path in tmp_path.iterdir()] == ["elmo"]
