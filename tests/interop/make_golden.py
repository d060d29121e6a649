"""Makes the directories under `golden/` from the reference implementation; needs torch and transformers.

    python tests/interop/make_golden.py [NAME ...]

makes all, or those of these names.

Each is a checkpoint as published ones are, of random weights (biases and norms away from 0 and 1, odd sizes), with
`expected.safetensors`: ids with padding and token types, and the reference's hidden states and logits. Between them
they have what published files differ in: gelu in both forms, names from TensorFlow's, buffers, tied tensors written
twice, a pooler without its classifier, half precision, several files, bare names under a head.
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import transformers

from lmrep import models
from lmrep.data.tokenizers import SentencePiece, sentence_piece
from lmrep.data.tokenizers.sentence_piece import Cleaning
from lmrep.interop import tensor_files
from lmrep.interop.huggingface import FAMILIES
from lmrep.interop.huggingface.read import Published
from lmrep.interop.huggingface.write import write

HERE = Path(__file__).parent / "golden"
SIZES = {"vocab_size": 53, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 22, "max_position_embeddings": 23}
NARROW = SIZES | {"embedding_size": 7}
XLNET = {"vocab_size": 53, "d_model": 18, "n_layer": 2, "n_head": 3, "d_inner": 22}
GPT = {"vocab_size": 53, "n_embd": 15, "n_layer": 2, "n_head": 3, "n_positions": 23, "bos_token_id": 52,
       "eos_token_id": 52}
B, T = 3, 13
ALPHABET = "abcdefghijklmnopqrstuvwxyz.,"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ALPHABET, *(f"##{c}" for c in ALPHABET[:20])]
SENTENCES = ["the cat sees the dog.", "a bird finds the mouse, and the horse likes it.", "quick zebras vex my fox."]
GPT_PIECES = ["<unk>", *ALPHABET[:22], *(f"{c}</w>" for c in ALPHABET[:21]), "th", "the</w>", "in", "ing</w>",
              "er</w>", ".</w>", ",</w>", "'</w>", "\n</w>"]
HOSTILE = ["The cat, naïve.", "e\u0301cole  'thing'\tther\r\n", "大学 the\u3000in \U0001f600",
           "a\0b\u200b c\u00ad\ufffd", "</w><unk> the </w>", "", " \n ", "...in-the", "İstanbul ﬁ ß", "a" * 40]
LETTERS = ["<s>", "<pad>", "</s>", "<unk>", *ALPHABET, *ALPHABET[:16].upper(), "Ġ", "th", "Ġthe", "Ġth", "<mask>"]


def randomised(model, seed: int):
    """The model with every parameter drawn anew, for inference."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + (0.7 if parameter.ndim == 1 else 0))
    return model.eval()


def save(name: str, model, tensors: dict, sizes: dict = SIZES, most: int = 10**9) -> None:
    """Writes a directory with the model's config, `tensors` unchanged, and the outputs of the model."""
    directory = HERE / name
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    config = model.config
    record = {**config.to_diff_dict(), **sizes, "architectures": [type(model).__name__]}
    arrays = {key: value.detach().numpy() for key, value in tensors.items()}
    kinds = {key: tensor_files.DTYPE_NAMES[value.dtype] for key, value in arrays.items()}
    family = FAMILIES[config.model_type]
    network = family.network(record, name)
    write(Published(family, record, network, {}, kinds, arrays, {"format": "pt"}), directory, most)
    draw = np.random.default_rng(0)
    tokens = draw.integers(5, 46, (B, T))
    real = np.ones((B, T), np.int64)
    real[1, 8:], real[2, 5:] = 0, 0
    tokens[real == 0] = config.pad_token_id or 0
    types = draw.integers(0, 3 if name == "xlnet" else getattr(config, "type_vocab_size", 1), (B, T))
    given = {"token_type_ids": torch.tensor(types)} if "token_type_ids" in models.build(network).inputs else {}
    with torch.no_grad():
        given = model(torch.tensor(tokens), attention_mask=torch.tensor(real), output_hidden_states=True, **given)
    expected = {"tokens": tokens, "real": real, "types": types, "hidden": torch.stack(given.hidden_states).numpy()}
    head = {"GPT2LMHeadModel": "causal", "OpenAIGPTLMHeadModel": "causal", "ElectraForPreTraining": "discriminator",
            "XLNetLMHeadModel": "permutation"}
    if (scores := given.get("prediction_logits", given.get("logits"))) is not None:
        expected[head.get(type(model).__name__, "masked")] = scores.numpy()
    if (pair := given.get("seq_relationship_logits", given.get("sop_logits"))) is not None:
        expected["pair"] = pair.numpy()
    tensor_files.write(directory / "expected.safetensors", expected, {"transformers": transformers.__version__})


def wordpieces(name: str) -> None:
    (HERE / name / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (HERE / name / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}) + "\n")


