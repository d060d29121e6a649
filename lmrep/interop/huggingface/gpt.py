"""GPT (Radford et al., 2018), and what GPT-2 shares with it. Kernels are [in, out]; those of query, key and value are
joined."""

from dataclasses import dataclass

from lmrep.config.record import setting
from lmrep.interop.huggingface.base import MAX_SIZE, POSITION, TOKEN, Family, Names, layers, probability, size
from lmrep.interop.huggingface.task_classes import SEQUENCE, decoder_classes


@dataclass(frozen=True)
class DecoderJson:
    """The keys that GPT and GPT-2 share."""

    vocab_size: int = size(50257, "rows of the token table")
    n_embd: int = size(768, "d")
    n_layer: int = size(12, "l")
    n_head: int = size(12, "h")
    n_positions: int = size(1024, "rows of the position table")
    layer_norm_epsilon: float = setting(1e-5, "epsilon of layer norm", above=0)
    resid_pdrop: float = probability(0.1, "dropout")
    embd_pdrop: float = probability(0.1, "dropout on embeddings; our network has one dropout for both")
    attn_pdrop: float = probability(0.1, "dropout on attention probabilities")
    initializer_range: float = setting(0.02, "standard deviation of initial weights", above=0)
    pad_token_id: int | None = setting(None, "id of padding", at_least=0, at_most=MAX_SIZE)


FIELDS = {
    "vocab_size": "vocab", "n_embd": "width", "n_layer": "layers", "n_head": "heads", "layer_norm_epsilon": "norm_eps",
    "embd_pdrop": "dropout", "resid_pdrop": "dropout", "attn_pdrop": "attention_dropout",
    "initializer_range": "init_stddev",
}  # fmt: skip
ALIASES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
           "max_position_embeddings": "n_positions"}
ARCHITECTURE = {"positions": "learned", "norm": "post", "share": "none", "embedding_norm": False, "token_types": 0,
                "scaled_attention": True, "attention_by_layer": False}
ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}  # its gelu is the tanh form


@dataclass(frozen=True)
class ConfigJson(DecoderJson):
    """GPT's keys."""

    vocab_size: int = size(40478, "rows of the token table")
    n_positions: int = size(512, "rows of the position table")
    afn: str = setting("gelu", "activation", choices=tuple(ACTIVATIONS))


def base(token: str, position: str) -> Names:
    """The base model, by the names of its tables."""
    return {
        TOKEN: (token,), (POSITION,): (position,),
        **layers("h.{l}.", ("attn.c_attn",), "attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2"),
    }


FAMILY = Family(
    name="openai-gpt", prefix="transformer", causal=True, transposed=False,
    classes={("causal",): "OpenAIGPTLMHeadModel", (): "OpenAIGPTModel"},
    read_as={"OpenAIGPTDoubleHeadsModel": "OpenAIGPTLMHeadModel"}, tasks=decoder_classes("OpenAIGPT", SEQUENCE),
    base=base("tokens_embed.weight", "positions_embed.weight"),
    heads={("objective/causal/output",): ("lm_head.weight",)},
    record=ConfigJson, fields=FIELDS, architecture=ARCHITECTURE,
    initialization={"init": "normal", "table_dropout": True},
    pad=None, positions_key="n_positions", activation_key="afn", activations=ACTIVATIONS, aliases=ALIASES,
    objective="causal", preset_family="gpt",
    without_lm_head="its class has no output layer: `lmrep predict` continues texts by its token table, as the class "
                    "with a language model's head does")
