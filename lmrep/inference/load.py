"""A trained run, loaded from its workdir: vectors, predictions, and the network as a pure function."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lmrep.config.record import choose, read
from lmrep.core import params as P
from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import Array, Tree
from lmrep.data import tokenized_text, tokenizers
from lmrep.data.tokenized_text import TokenizedText
from lmrep.data.tokenizers import bpe
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, stage_at
from lmrep.inference import encode, generate, prompts
from lmrep.inference.encode import EncodedText, Layers
from lmrep.models.base import Encoded, Inputs, Model, model_inputs
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.base import Capability, Objective
from lmrep.objectives.capabilities import ReplacedToken, Sampling
from lmrep.storage import averaging, mirror
from lmrep.storage.checkpoints import Checkpoints
from lmrep.storage.workdir import read_config

SHORTEST_BATCH = 16  # tokens; `Run.inputs` pads to powers of two from here on


@dataclasses.dataclass(frozen=True, eq=False)  # compared by identity, so that jax.jit takes its methods
class Run:
    """A trained run.

        run = lmrep.load("runs/quickstart")
        text, *_ = run.encode(["Return the value of the key.", "A list."], layers="all")
        text.hidden                             # f32[l + 1, t, d]: the embedding output and every layer
        list(zip(text.tokens, text.offsets, text.words))
        text.pool("mean")[-1]                   # f32[d], a vector of the sentence
        text.by_word("first")[-1]               # f32[w, d], a vector for each word
        run.predict(["Return the [MASK] of the key."])

    What `predict` returns depends on the objective: `fill_masks`, `generate` and `detect_replaced` are its forms for
    masked, causal and replaced-token objectives.

    The network is a pure function of parameters and inputs, for one's own `jax.jit` and `jax.grad`:

        inputs = run.inputs(["Return the value of the key.", "A list."])

        @jax.jit
        def loss(params, inputs):
            hidden = run.apply(params, inputs).hidden       # [b, t, d]
            return jnp.square(hidden[:, 0]).mean()

        gradient = jax.grad(loss)(run.params, inputs)

    Attributes:
      directory: its workdir, or the copy of a remote one.
      step: of the checkpoint.
      experiment: its record.
      tokenizer: its own.
      model: the network.
      objective: of the stage that the checkpoint is of.
      params: arrays as `objective.specs`, on the first device.
    """

    directory: Path
    step: int
    experiment: Experiment
    tokenizer: tokenizers.Tokenizer
    model: Model
    objective: Objective
    params: Tree

    def __repr__(self) -> str:
        return (f"Run({str(self.directory)!r}, step={self.step:,})\n"
                f"  network    {self.model.name}: {P.count(self.model.specs):,} parameters, width {self.model.width}\n"
                f"  objective  {self.objective.name}\n"
                f"  tokenizer  {self.tokenizer.name}, {self.tokenizer.size:,} tokens")

    # Vectors

    def encode(
        self, texts: Sequence[str], layers: str | int | Sequence[int] = "last", attention: bool = False,
        long: str = "refuse",
    ) -> list[EncodedText]:
        """The contextual vectors of each text, with its tokens, their characters and their words.

        Args:
          texts: any number. The names of special tokens in them, "[MASK]" say, stand for these.
          layers: "last", "all" (the embedding output and every layer), or numbers as 4 or (3, 4) or "3,4", negative
            ones from the last; "sum:9,10,11,12" and "concat:9,10,11,12" make them one.
          attention: whether to return the attention probabilities too.
          long: what becomes of texts longer than the model: "refuse", or "windows" that overlap by half, a token's
            vector being that of the window in whose middle it is most nearly (`encode.windows`).

        Raises:
          UserError: a text is too long, or no Unicode text; there is no such layer; attention over windows, or of a
            network that has none.
        """
        if isinstance(texts, str):
            raise UserError(f"encode takes a list of texts; it was given one: encode([{texts[:40]!r}])")
        if attention and not self.model.attention:
            raise UserError(f"the network {self.model.name!r} has no attention probabilities; leave attention out")
        tokenized = [tokenized_text.tokenize_text(text, self.tokenizer) for text in texts]
        limit = self.model.max_length
        if attention and (far := [each for each in tokenized if limit and len(each.ids) > limit]):
            raise UserError(f"{far[0].text[:60]!r}... has {len(far[0].ids):,} tokens; attention is of texts that the "
                            f"model reads at once, {limit} tokens at most")
        found: list = [None] * len(tokenized)
        for i, hidden, maps in self.vectors(tokenized, self.layers(layers), long=long, attention=attention):
            found[i] = EncodedText(**vars(tokenized[i]), hidden=hidden, attention=maps)
        return found

    def layers(self, layers: str | int | Sequence[int]) -> Layers:
        """What `encode` takes as `layers`, as numbers of this model's. Raises UserError as `parse_layers`."""
        return encode.parse_layers(layers, self._num_layers)

    def vectors(
        self, texts: Sequence[TokenizedText], layers: Layers, long: str = "refuse", attention: bool = False,
        names: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
        """What `encode` is made of: (index of the text, hidden f32[n, t, d], attention f32[l, h, t, s] or None), in no
        particular order. `names` are what messages call the texts.

        Raises:
          UserError: at once, where a text is too long.
        """
        around = tuple(map(len, tokenized_text.special_tokens_around(self.tokenizer)))
        windows = [window for i, text in enumerate(texts) for window in encode.windows(
            i, text.ids, around, self.model.max_length, long, names[i] if names else f"{text.text[:60]!r}...")]
        run = functools.partial(self._states, self.params["encoder"], layers=layers, attention=attention)
        return encode.compute(
            run, windows, self.model.max_length, self.tokenizer.vocabulary.specials.get("pad", 0),
            512 if attention else None,  # the attention probabilities of a full batch would be large
            {"positions", "attention_mask"} <= self.model.inputs)

    def inputs(self, texts: Sequence[str | tuple[str, str]], length: int | None = None) -> Inputs:
        """Texts as `apply` takes them, a text or a pair of texts an example.

        Args:
          texts: any number; a tuple of two is a pair.
          length: tokens to pad to; by default the next power of two from 16 on, at most the model's length, so that
            batches of texts have few shapes.

        Raises:
          UserError: a text is longer than the model or than `length`, or no Unicode text.
        """
        examples = [self._example(text) for text in texts]
        limit, longest = self.model.max_length, max((len(ids) for ids, _ in examples), default=1)
        size = length or max(SHORTEST_BATCH, 1 << (longest - 1).bit_length())
        size = min(size, limit) if limit else size
        for text, (ids, _) in zip(texts, examples, strict=True):
            if len(ids) > size:
                raise UserError(f"{str(text)[:60]!r}... has {len(ids):,} tokens; "
                                + (f"the model takes {size:,} at most: shorten it" if size == limit else
                                   f"length is {size:,}: give a larger one, or shorten the text"))
        batch = {name: np.zeros((len(examples), size), np.int32) for name in ("segment_ids", "token_type_ids")}
        batch["tokens"] = np.full((len(examples), size), self.tokenizer.vocabulary.specials.get("pad", 0), np.int32)
        batch["positions"] = np.broadcast_to(np.arange(size, dtype=np.int32), (len(examples), size))
        for row, (ids, types) in enumerate(examples):
            batch["tokens"][row, : len(ids)], batch["segment_ids"][row, : len(ids)] = ids, 1
            batch["token_type_ids"][row, : len(ids)] = types
        return model_inputs(self.model, batch, context=self.context)

    def _example(self, text: str | tuple[str, str]) -> tuple[list[int], list[int]]:
        """(ids, token types) of a text or a pair, with the special tokens around them."""
        if isinstance(text, str):
            ids = tokenized_text.tokenize_text(text, self.tokenizer).ids.tolist()
            return ids, [0] * len(ids)
        first, second = (tokenized_text.tokenize_text(each, self.tokenizer).ids.tolist() for each in text)
        before, _ = tokenized_text.special_tokens_around(self.tokenizer)
        second = second[len(before):]
        return [*first, *second], [0] * len(first) + [1] * len(second)

    def apply(self, params: Tree, inputs: Inputs, key: Array | None = None, **options) -> Encoded:
        """The network as a pure function of its arguments, for one's own `jax.jit`, `jax.grad` and `jax.vmap`.

        Args:
          params: as `self.params`.
          inputs: as `self.inputs` makes them; `Inputs(tokens=...)` with i32[b, t] is enough where nothing is padding.
          key: for dropout, or None for none.
          **options: `layers=True`, `attention=True` or `at` i32[b, m], as the network's `encode` takes them.

        Returns:
          `hidden` [b, t, d] and, where asked for, `layers`, l + 1 of [b, t, d], and `attention` [l, b, h, t, s].
        """
        return self.model.encode(params["encoder"], inputs, key, **options)

    @functools.cached_property
    def _num_layers(self) -> int:
        return encode.num_layers(self.model)

    @functools.cached_property
    def _states(self) -> Callable:
        return jax.jit(functools.partial(encode.states, model=self.model, context=self.context),
                       static_argnames=("layers", "attention"))

    @property
    def context(self) -> str:
        """What a position is conditioned on, as the run was trained: "left" or "both"."""
        if self.objective is not None:
            return self.objective.context
        return "both" if "both" in self.model.context else "left"

    # Predictions

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """What it can be asked."""
        return OBJECTIVES[self.objective.name].capabilities

    def capability_of(self, text: str) -> Capability:
        """The capability that a text is a prompt for: the first that accepts it, or else the last.

        Raises:
          UserError: the objective has none.
        """
        if not self.capabilities:
            raise UserError(f"{self.directory} was trained with objective {self.objective.name!r}, which predicts "
                            "nothing from texts; ask for vectors (lmrep embed)")
        return next((each for each in self.capabilities if each.accepts(text)), self.capabilities[-1])

    def predict(
        self, texts: Sequence[str], capability: str = "", names: Sequence[str | None] | None = None, **options: Any
    ) -> list[Any]:
        """What the objective taught it, for each text.

        Args:
          texts: any number.
          capability: the name of one of `capabilities`; by default each text's own (`capability_of`).
          names: what messages call the texts.
          **options: fields of the capabilities' options, `k=5` or `temperature=0.7`.

        Raises:
          UserError: the run has no such capability, or lacks a head for it; a text is no prompt for it, or too long; an
            option is unknown or out of range.
        """
        names = list(names or [None] * len(texts))
        if capability:
            chosen = [self._capability(capability)] * len(texts)
        else:
            chosen = [self.capability_of(text) for text in texts]
        predictions: list = [None] * len(texts)
        for each in dict.fromkeys(chosen):
            members = [i for i, one in enumerate(chosen) if one is each]
            found = each.predict(self, [texts[i] for i in members], read(each.options, options, each.name),
                                 [names[i] for i in members])
            for i, prediction in zip(members, found, strict=True):
                predictions[i] = prediction
        return predictions

    def fill_masks(
        self, texts: Sequence[str], k: int = 5, names: Sequence[str | None] | None = None
    ) -> list[list[list[tuple[str, float]]]]:
        """For each text and each [MASK] in it, the k likeliest tokens with their probabilities; of ELECTRA, those of
        its generator. Raises UserError as `predict`."""
        return self.predict(texts, "fill_mask", names, k=k)

    def generate(
        self, texts: Sequence[str], tokens: int = 50, samples: int = 1, sampling: Sampling = Sampling(), seed: int = 0,
        names: Sequence[str | None] | None = None,
    ) -> list[list[str]]:
        """For each text `samples` continuations of up to `tokens` tokens; fewer where the document ends before. The
        same seed gives the same ones. Raises UserError as `predict`."""
        return self.predict(texts, "generate_text", names, tokens=tokens, samples=samples, seed=seed,
                            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)

    def detect_replaced(
        self, texts: Sequence[str], names: Sequence[str | None] | None = None
    ) -> list[list[ReplacedToken]]:
        """For each text a `ReplacedToken` for each of its tokens, in their order. Raises UserError as `predict`."""
        return self.predict(texts, "detect_replaced", names)

    def _capability(self, name: str) -> Capability:
        known = {each.name: each for each in self.capabilities}
        if name not in known:
            able = [key for key, row in OBJECTIVES.items() if name in {each.name for each in row.capabilities}]
            summary = next((each.summary for row in OBJECTIVES.values() for each in row.capabilities
                            if each.name == name), "unknown")
            raise UserError(f"{self.directory} was trained with objective {self.objective.name!r}, which has no "
                            f"capability {name!r} ({summary}); objectives that have it: {', '.join(able) or 'none'}")
        return choose(known, name, "capability")

    # What capabilities go by

    def require_head(self, heads: Sequence[str], description: str) -> None:
        """Raises UserError where the parameters have none of these heads, as those of some converted checkpoints."""
        if not set(heads) & self.params.get("objective", {}).keys():
            raise UserError(f"{self.directory} has no {description}; the checkpoint that it was converted from has none "
                            f"either. Train one with :init={self.directory}, or use its vectors with lmrep embed")

    def predict_batch(self, batch: dict[str, np.ndarray], **static: Any) -> dict[str, np.ndarray]:
        """The objective's `predict` of a batch, compiled; `static` are its static arguments."""
        return jax.device_get(self._predict(self.params, batch, **static))

    @functools.cached_property
    def _predict(self) -> Callable:
        return jax.jit(self.objective.predict, static_argnames="k")

    def prompt(self, text: str, name: str | None = None) -> list[int]:
        """The ids of a text after `start_token`, where there is one. A converted checkpoint continues a text from its
        first token, as its reference does; the start token stands for an empty text alone.

        Raises:
          UserError: the text is empty, and nothing stands before a document's first token.
        """
        before, after = map(len, tokenized_text.special_tokens_around(self.tokenizer))
        ids = tokenized_text.tokenize_text(text, self.tokenizer, name).ids.tolist()
        ids = ids[before : len(ids) - after]
        found = ids if self.start_token is None or (ids and self.converted) else [self.start_token, *ids]
        if not found:
            raise UserError(f"{name or 'a text'} is empty, and {self.directory} learned of no token before the first "
                            "one of a document; give a word at least")
        return found

    def generate_tokens(self, prompt: Sequence[int], options: Any, number: int, name: str) -> list[list[int]]:
        """Continuations of a prompt as ids, each up to where the document ends.

        Args:
          prompt: its ids.
          options: `tokens`, `samples`, `seed` and the fields of `Sampling`.
          number: of the prompt; its draws depend on it and on the seed.
          name: for messages.

        Raises:
          UserError: the prompt and its continuation are longer than the model.
        """
        limit, tokens = self.model.max_length, options.tokens
        if limit and len(prompt) + tokens > limit:
            raise UserError(f"{name} has {len(prompt):,} tokens, and {tokens:,} are to be generated; the model takes "
                            f"{limit:,} at most: ask for fewer (--tokens)")
        # Prompts of many lengths share a program: they are padded to a power of two.
        size = min(1 << (len(prompt) - 1).bit_length(), limit or 2**31)
        padded = np.zeros((options.samples, size), np.int32)
        padded[:, : len(prompt)] = prompt
        sampling = Sampling(options.temperature, options.top_k, options.top_p)
        key = jax.random.fold_in(jax.random.key(options.seed), number)
        found = self._generate(self.params, padded, len(prompt), key, sampling=sampling, tokens=tokens,
                               capacity=min(size + tokens, limit or 2**31))
        rows = np.asarray(found).tolist()
        return [row[: next((i for i, token in enumerate(row) if token in self._end_tokens), len(row))] for row in rows]

    @functools.cached_property
    def _generate(self) -> Callable:
        # Of a converted checkpoint, as by its reference, any token may follow.
        never = set() if self.converted else self._specials("pad", "cls", "mask", "unk", "bos") - self._end_tokens
        banned = never | set(range(self.tokenizer.size, self.model.vocab_size))  # rows of the table without a token
        function = functools.partial(generate.generate, model=self.model, objective=self.objective,
                                     banned_token_ids=tuple(sorted(banned)))
        return jax.jit(function, static_argnames=("sampling", "tokens", "capacity"))

    @functools.cached_property
    def converted(self) -> bool:
        """Whether it was made of a published checkpoint and never trained here."""
        return "train" not in read_config(self.directory)["data"]

    @functools.cached_property
    def start_token(self) -> int | None:
        """`prompts.start_token` of the stage that made the checkpoint."""
        stage = None if self.converted else stage_at(self.experiment, self.step)
        return prompts.start_token(stage, self.tokenizer.vocabulary)

    @functools.cached_property
    def _end_tokens(self) -> set[int]:
        """What ends a continuation: what ends documents. To GPT as it was published a line break does not."""
        ends = self._specials("eos", "sep")
        return {i for i in ends if self.tokenizer.tokens[i] != bpe.NEWLINE} if self.converted else ends

    def _specials(self, *roles: str) -> set[int]:
        special = self.tokenizer.vocabulary.specials
        return {special[role] for role in roles if role in special}


def load(directory: str | os.PathLike, step: int | None = None) -> Run:
    """The run in `directory`, at its newest checkpoint that verifies or at `step`. A remote one is fetched.

    Raises:
      UserError: there is no run.
      RunFault: no checkpoint verifies.
    """
    directory = mirror.local_copy(directory, step)
    record = read_config(directory)
    experiment = experiments.parse(record["config"])
    tokenizer = tokenizers.load(directory / "tokenizer")
    if tokenizer.fingerprint != record["data"]["tokenizer"]:
        raise RunFault(f"{directory / 'tokenizer'} is not the tokenizer that the run was trained with; restore it")
    model = build.model(experiment, tokenizer.vocabulary)
    with contextlib.closing(Checkpoints(directory / "checkpoints")) as checkpoints:
        steps = checkpoints.steps()
        if not steps:
            raise UserError(f"{directory} holds no checkpoint yet; train first: lmrep train --workdir={directory} ...")
        if step is not None and step not in steps:
            raise UserError(f"{directory} holds no checkpoint {step}; it holds {', '.join(map(str, steps))}")
        step = checkpoints.newest() if step is None else step
        params = averaging.parameters(checkpoints, step, experiment.evaluation.averaged)
    params = jax.device_put(params, jax.devices()[0])
    objective = build.objective(stage_at(experiment, step), model, tokenizer.vocabulary)
    return Run(directory, step, experiment, tokenizer, model, objective, params)