def byte_level(name: str, pieces: list[str], cls: str) -> None:
    ids = {piece: i for i, piece in enumerate(pieces)}
    (HERE / name / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False) + "\n")
    (HERE / name / "merges.txt").write_text("#version: 0.2\nt h\nĠ th\nĠth e\n")
    (HERE / name / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": cls}) + "\n")


def spiece(**options) -> bytes:
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20), model_writer=trained, vocab_size=48, hard_vocab_limit=False,
        normalization_rule_name="identity", minloglevel=2, **options)
    return trained.getvalue()


def state(model) -> dict:
    """The tensors that the model's own save would write."""
    tied = {*(model._tied_weights_keys or {}), *(f"{key}.decoder.{part}" for key in ("cls.predictions", "lm_head")
                                                  for part in ("weight", "bias"))}
    return {key: value for key, value in model.state_dict().items() if key not in tied}


def bert() -> None:
    model = randomised(transformers.BertForPreTraining(transformers.BertConfig(**SIZES)), 0)
    save("bert", model, state(model))
    wordpieces("bert")


def bert_tanh() -> None:
    """As files made from TensorFlow's checkpoints, by an old version, with the tanh form of gelu."""
    model = randomised(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, hidden_act="gelu_new")), 1)
    renamed = {key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
               for key, value in model.state_dict().items()}
    save("bert_tanh", model, {**renamed, "bert.embeddings.position_ids": torch.arange(23)[None]})
    wordpieces("bert_tanh")


def bert_half() -> None:
    half = randomised(transformers.BertModel(transformers.BertConfig(**SIZES)), 2).half()
    tensors = state(half)
    save("bert_half", half.float(), {key: value.half() for key, value in tensors.items()}, most=5000)
    wordpieces("bert_half")


def roberta() -> None:
    model = randomised(transformers.RobertaForMaskedLM(transformers.RobertaConfig(
        **SIZES, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1)), 3)
    torch.manual_seed(0)
    pooler = {f"roberta.pooler.dense.{key}": value for key, value in torch.nn.Linear(15, 15).state_dict().items()}
    save("roberta", model, {**state(model), **pooler})
    byte_level("roberta", LETTERS, "RobertaTokenizer")


def electra_discriminator() -> None:
    model = randomised(transformers.ElectraForPreTraining(transformers.ElectraConfig(**NARROW)), 4)
    save("electra_discriminator", model, state(model), NARROW)
    wordpieces("electra_discriminator")


def electra_generator() -> None:
    """With the buffer, and the tied table once more, that old versions wrote."""
    model = randomised(transformers.ElectraForMaskedLM(transformers.ElectraConfig(**NARROW)), 5)
    more = {"electra.embeddings.position_ids": torch.arange(23)[None]}
    save("electra_generator", model, {**model.state_dict(), **more}, NARROW)
    wordpieces("electra_generator")


def albert() -> None:
    model = randomised(transformers.AlbertForPreTraining(transformers.AlbertConfig(**NARROW)), 6)
    save("albert", model, state(model), NARROW)
    trained = spiece(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"])
    (HERE / "albert" / "spiece.model").write_bytes(trained)


def xlnet() -> None:
    """As the released one is, but with its activation."""
    model = randomised(transformers.XLNetLMHeadModel(transformers.XLNetConfig(
        **XLNET, ff_activation="gelu_new", mem_len=7, clamp_len=6)), 9)
    save("xlnet", model, state(model), XLNET)
    names = [*sentence_piece.XLNET_SPECIALS.values()][3:]
    trained = spiece(control_symbols=names, user_defined_symbols=["<eop>", "."])
    SentencePiece(trained, sentence_piece.XLNET_SPECIALS, Cleaning(lowercase=False)).save(HERE / "xlnet")


def gpt() -> None:
    """With the ids that the reference gives to texts."""
    model = randomised(transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**GPT)), 7)
    save("gpt", model, state(model), GPT)
    ids = {piece: i for i, piece in enumerate(GPT_PIECES)}
    (HERE / "gpt" / "vocab.json").write_text(json.dumps(ids) + "\n")
    (HERE / "gpt" / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\ni n\nin g</w>\ne r</w>\n")
    (HERE / "gpt" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "OpenAIGPTTokenizer"}) + "\n")
    read = transformers.AutoTokenizer.from_pretrained(HERE / "gpt")
    (HERE / "gpt" / "expected_ids.json").write_text(json.dumps({text: read.encode(text) for text in HOSTILE}) + "\n")


def gpt2() -> None:
    """As the published ones are: names of the bare model under the head's class, and masks as buffers."""
    model = randomised(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT, n_inner=22)), 8)
    bare = {key.removeprefix("transformer."): value for key, value in state(model).items()}
    masks = {f"h.{layer}.attn.bias": torch.ones(23, 23).tril()[None, None] for layer in range(2)}
    save("gpt2", model, bare | masks, GPT)
    byte_level("gpt2", [*LETTERS[4:-1], *"0123", "<|endoftext|>"], "GPT2Tokenizer")


ALL = (bert, bert_tanh, bert_half, roberta, electra_discriminator, electra_generator, albert, xlnet, gpt, gpt2)

if __name__ == "__main__":
    for make in ALL:
        if not sys.argv[1:] or make.__name__ in sys.argv[1:]:
            make()
