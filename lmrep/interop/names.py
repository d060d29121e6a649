"""What the parameters of published checkpoints are called: one table an architecture, read in both directions.

A row is our paths and their name, or names where published files differ; the first is the one written by default. There
are several paths where their tensor is several of ours side by side. `{l}` is a layer's number, for we stack layers.
Most linear maps of theirs are [out, in] and ours [in, out]: a kernel is transposed, but in the architectures whose maps
are [in, out] too.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

Names = dict[tuple[str, ...], tuple[str, ...]]

TOKEN = ("encoder/embedding/token",)
MASKED, DISCRIMINATOR = "objective/masked/", "objective/discriminator/"
POOLER, CLASSIFIER = "objective/pair/pooler/", "objective/pair/classifier/"
PREFIXES = {"masked": MASKED, "pair": CLASSIFIER, "discriminator": DISCRIMINATOR}  # of the heads that have parameters


class Place(NamedTuple):
    """Where a tensor of theirs is among our parameters."""

    paths: tuple[str, ...]
    layer: int | None  # of a stacked parameter
    transposed: bool

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Their tensor's, of our parameters' shapes by path."""
        each = [shapes[path] if self.layer is None else shapes[path][1:] for path in self.paths]
        *before, last = each[0][::-1] if self.transposed else each[0]
        return (*before, last if len(each) == 1 else sum(shape[-1] for shape in each))

    def of(self, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Their tensor, of our parameters by path; a view where it is of one of them."""
        parts = self._parts(params)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def put(self, tensor: np.ndarray, params: Mapping[str, np.ndarray]) -> None:
        """Writes their tensor into our parameters."""
        start = 0
        for part in self._parts(params):
            part[...] = tensor[..., start : start + part.shape[-1]]
            start += part.shape[-1]

    def _parts(self, params: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        parts = [params[path] if self.layer is None else params[path][self.layer] for path in self.paths]
        return [part.T for part in parts] if self.transposed else parts


class Architecture(NamedTuple):
    """One family of published checkpoints."""

    kind: str  # as `model_type` names it
    classes: dict[tuple[str, ...], str]  # {the heads: the reference's class}
    base: Names  # takes the prefix `{stem}.` but in files of the bare base model
    heads: Names
    stem: str
    tied: str  # the token table once more, under the name of the output layer that is tied to it
    causal: bool = False  # whether it reads from left to right, and the tied table alone is its head
    transposed: bool = True  # whether kernels are

    def of_class(self, paths: Iterable[str]) -> str:
        """The class of the reference that has the heads among `paths`, or the first of them, or none."""
        found = self.heads_of(paths)
        return self.classes.get(found) or self.classes.get(found[:1]) or self.classes[()]

    def heads_of(self, paths: Iterable[str]) -> tuple[str, ...]:
        """What a checkpoint of these paths answers beside hidden states."""
        paths = set(paths)
        found = tuple(name for name, prefix in PREFIXES.items() if any(path.startswith(prefix) for path in paths))
        return ("causal",) if self.causal else found

    def all_paths(self) -> set[str]:
        """Every path that has a place."""
        return {path for paths in (*self.base, *self.heads) for path in paths}

    def places(self, prefix: str, layers: int, paths: Iterable[str]) -> Iterator[tuple[Place, list[str]]]:
        """Each place among `paths` and the names it goes by, of a model of that many layers."""
        known = set(paths)
        for table, before in ((self.base, prefix), (self.heads, "")):
            for row, names in table.items():
                if not known.issuperset(row):
                    continue
                transposed = self.transposed and row[0].endswith("/kernel")
                for layer in range(layers) if "{l}" in names[0] else (None,):
                    yield Place(row, layer, transposed), [before + name.format(l=layer) for name in names]

    def prefix(self, names: Iterable[str]) -> str:
        """What stands before the names of the base model in a file."""
        return f"{self.stem}." if any(name.startswith(f"{self.stem}.") for name in names) else ""


def found(architecture: Architecture, names: Iterable[str], layers: int, paths: Iterable[str]) -> dict[str, Place]:
    """{name: place} of those of `names` that have a place among `paths`."""
    names = set(names)
    prefix = architecture.prefix(names)
    known = {name: place for place, of in architecture.places(prefix, layers, paths) for name in of}
    known[architecture.tied] = Place(TOKEN, None, False)
    return {name: place for name, place in known.items() if name in names}


def written(architecture: Architecture, paths: Iterable[str], layers: int) -> list[str]:
    """The names, as the reference itself writes them, of the parameters at `paths`: those of the bare base model
    without a prefix."""
    paths = set(paths)
    bare = not architecture.causal and not any(paths.issuperset(row) for row in architecture.heads)
    return [of[0] for _, of in architecture.places("" if bare else f"{architecture.stem}.", layers, paths)]


# The tables


def _linear(path: str, name: str) -> Names:
    return {(f"{path}/kernel",): (f"{name}.weight",), (f"{path}/bias",): (f"{name}.bias",)}


def _joined(paths: tuple[str, ...], name: str) -> Names:
    """Several maps of one input, their outputs side by side."""
    return {tuple(f"{path}/{part}" for path in paths): (f"{name}.{theirs}",)
            for part, theirs in (("kernel", "weight"), ("bias", "bias"))}


def _norm(path: str, name: str) -> Names:
    """Files made from TensorFlow's say gamma and beta."""
    return {(f"{path}/scale",): (f"{name}.weight", f"{name}.gamma"),
            (f"{path}/bias",): (f"{name}.bias", f"{name}.beta")}


def _masked(transform: str, norm: str, *bias: str) -> Names:
    return {**_linear("objective/masked/transform", transform), **_norm("objective/masked/norm", norm),
            ("objective/masked/bias",): bias}


QUERY, KEY, VALUE = (f"encoder/layers/attention/{name}" for name in ("query", "key", "value"))

TABLES: Names = {
    TOKEN: ("embeddings.word_embeddings.weight",),
    ("encoder/embedding/position",): ("embeddings.position_embeddings.weight",),
    ("encoder/embedding/token_type",): ("embeddings.token_type_embeddings.weight",),
    **_norm("encoder/embedding_norm", "embeddings.LayerNorm"),
}
LAYERS: Names = {
    **_linear(QUERY, "encoder.layer.{l}.attention.self.query"),
    **_linear(KEY, "encoder.layer.{l}.attention.self.key"),
    **_linear(VALUE, "encoder.layer.{l}.attention.self.value"),
    **_linear("encoder/layers/attention/output", "encoder.layer.{l}.attention.output.dense"),
    **_norm("encoder/layers/attention_norm", "encoder.layer.{l}.attention.output.LayerNorm"),
    **_linear("encoder/layers/mlp/in", "encoder.layer.{l}.intermediate.dense"),
    **_linear("encoder/layers/mlp/out", "encoder.layer.{l}.output.dense"),
    **_norm("encoder/layers/mlp_norm", "encoder.layer.{l}.output.LayerNorm"),
}
BERT: Names = {**TABLES, **LAYERS, **_linear("objective/pair/pooler", "pooler.dense")}

ONE = "encoder.albert_layer_groups.0.albert_layers.0"  # the one layer of which ALBERT's are copies
ALBERT: Names = {
    **TABLES,
    **_linear("encoder/project", "encoder.embedding_hidden_mapping_in"),
    **_linear(QUERY, f"{ONE}.attention.query"),
    **_linear(KEY, f"{ONE}.attention.key"),
    **_linear(VALUE, f"{ONE}.attention.value"),
    **_linear("encoder/layers/attention/output", f"{ONE}.attention.dense"),
    **_norm("encoder/layers/attention_norm", f"{ONE}.attention.LayerNorm"),
    **_linear("encoder/layers/mlp/in", f"{ONE}.ffn"),
    **_linear("encoder/layers/mlp/out", f"{ONE}.ffn_output"),
    **_norm("encoder/layers/mlp_norm", f"{ONE}.full_layer_layer_norm"),
    **_linear("objective/pair/pooler", "pooler"),
}


def _gpt(token: str, position: str) -> Names:
    return {
        TOKEN: (token,),
        ("encoder/embedding/position",): (position,),
        **_joined((QUERY, KEY, VALUE), "h.{l}.attn.c_attn"),
        **_linear("encoder/layers/attention/output", "h.{l}.attn.c_proj"),
        **_norm("encoder/layers/attention_norm", "h.{l}.ln_1"),
        **_linear("encoder/layers/mlp/in", "h.{l}.mlp.c_fc"),
        **_linear("encoder/layers/mlp/out", "h.{l}.mlp.c_proj"),
        **_norm("encoder/layers/mlp_norm", "h.{l}.ln_2"),
    }


ARCHITECTURES = {each.kind: each for each in (
    Architecture(
        kind="bert", stem="bert", tied="cls.predictions.decoder.weight",
        classes={(): "BertModel", ("masked",): "BertForMaskedLM", ("masked", "pair"): "BertForPreTraining",
                 ("pair",): "BertForNextSentencePrediction"},
        base=BERT,
        heads={
            **_masked("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
                      "cls.predictions.bias", "cls.predictions.decoder.bias"),
            **_linear("objective/pair/classifier", "cls.seq_relationship"),
        }),
    Architecture(
        kind="roberta", stem="roberta", tied="lm_head.decoder.weight",
        classes={(): "RobertaModel", ("masked",): "RobertaForMaskedLM"},
        base=BERT,
        heads=_masked("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.bias")),
    Architecture(
        kind="electra", stem="electra", tied="generator_lm_head.weight",
        classes={(): "ElectraModel", ("masked",): "ElectraForMaskedLM", ("discriminator",): "ElectraForPreTraining"},
        base={**TABLES, **_linear("encoder/project", "embeddings_project"), **LAYERS},
        heads={
            **_masked("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
            **_linear("objective/discriminator/transform", "discriminator_predictions.dense"),
            **_linear("objective/discriminator/out", "discriminator_predictions.dense_prediction"),
        }),
    Architecture(
        kind="albert", stem="albert", tied="predictions.decoder.weight",
        classes={(): "AlbertModel", ("masked",): "AlbertForMaskedLM", ("masked", "pair"): "AlbertForPreTraining"},
        base=ALBERT,
        heads={
            **_masked("predictions.dense", "predictions.LayerNorm", "predictions.bias", "predictions.decoder.bias"),
            **_linear("objective/pair/classifier", "sop_classifier.classifier"),
        }),
    Architecture(
        kind="openai-gpt", stem="transformer", tied="lm_head.weight", causal=True, transposed=False,
        classes={("causal",): "OpenAIGPTLMHeadModel", (): "OpenAIGPTModel"},
        base=_gpt("tokens_embed.weight", "positions_embed.weight"), heads={}),
    Architecture(
        kind="gpt2", stem="transformer", tied="lm_head.weight", causal=True, transposed=False,
        classes={("causal",): "GPT2LMHeadModel", (): "GPT2Model"},
        base={**_gpt("wte.weight", "wpe.weight"), **_norm("encoder/final_norm", "ln_f")}, heads={}),
)}  # fmt: skip
