"""Suggests the most similar family for well-known architectures that lmrep lacks."""

from collections.abc import Mapping
from typing import Any

from lmrep.interop.huggingface import FAMILIES

_ROTARY = "has rotary positions, RMS norm and gated feed-forward blocks"
_TRANSLATION = "has absolute positions, biases and norms after each block, and was trained to translate"
_STATES = "is a recurrent state-space model"
_OTHER_INPUT = "reads images or sound"

# model_type -> (most similar family, "" for none; how the architecture differs from it). A name that is missing here
# has the entry of its longest prefix.
NEAREST: Mapping[str, tuple[str, str]] = {
    # Encoders.
    "xlm-roberta-xl": ("roberta-prelayernorm", "has no norm on its embeddings"),
    "longformer": ("roberta", "attends within windows, with projections of their own for global attention"),
    "luke": ("roberta", "has embeddings of entities"),
    "ibert": ("roberta", "computes with integers"),
    "xmod": ("roberta", "has adapters for each language"),
    "jina_embeddings_v3": ("xlm-roberta", "has rotary positions and adapters for each task"),
    "lilt": ("roberta", "has a second stream for the layout of a page"),
    "deberta": ("deberta-v2", "has one projection for queries, keys and values, and no buckets of distances"),
    "roformer": ("bert", "has rotary positions"),
    "nomic_bert": ("bert", "has rotary positions and gated blocks"),
    "eurobert": ("bert", _ROTARY),
    "mpnet": ("bert", "adds a bias by distance to its attention"),
    "mobilebert": ("bert", "has bottlenecks around its layers"),
    "squeezebert": ("bert", "has grouped convolutions in place of linear layers"),
    "megatron-bert": ("bert", "normalizes before each block"),
    "bert-generation": ("bert", "has no token types, and was trained to generate"),
    "ernie": ("bert", "may have embeddings of tasks"),
    "big_bird": ("bert", "has block-sparse attention"),
    "nystromformer": ("bert", "approximates attention by landmarks"),
    "fnet": ("bert", "has Fourier transforms in place of attention"),
    "yoso": ("bert", "approximates attention by hashing"),
    "mra": ("bert", "approximates attention by blocks"),
    "rembert": ("bert", "has an output layer of its own, wider than its input embeddings"),
    "canine": ("bert", "reads characters, and shortens their sequence"),
    "roc_bert": ("bert", "has embeddings of the shapes and sounds of characters"),
    "splinter": ("bert", "selects spans by a special question token"),
    "tapas": ("bert", "has embeddings of rows and columns"),
    "layoutlm": ("bert", "has embeddings of places on a page"),
    "xlm": ("bert", "has embeddings of languages"),
    "flaubert": ("bert", "is XLM's network"),
    "esm": ("roberta", "reads proteins"),
    "convbert": ("electra", "has convolutions in place of half of its attention heads"),
    "funnel": ("electra", "shortens the sequence from block to block"),
    # From left to right.
    "opt": ("gpt2", "has ReLU, and positions that start at 2"),
    "gpt_neo": ("gpt2", "has local attention in every other layer, and does not scale it"),
    "gptj": ("gpt2", "has rotary positions, and attention and feed-forward block side by side"),
    "gpt_neox": ("gpt2", "has rotary positions, and attention and feed-forward block side by side"),
    "codegen": ("gpt2", "has rotary positions, and attention and feed-forward block side by side"),
    "gpt_bigcode": ("gpt2", "has one head of keys and values"),
    "biogpt": ("gpt2", "has positions that start at 2, and scaled embeddings"),
    "xglm": ("gpt2", "has sinusoidal positions and scaled embeddings"),
    "ctrl": ("gpt2", "has sinusoidal positions and scaled embeddings"),
    "bloom": ("gpt2", "has a bias by distance (ALiBi) in place of positions"),
    "mpt": ("gpt2", "has a bias by distance (ALiBi) in place of positions"),
    "falcon": ("gpt2", "has rotary positions and one head of keys and values"),
    **dict.fromkeys(("phi", "olmo", "cohere", "stablelm", "starcoder2"),
                    ("gpt2", "has rotary positions")),
    **dict.fromkeys(("llama", "mistral", "mixtral", "gemma", "qwen", "phi3", "olmo2", "deepseek", "granite", "smollm",
                     "gpt_oss"), ("gpt2", _ROTARY)),
    # Encoder-decoders.
    "umt5": ("mt5", "has a table of relative positions in every layer"),
    "longt5": ("t5", "has local attention in its encoder"),
    "switch_transformers": ("t5", "has experts"),
    "t5gemma": ("t5", _ROTARY),
    **dict.fromkeys(("bart", "mbart", "pegasus", "blenderbot", "led", "plbart", "bigbird_pegasus", "prophetnet"),
                    ("t5", "has absolute positions and biases")),
    **dict.fromkeys(("marian", "fsmt", "m2m_100", "nllb"), ("t5", _TRANSLATION)),
    # No family is near.
    **dict.fromkeys(("mamba", "rwkv"), ("", _STATES)),
    "jamba": ("", "has state-space layers among those with attention"),
    "reformer": ("", "has reversible layers and attention by hashing"),
    "perceiver": ("", "attends to its input from a few latent vectors"),
    "transfo-xl": ("", "is no class of transformers 5; lmrep trains that network (transformer_xl.py)"),
    **dict.fromkeys(("vit", "clip", "siglip", "hubert", "wav2vec2", "whisper", "lxmert", "visual_bert", "layoutlmv3"),
                    ("", _OTHER_INPUT)),
}  # fmt: skip


def nearest(name: str, config_json: Mapping[str, Any]) -> str:
    """Describes the class in lmrep that is most similar to that of a config.json, with the same head if its family has
    it, and how the networks differ. `name` is the model_type."""
    head = next((name.partition("For")[2] for name in config_json.get("architectures") or []), "")
    known = max((start for start in NEAREST if name.startswith(start)), key=len, default=None)
    family, difference = NEAREST[known] if known and name not in FAMILIES else (_guess(name, head, config_json), "")
    why = f": {name} {difference}" if difference else ""
    if not family:
        return f"it has nothing near{why}"
    classes = [head_class.name for head_class in FAMILIES[family].heads]
    class_name = next((known_class for known_class in classes if head and known_class.endswith(f"For{head}")),
                      FAMILIES[family].class_of(("causal",)).name)
    return f"the nearest that it has is {class_name}{why}"


def _guess(name: str, head: str, config_json: Mapping[str, Any]) -> str:
    """Guesses a family with the same direction; for encoders, the longest one whose name is a part of `name`."""
    if name in FAMILIES:
        return name
    if config_json.get("is_encoder_decoder") or head in ("ConditionalGeneration", "Seq2SeqLM"):
        return "t5"
    if head == "CausalLM":
        return "gpt2"
    return max((part for part, family in FAMILIES.items() if part in name and part == family.model_type), key=len,
               default="bert")
