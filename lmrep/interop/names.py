"""What the parameters of BERT and RoBERTa are called in published checkpoints: one table an architecture, read in both
directions.

A row is our path and their name, or names where published files differ; the first is the one written by default.
`{l}` is a layer's number, for we stack layers. Their linear maps are [out, in] and ours [in, out]: a path that ends in
`kernel` is transposed.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

Names = dict[str, tuple[str, ...]]


class Place(NamedTuple):
    """Where a tensor of theirs is among our parameters."""

    path: str
    layer: int | None  # of a stacked parameter

    def of(self, value: np.ndarray) -> np.ndarray:
        """Their tensor, as a view, of the parameter at `path`."""
        part = value if self.layer is None else value[self.layer]
        return part.T if self.path.endswith("/kernel") else part


class Architecture(NamedTuple):
    """One family of published checkpoints."""

    kind: str  # as `model_type` names it
    classes: dict[tuple[bool, bool], str]  # {(masked-LM head, NSP head): the reference's class}
    base: Names  # takes the prefix `{kind}.` but in files of the bare base model
    heads: Names
    pad: int  # padding's id, unless the config says another

    def of_class(self, paths: Iterable[str]) -> str:
        """The class of the reference that has just the heads among `paths`."""
        paths = set(paths)
        key = any(p.startswith(MASKED) for p in paths), any(p.startswith(CLASSIFIER) for p in paths)
        return self.classes.get(key) or self.classes[key[0], False]

    def places(self, prefix: str, layers: int) -> Iterator[tuple[Place, list[str]]]:
        """Each place and the names it goes by, of a model of that many layers."""
        for table, before in ((self.base, prefix), (self.heads, "")):
            for path, names in table.items():
                for layer in range(layers) if "{l}" in names[0] else (None,):
                    yield Place(path, layer), [before + name.format(l=layer) for name in names]

    def prefix(self, names: Iterable[str]) -> str:
        """What stands before the names of the base model in a file."""
        return f"{self.kind}." if any(name.startswith(f"{self.kind}.") for name in names) else ""


MASKED, POOLER, CLASSIFIER = "objective/masked/", "objective/pair/pooler/", "objective/pair/classifier/"


def _linear(path: str, name: str) -> Names:
    return {f"{path}/kernel": (f"{name}.weight",), f"{path}/bias": (f"{name}.bias",)}


def _norm(path: str, name: str) -> Names:
    """Files made from TensorFlow's say gamma and beta."""
    return {f"{path}/scale": (f"{name}.weight", f"{name}.gamma"), f"{path}/bias": (f"{name}.bias", f"{name}.beta")}


BASE: Names = {
    "encoder/embedding/token": ("embeddings.word_embeddings.weight",),
    "encoder/embedding/position": ("embeddings.position_embeddings.weight",),
    "encoder/embedding/token_type": ("embeddings.token_type_embeddings.weight",),
    **_norm("encoder/embedding_norm", "embeddings.LayerNorm"),
    **_linear("encoder/layers/attention/query", "encoder.layer.{l}.attention.self.query"),
    **_linear("encoder/layers/attention/key", "encoder.layer.{l}.attention.self.key"),
    **_linear("encoder/layers/attention/value", "encoder.layer.{l}.attention.self.value"),
    **_linear("encoder/layers/attention/output", "encoder.layer.{l}.attention.output.dense"),
    **_norm("encoder/layers/attention_norm", "encoder.layer.{l}.attention.output.LayerNorm"),
    **_linear("encoder/layers/mlp/in", "encoder.layer.{l}.intermediate.dense"),
    **_linear("encoder/layers/mlp/out", "encoder.layer.{l}.output.dense"),
    **_norm("encoder/layers/mlp_norm", "encoder.layer.{l}.output.LayerNorm"),
    **_linear("objective/pair/pooler", "pooler.dense"),
}

ARCHITECTURES = {
    "bert": Architecture(
        kind="bert",
        classes={(False, False): "BertModel", (True, False): "BertForMaskedLM", (True, True): "BertForPreTraining",
                 (False, True): "BertForNextSentencePrediction"},
        base=BASE,
        heads={
            **_linear("objective/masked/transform", "cls.predictions.transform.dense"),
            **_norm("objective/masked/norm", "cls.predictions.transform.LayerNorm"),
            "objective/masked/bias": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
            **_linear("objective/pair/classifier", "cls.seq_relationship"),
        },
        pad=0),
    "roberta": Architecture(
        kind="roberta",
        classes={(False, False): "RobertaModel", (True, False): "RobertaForMaskedLM"},
        base=BASE,
        heads={
            **_linear("objective/masked/transform", "lm_head.dense"),
            **_norm("objective/masked/norm", "lm_head.layer_norm"),
            "objective/masked/bias": ("lm_head.bias", "lm_head.decoder.bias"),
        },
        pad=1),
}  # fmt: skip

# The token table once more, under the name of the output layer that is tied to it.
TIED = {"bert": "cls.predictions.decoder.weight", "roberta": "lm_head.decoder.weight"}


def found(architecture: Architecture, names: Iterable[str], layers: int) -> dict[str, Place]:
    """{name: place} of those of `names` that have a place."""
    names = set(names)
    known = {name: place for place, of in architecture.places(architecture.prefix(names), layers) for name in of}
    known[TIED[architecture.kind]] = Place("encoder/embedding/token", None)
    return {name: place for name, place in known.items() if name in names}


def written(architecture: Architecture, paths: Iterable[str], layers: int) -> dict[str, Place]:
    """{name: place} of the parameters at `paths` by the names that the reference itself writes: those of the bare base
    model without a prefix."""
    paths = set(paths)
    heads = any(path in architecture.heads for path in paths)
    prefix = f"{architecture.kind}." if heads else ""
    return {of[0]: place for place, of in architecture.places(prefix, layers) if place.path in paths}
