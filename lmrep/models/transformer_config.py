"""The settings of the Transformer, in which the published networks differ."""

from collections import Counter
from dataclasses import dataclass

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.layers.depth_average import KINDS
from lmrep.layers.disentangled_attention import TERMS, Buckets
from lmrep.layers.mlp import ACTIVATIONS
from lmrep.layers.norm import NORMS
from lmrep.models import pruned_heads

SHARING = {"none": (), "attention": ("attention", "attention_norm"), "mlp": ("mlp", "mlp_norm"),
           "all": ("attention", "attention_norm", "mlp", "mlp_norm")}


@dataclass(frozen=True)
class Config:
    """The fields in which the published Transformers differ."""

    vocab: int = setting(30522, "size of the vocabulary; 0: the tokenizer's size", at_least=0)
    width: int = setting(768, "d, the model width", at_least=1)
    layers: int = setting(12, "l, the number of layers", at_least=1)
    heads: int = setting(12, "h, attention heads a layer; a divisor of the width", at_least=1)
    mlp: int = setting(3072, "f, the feed-forward width", at_least=1)
    max_length: int = setting(512, "tokens of a sequence at most; any, if positions are none, or disentangled without "
                              "a mask decoder", at_least=1)
    positions: str = setting("learned", "position embeddings; or rotary, rotations of queries and keys (RoPE); or "
                             "disentangled, attention to relative positions apart from content (DeBERTa)",
                             choices=("learned", "sinusoidal", "none", "rotary", "disentangled"))
    rotary_base: float = setting(10_000.0, "base of the angles of rotary positions", above=0)
    rotary_fraction: float = setting(1.0, "part of a head that is rotated", above=0, at_most=1)
    position_buckets: int = setting(256, "of disentangled positions, buckets of the distances to each side; 0: one for "
                                    "each distance", at_least=0)
    max_distance: int = setting(512, "of disentangled positions, the distance from which on all are in one bucket",
                                at_least=1)
    position_terms: str = setting("both", "of disentangled positions: content attends to positions (c2p), positions to "
                                  "content (p2c), or both", choices=tuple(TERMS))
    convolution: int = setting(0, "width of a convolution whose output is added to that of the first layer; 0: none "
                               "(DeBERTa v2 xlarge: 3)", at_least=0)
    mask_decoder: int = setting(0, "of disentangled positions, the enhanced mask decoder: how often the last layer is "
                                "applied to predict masked tokens, first with queries that have a position embedding; "
                                "0: it is not used (DeBERTa: 2)", at_least=0)
    window: int = setting(0, "local attention: positions to each side that a position reads, in all layers but every "
                          "`global_every`-th; 0: all layers are global (ModernBERT: 64)", at_least=0)
    global_every: int = setting(3, "with a window, layers 0, n, 2 n, ... are global", at_least=1)
    local_base: float = setting(0.0, "base of the angles in local layers; 0: rotary_base", at_least=0)
    position_offset: int = setting(0, "rows before position 0 in the position table (RoBERTa: 2)", at_least=0)
    token_types: int = setting(2, "rows of the token-type table (BERT: 2, RoBERTa: 0)", at_least=0)
    embedding: int = setting(0, "width of the tables, projected to d where it differs (ALBERT: 128); 0: d", at_least=0)
    embedding_delta: bool = setting(False, "whether the token table is the sum of a table that this network does not "
                                    "train and one that starts at zero (GDES, with objective=replaced_token)")
    embedding_norm: bool = setting(True, "layer norm on the embeddings (not in GPT and GPT-2)")
    norm: str = setting("post", "norm after each residual sum (BERT) or before each block (GPT-2)",
                        choices=("post", "pre"))
    norm_kind: str = setting("layer", "layer norm with or without a bias, or RMS norm", choices=tuple(NORMS))
    first_norm: bool = setting(True, "with pre norm, a norm before the attention of the first layer (not in "
                               "ModernBERT, whose embeddings have one)")
    norm_eps: float = setting(1e-12, "epsilon of norms", above=0)
    bias: bool = setting(True, "biases of dense layers (not in ModernBERT)")
    gated: bool = setting(False, "whether the activation gates a second projection: GeGLU with gelu, SwiGLU with silu "
                          "(Shazeer, 2020)")
    activation: str = setting("gelu_tanh", "of the feed-forward block and of heads", choices=tuple(ACTIVATIONS))
    scaled_attention: bool = setting(True, "whether attention logits are divided by the root of the heads' width")
    attention_by_layer: bool = setting(False, "whether they are divided by the number of the layer, from 1 (an option "
                                       "of GPT-2's in the transformers library)")
    query_key_norm: bool = setting(False, "RMS norm of each head's queries and keys (Henry et al., 2020), before "
                                   "rotary positions (Qwen3)")
    attention_cap: float = setting(0.0, "cap of attention logits x, as cap * tanh(x / cap); 0: none (Gemma 2: 50)",
                                   at_least=0)
    logit_cap: float = setting(0.0, "the same of the logits of tokens, with objectives that condition on the left "
                               "context; 0: none (Gemma 2: 30)", at_least=0)
    tied: bool = setting(True, "whether the output layer uses the token table (Press and Wolf, 2017)")
    layer_weights: str = setting(
        "none", "learned sums of the outputs of all layers so far, in place of the last output: after each layer "
        "(dense: DenseFormer), after each block (dense_blocks: GPT-BERT's DWA), or convex combinations of outputs "
        "without inputs (convex, convex_zero: ELC-BERT)", choices=tuple(KINDS))
    share: str = setting("none", "parameters that all layers share (ALBERT: all)", choices=tuple(SHARING))
    dropout: float = setting(0.1, "on embeddings and on the output of each block", at_least=0, below=1)
    table_dropout: bool = setting(False, "whether `dropout` acts on the entries of the embedding tables, including the "
                                  "tied output layer, instead of the sum of embeddings (GPT)")
    attention_dropout: float = setting(0.1, "on attention probabilities", at_least=0, below=1)
    mlp_dropout: float = setting(0.0, "inside the feed-forward block", at_least=0, below=1)
    init: str = setting("truncated_normal", "distribution of initial weights", choices=("normal", "truncated_normal"))
    init_stddev: float = setting(0.02, "standard deviation of initial weights", above=0)
    position_stddev: float = setting(0.0, "of the position table (GPT-2: 0.01); 0: init_stddev", at_least=0)
    project_init: str = setting("same", "initial projection of the tables: as other weights, or Glorot uniform "
                                "(ELECTRA)",
                                choices=("same", "glorot"))
    residual_init: str = setting("same", "initial projections onto the residual stream: as other weights, or scaled by "
                                 "1 / sqrt(2 l) (GPT-2)", choices=("same", "scaled"))
    pruned_heads: str = setting("", "attention heads that were removed (lmrep prune), by layer, from 0: 1:2,5;3:0; "
                                "layers that keep different numbers of heads are not stacked")

    @property
    def table_width(self) -> int:
        """Width of the embedding tables."""
        return self.embedding or self.width

    @property
    def head_width(self) -> int:
        """k, the width of a head."""
        return self.width // self.heads

    @property
    def kept_heads(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the heads that each layer has, from 0 to `heads` - 1."""
        return pruned_heads.kept(self.pruned_heads, self.layers, self.heads)

    @property
    def head_counts(self) -> Counter[int]:
        """{number of heads: how many layers have as many}."""
        return pruned_heads.counts(self.pruned_heads, self.layers, self.heads)

    @property
    def layers_differ(self) -> bool:
        """Whether layers differ in the shapes of their parameters."""
        return len(self.head_counts) > 1 or not self.first_norm

    @property
    def windows(self) -> list[int]:
        """The window of each layer; 0 for global attention."""
        return [self.window if layer % self.global_every else 0 for layer in range(self.layers)]

    @property
    def max_tokens(self) -> int:
        """Tokens of a sequence at most: the number of positions; 0, for any, where each distance has a bucket or there
        are no positions, and no mask decoder, which has a table of them."""
        return 0 if self.positions in ("none", "disentangled") and not self.mask_decoder else self.max_length

    @property
    def buckets(self) -> Buckets:
        """The buckets of disentangled positions."""
        return Buckets(self.position_buckets, self.max_distance)


def check(c: Config) -> None:
    """Raises UserError where fields do not fit each other."""
    if c.width % c.heads:
        near = [h for h in range(1, c.width + 1) if c.width % h == 0]
        raise UserError(f"model.width is {c.width}, which model.heads={c.heads} does not divide; "
                        f"for example, set heads to {min(near, key=lambda h: abs(h - c.heads))}")
    if c.positions == "sinusoidal" and c.table_width % 2:
        raise UserError(f"sinusoidal positions need an even width; model has {c.table_width}")
    if c.positions == "rotary" and (width := c.rotary_fraction * c.head_width) % 2:
        raise UserError(f"rotary positions rotate pairs of entries of a head; model.rotary_fraction="
                        f"{c.rotary_fraction:g} of its width {c.head_width} is {width:g}; expected an even number")
    if c.position_buckets and (c.position_buckets < 4 or c.max_distance < c.position_buckets // 2 + 2):
        raise UserError(f"model.position_buckets is {c.position_buckets} and model.max_distance {c.max_distance}; "
                        "expected 4 buckets or more, and a distance of half their number and 2 at least")
    if c.convolution and (c.convolution % 2 == 0 or c.norm == "pre"):
        raise UserError(f"model.convolution is {c.convolution} and model.norm {c.norm}; expected an odd width and "
                        "post norm")
    if c.mask_decoder and (c.positions != "disentangled" or c.norm == "pre" or c.layer_weights != "none"
                           or c.pruned_heads):
        raise UserError(f"model.mask_decoder is {c.mask_decoder}, model.positions {c.positions}, norm {c.norm}, "
                        f"layer_weights {c.layer_weights} and pruned_heads {c.pruned_heads!r}; expected disentangled "
                        "positions, post norm, layer_weights=none and no pruned heads, or mask_decoder=0")
    if c.layer_weights != "none" and (c.convolution or (KINDS[c.layer_weights].convex and c.norm == "post")):
        raise UserError(f"model.layer_weights is {c.layer_weights}, model.norm {c.norm} and model.convolution "
                        f"{c.convolution}; expected no convolution, and pre norm for convex combinations")
    if not c.first_norm and (c.norm == "post" or c.share != "none"):
        raise UserError(f"model.first_norm is False, for layers with pre norm that share nothing; model.norm is "
                        f"{c.norm} and model.share {c.share}")
    if c.query_key_norm and (c.positions == "disentangled" or c.attention_by_layer or not c.scaled_attention):
        raise UserError("model.query_key_norm is True, which needs scaled_attention, without attention_by_layer, and "
                        f"other positions than disentangled; model.positions is {c.positions}")
    if c.attention_cap and c.positions == "disentangled":
        raise UserError(f"model.attention_cap is {c.attention_cap:g}, and attention with disentangled positions has no "
                        "cap; set it to 0, or choose other positions")
    if c.attention_by_layer and "attention" in SHARING[c.share]:
        raise UserError(f"model.attention_by_layer is True, and all layers share their attention (model.share={c.share}"
                        "); set share to none or mlp")
    pruned_heads.check(c.pruned_heads, c.layers, c.heads, c.share)
