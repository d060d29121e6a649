"""Makes the directories under `golden/` from the reference implementation; needs torch and transformers.

    python tests/interop/make_golden.py

Each is a checkpoint as published ones are, of random weights (biases and norms away from 0 and 1, odd sizes), with
`expected.safetensors`: ids with padding and token types, and the reference's hidden states and logits. Between them
they have what published files differ in: gelu in both forms, names from TensorFlow's, buffers, tied tensors written
twice, a pooler without its classifier, half precision, several files.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

from lmrep.interop import published, tensor_files
from lmrep.interop.names import ARCHITECTURES

HERE = Path(__file__).parent / "golden"
SIZES = {"vocab_size": 53, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 22, "max_position_embeddings": 23}
B, T = 3, 13
ALPHABET = "abcdefghijklmnopqrstuvwxyz.,"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ALPHABET, *(f"##{c}" for c in ALPHABET[:20])]
LETTERS = ["<s>", "<pad>", "</s>", "<unk>", *ALPHABET, *ALPHABET[:16].upper(), "Ġ", "th", "Ġthe", "Ġth", "<mask>"]


def randomised(model, seed: int):
    """The model with every parameter drawn anew, for inference."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + (0.7 if parameter.ndim == 1 else 0))
    return model.eval()


def save(name: str, model, tensors: dict, most: int = 10**9) -> None:
    """Writes a directory: the model's config, `tensors` as they are, and what the model answers."""
    directory = HERE / name
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    config = model.config
    settings = {**config.to_diff_dict(), **SIZES, "architectures": [type(model).__name__]}
    arrays = {key: value.detach().numpy() for key, value in tensors.items()}
    kinds = {key: tensor_files.NAMES[value.dtype] for key, value in arrays.items()}
    network = published.network(ARCHITECTURES[config.model_type], settings)
    published.write(published.Published(config.model_type, settings, network, {}, kinds, arrays, {"format": "pt"}),
                    directory, most)
    draw = np.random.default_rng(0)
    tokens = draw.integers(5, 46, (B, T))
    real = np.ones((B, T), np.int64)
    real[1, 8:], real[2, 5:] = 0, 0
    tokens[real == 0] = config.pad_token_id
    types = draw.integers(0, config.type_vocab_size, (B, T))
    with torch.no_grad():
        given = model(torch.tensor(tokens), attention_mask=torch.tensor(real), token_type_ids=torch.tensor(types),
                      output_hidden_states=True)
    expected = {"tokens": tokens, "real": real, "types": types, "hidden": torch.stack(given.hidden_states).numpy()}
    if (scores := given.get("prediction_logits", given.get("logits"))) is not None:
        expected["masked"] = scores.numpy()
    if "seq_relationship_logits" in given:
        expected["pair"] = given.seq_relationship_logits.numpy()
    tensor_files.write(directory / "expected.safetensors", expected, {"transformers": transformers.__version__})


def wordpieces(name: str) -> None:
    (HERE / name / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (HERE / name / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}) + "\n")


def state(model) -> dict:
    """The tensors that the model's own save would write."""
    tied = ("decoder.weight", "decoder.bias")
    return {key: value for key, value in model.state_dict().items() if not key.endswith(tied)}


def main() -> None:
    bert = randomised(transformers.BertForPreTraining(transformers.BertConfig(**SIZES)), 0)
    save("bert", bert, state(bert))
    wordpieces("bert")

    # As files made from TensorFlow's checkpoints, by an old version, with the tanh form of gelu.
    old = randomised(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, hidden_act="gelu_new")), 1)
    renamed = {key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
               for key, value in old.state_dict().items()}
    save("bert_tanh", old, {**renamed, "bert.embeddings.position_ids": torch.arange(23)[None]})
    wordpieces("bert_tanh")

    half = randomised(transformers.BertModel(transformers.BertConfig(**SIZES)), 2).half()
    tensors = state(half)
    save("bert_half", half.float(), {key: value.half() for key, value in tensors.items()}, most=5000)
    wordpieces("bert_half")

    roberta = randomised(transformers.RobertaForMaskedLM(transformers.RobertaConfig(
        **SIZES, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1)), 3)
    pooler = {f"roberta.pooler.dense.{key}": value for key, value in torch.nn.Linear(15, 15).state_dict().items()}
    save("roberta", roberta, {**state(roberta), **pooler})
    ids = {piece: i for i, piece in enumerate(LETTERS)}
    (HERE / "roberta" / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False) + "\n")
    (HERE / "roberta" / "merges.txt").write_text("#version: 0.2\nt h\nĠ th\nĠth e\n")
    (HERE / "roberta" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
