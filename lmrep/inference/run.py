"""A trained run: vectors, predictions, and the network as a pure function."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lmrep.config.record import read
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data import prompts as data_prompts
from lmrep.data import tokenized_text, tokenizers
from lmrep.data.characters import add_characters
from lmrep.data.records.encoding import InputLayout
from lmrep.data.tokenized_text import TokenizedText
from lmrep.experiment import build, resolve
from lmrep.experiment.config import Experiment, stage_at
from lmrep.experiment.record import ALL_OBJECTIVES
from lmrep.experiment.record import capability as find_capability
from lmrep.inference import encode, evaluate_task, generate, pair_attention, special_tokens
from lmrep.inference.encode import EncodedText
from lmrep.inference.pair_attention import PairAttention
from lmrep.inference.streams import Streams
from lmrep.models import layer_choice
from lmrep.models.base import Context, Encoded, Inputs, Model, model_inputs
from lmrep.models.decoding import Sampling
from lmrep.models.layer_choice import Layers
from lmrep.objectives.base import Capability, FrozenParts, Objective
from lmrep.objectives.capabilities import ReplacedToken
from lmrep.storage.workdir import Start, read_config
from lmrep.tasks.encoding import layout_of
from lmrep.training.state import trainable

ATTENTION_TOKENS = 512  # in a batch: the attention probabilities of a full one would be large


@dataclasses.dataclass(frozen=True, eq=False)  # compared by identity, so that jax.jit takes its methods
class Run:
    """A trained run.

        run = lmrep.load("runs/quickstart")
        text, *_ = run.encode(["Return the value of the key.", "A list."], layers="all")
        text.hidden                             # f32[l + 1, t, d]: the embedding output and every layer
        list(zip(text.tokens, text.offsets, text.words))
        run.embed(["A list.", "A set."])        # f32[2, d], a vector for each text
        text.by_word("first")[-1]               # f32[w, d], a vector for each word
        run.predict(["Return the [MASK] of the key."])

    The result of `predict` depends on the objective: `fill_masks`, `generate` and `detect_replaced` are `predict` for
    masked, causal and replaced-token objectives.

    The network is a pure function of parameters and inputs, for use with `jax.jit` and `jax.grad`:

        inputs = run.inputs(["Return the value of the key.", "A list."])

        @jax.jit
        def loss(params, inputs):
            hidden = run.apply(params, inputs).hidden       # [b, t, d]
            return jnp.square(hidden[:, 0]).mean()

        gradient = jax.grad(loss)(run.params, inputs)"""

    directory: Path  # the workdir, or the local copy of a remote one
    step: int  # of the checkpoint
    experiment: Experiment  # its config
    tokenizer: tokenizers.Tokenizer  # the tokenizer of training
    model: Model  # the network
    objective: Objective  # the objective of the stage that wrote the checkpoint
    params: Tree  # arrays as in `objective.specs`, on the first device, and as in `objective.frozen` under "frozen"
    # the frozen parts that the objective reads, without teachers
    frozen: FrozenParts = dataclasses.field(default_factory=dict, repr=False)
    others: tuple["Run", ...] = ()  # runs whose predictions for labelled examples are averaged with this one's

    def __repr__(self) -> str:
        return (f"Run({str(self.directory)!r}, step={self.step:,})\n"
                f"  network    {self.model.name}: {P.count(trainable(self.params)):,} parameters, "
                f"{P.count(self.model.specs):,} of them in the encoder, of width {self.model.width}\n"
                f"  objective  {self.objective.name}\n"
                f"  tokenizer  {self.tokenizer.name}, {self.tokenizer.size:,} tokens")

    # Vectors

    # before the methods that have the modules' names
    embed = encode.embed
    prompt, generate_tokens = generate.prompt, generate.continuations
    continue_prompts = functools.cached_property(generate.compiled)
    end_tokens = functools.cached_property(special_tokens.ends)
    special_tokens = functools.cached_property(special_tokens.around)

    def encode(
        self, texts: Sequence[str], layers: str | int | Sequence[int] = "last", attention: bool = False,
        long: str = "refuse", pretokenized: bool = False, streams: int = 0,
    ) -> list[EncodedText]:
        """Computes the contextual vectors of each text, with its tokens, their characters and their words.

        The run's input format puts special tokens around a text: [CLS] and [SEP] for most formats, only an end of text
        for `stream` and for the source of an encoder-decoder. A converted checkpoint has [CLS] and [SEP], as far as its
        tokenizer has them, or T5's end of text.

        Args:
          texts: any number. Names of special tokens in them, such as "[MASK]", are read as these tokens.
          layers: "last", "all" (the embedding output and every layer), or numbers such as 4 or (3, 4) or "3,4", where
            negative ones count from the last; "sum:9,10,11,12" and "concat:9,10,11,12" combine layers.
          attention: whether to return the probabilities of self-attention too; for an encoder-decoder those of its
            encoder (`Run.attention` returns the others).
          long: for texts longer than the model: "refuse", or "windows" that overlap by half, where the vector of a
            token comes from the window in which it is nearest to the middle (`encode.windows`).
          pretokenized: whether texts are words separated by spaces, which are kept as they are.
          streams: for a network with a state, the number of streams that texts are dealt to, whose states are carried
            from text to text (`inference.streams`); 0: each text is read by itself.

        Raises:
          UserError: a text is too long or not valid Unicode; there is no such layer; attention is requested for a text
            longer than the model, from a network that has none, or with streams; a network has no state for streams.
        """
        texts = data_prompts.text_list(texts, "encode")
        if streams and attention:
            raise UserError("attention is not returned of streams; leave one of them out")
        if attention and "self" not in self.model.heads.attention:
            raise UserError(f"the network {self.model.name!r} has no self-attention; leave attention out" + " (Run."
                            "attention returns that of a source and a target)" * bool(self.model.heads.attention))
        tokenized, limit = [self.tokenize(text, None, pretokenized) for text in texts], self.model.max_length
        if attention and (too_long := [text for text in tokenized if limit and len(text.ids) > limit]):
            raise UserError(f"{too_long[0].text[:60]!r}... has {len(too_long[0].ids):,} tokens; attention is returned "
                            f"only for texts that the model reads at once, {limit} tokens at most; shorten it")
        encoded: list = [None] * len(tokenized)
        chosen = self.layers(layers)
        states = ((*item, None) for item in Streams(self, streams).vectors(tokenized, chosen)) if streams else (
            self.vectors(tokenized, chosen, long=long, attention=attention))
        for i, hidden, probabilities in states:
            encoded[i] = EncodedText(**vars(tokenized[i]), hidden=hidden, attention=probabilities)
        return encoded

    def tokenize(self, text: str, name: str | None = None, pretokenized: bool = False) -> TokenizedText:
        """Tokenizes a text, with `special_tokens` around it; messages call it `name`. Raises UserError if it is not
        Unicode."""
        tokenize = tokenized_text.tokenize_words if pretokenized else tokenized_text.tokenize_text
        return tokenize(text, self.tokenizer, name, self.special_tokens)

    def attention(self, pairs: Sequence[tuple[str, str]]) -> list[PairAttention]:
        """Computes the attention probabilities of an encoder-decoder for pairs of a source and a target: the decoder's
        attention to the source, and both self-attentions.

            [pair] = run.attention([("Ein Hund läuft.", "A dog runs.")])
            pair.cross.mean((0, 1))       # f32[t, s]: rows are the tokens pair.target, columns pair.source

        Args:
          pairs: any number. A source includes the words that a task's template adds.

        Raises:
          UserError: the network reads no source, or has no attention; a text is too long or not valid Unicode.
        """
        return pair_attention.of_texts(self, data_prompts.text_list(pairs, "attention", pairs=True))

    @functools.cached_property
    def pair_probabilities(self) -> Callable:
        """`pair_attention.probabilities`, compiled."""
        return jax.jit(functools.partial(pair_attention.probabilities, model=self.model))

    @functools.cached_property
    def input_layout(self) -> InputLayout:
        """The special tokens around labelled examples, for this network and tokenizer."""
        return layout_of(self.model, self.tokenizer, self.conditions_on)

    def completed(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Adds to a batch the characters of its words and, where [CLS] is the last token, the token type of [CLS]."""
        vocabulary = self.tokenizer.vocabulary
        if self.input_layout.cls_last and "token_type_ids" not in batch:
            batch = batch | {"token_type_ids": 2 * (batch["tokens"] == vocabulary.specials["cls"]).astype(np.int32)}
        return add_characters(batch, vocabulary)

    def layers(self, layers: str | int | Sequence[int]) -> Layers:
        """Parses the `layers` of `encode`. Raises UserError as `parse_layers`, and if the run has no network."""
        if not self.model.width:
            raise UserError(f"{self.directory} has no network of its own, only what was trained above frozen vectors; "
                            f"give the run that these come from ({', '.join(self.experiment.frozen.values())})")
        return layer_choice.parse_layers(layers, layer_choice.num_layers(self.model))

    def vectors(
        self, texts: Sequence[TokenizedText], layers: Layers, long: str = "refuse", attention: bool = False,
        names: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
        """Computes the vectors of texts, and yields (index of the text, hidden f32[n, t, d], attention f32[l, h, t, s]
        or None) in any order. `names` are the texts' names in messages.

        Raises:
          UserError: at once, if a text is too long.
        """
        around, limit = tuple(map(len, self.special_tokens)), self.model.max_length
        windows = [window for i, text in enumerate(texts) for window in encode.windows(
            i, text.ids, around, limit, long, names[i] if names else f"{text.text[:60]!r}...")]

        def states(batch: dict[str, np.ndarray]) -> tuple[Array, Array | None]:
            return self.states(self.params["encoder"], self.completed(batch), layers=layers, attention=attention)

        return encode.compute(states, windows, limit, self.tokenizer.vocabulary.specials.get("pad", 0),
                              ATTENTION_TOKENS if attention else None,
                              {"positions", "attention_mask"} <= self.model.inputs)

    def inputs(self, texts: Sequence[str | tuple[str, str]], length: int | None = None) -> Inputs:
        """Converts texts, or pairs of texts, to inputs of `apply`.

        Args:
          texts: one per example; a tuple of two is a pair.
          length: tokens to pad to; by default the next power of two, at least 16 and at most the model's length, so
            that batches have few shapes.

        Raises:
          UserError: a text is longer than the model or than `length`, or not valid Unicode.
        """
        texts, most = data_prompts.text_list(texts, "inputs", pairs=True), self.model.max_length
        examples = [special_tokens.example(self, text) for text in texts]
        longest = max((len(ids) for ids, _ in examples), default=1)
        size = min(length, most or length) if length else encode.padded_length(longest, encode.MIN_INPUT_LENGTH, most)
        for text, (ids, _) in zip(texts, examples, strict=True):
            if len(ids) > size:
                raise UserError(f"{str(text)[:60]!r}... has {len(ids):,} tokens; "
                                + (f"the model takes {size:,} at most: shorten it" if size == most else
                                   f"length is {size:,}: give a larger one, or shorten the text"))
        batch = encode.make_batch([[ids] for ids, _ in examples], size, len(examples),
                                  self.tokenizer.vocabulary.specials.get("pad", 0))
        batch["token_type_ids"] = np.zeros_like(batch["tokens"])
        for row, (_, types) in enumerate(examples):
            batch["token_type_ids"][row, : len(types)] = types
        batch = add_characters(batch, self.tokenizer.vocabulary)
        return model_inputs(self.model, batch, conditions_on=self.conditions_on)

    def apply(self, params: Tree, inputs: Inputs, key: Array | None = None, **options) -> Encoded:
        """Applies the network, a pure function of the arguments, for `jax.jit`, `jax.grad` and `jax.vmap`.

        Args:
          params: as `self.params`.
          inputs: as `self.inputs` returns them; `Inputs(tokens=...)` with i32[b, t] is enough without padding.
          key: for dropout, or None for none.
          **options: `layers=True`, `attention=True` or `at` i32[b, m], passed to the network's `encode`.

        Returns:
          `hidden` [b, t, d] and, if requested, `layers`, l + 1 arrays [b, t, d], and `attention` [l, b, h, t, s].
        """
        return self.model.encode(params["encoder"], inputs, key, **options)

    @functools.cached_property
    def states(self) -> Callable:
        """`encode.states`, compiled."""
        return jax.jit(functools.partial(encode.states, model=self.model, conditions_on=self.conditions_on),
                       static_argnames=("layers", "attention"))

    @property
    def conditions_on(self) -> Context:
        """What a position attends to, as in training: the left context or both sides."""
        return self.objective.uses.conditions_on

    # Predictions

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """The kinds of prediction that the run makes from texts."""
        return ALL_OBJECTIVES[self.objective.name].capabilities

    def capability_of(self, text: str) -> Capability:
        """Returns the capability for a text: the first that accepts it, or else the last. Raises UserError if the
        objective has none."""
        if not self.capabilities:
            raise UserError(f"{self.directory} was trained with objective {self.objective.name!r}, which predicts "
                            "nothing from texts; use its vectors with lmrep embed")
        return next((able for able in self.capabilities if able.accepts(text)), self.capabilities[-1])

    def predict(
        self, texts: Sequence[str], capability: str = "", names: Sequence[str | None] | None = None, **options: Any
    ) -> list[Any]:
        """Makes a prediction for each text, with the run's capabilities.

        Args:
          texts: any number.
          capability: the name of one of `capabilities`; by default that of `capability_of` for each text.
          names: the texts' names in messages.
          **options: fields of the capability's options, such as `k=5` or `temperature=0.7`. If the texts need several
            capabilities, each takes the options that it has.

        Raises:
          UserError: the run has no such capability, or lacks its head; a text is no prompt for it, or too long; an
            option is unknown or out of range.
        """
        types = tuple({type_ for able in self.capabilities for type_ in able.types}) or (str,)
        texts = data_prompts.text_list(texts, "predict", types=types)
        names = list(names or [None] * len(texts))
        fixed = find_capability(self.objective.name, capability) if capability else None
        chosen = [fixed or self.capability_of(text) for text in texts]
        predictions: list = [None] * len(texts)
        known = {able: {field.name for field in dataclasses.fields(able.options)} for able in self.capabilities}
        for able in dict.fromkeys(chosen):
            members = [i for i, other in enumerate(chosen) if other is able]
            others = set() if capability else set().union(*known.values()) - known[able]
            fields = {name: value for name, value in options.items() if name not in others}
            predicted = able.predict(self, [texts[i] for i in members], read(able.options, fields, ""),
                                     [names[i] for i in members])
            for i, prediction in zip(members, predicted, strict=True):
                predictions[i] = prediction
        return predictions

    def fill_masks(
        self, texts: Sequence[str], k: int = 5, names: Sequence[str | None] | None = None
    ) -> list[list[list[tuple[str, float]]]]:
        """Returns the k most probable tokens with their probabilities, for each [MASK] of each text. Raises UserError
        as `predict`."""
        return self.predict(data_prompts.text_list(texts, "fill_masks"), "fill_mask", names, k=k)

    def generate(
        self, texts: Sequence[str], tokens: int = 50, samples: int = 1, sampling: Sampling = Sampling(), seed: int = 0,
        names: Sequence[str | None] | None = None,
    ) -> list[list[str]]:
        """Samples `samples` continuations of each text, of up to `tokens` tokens, fewer if the document ends. The same
        seed gives the same continuations. Raises UserError as `predict`."""
        return self.predict(data_prompts.text_list(texts, "generate"), "generate_text", names, tokens=tokens,
                            samples=samples, seed=seed, **dataclasses.asdict(sampling))

    def detect_replaced(
        self, texts: Sequence[str], names: Sequence[str | None] | None = None
    ) -> list[list[ReplacedToken]]:
        """Returns a `ReplacedToken` for each token of each text, in order. Raises UserError as `predict`."""
        return self.predict(data_prompts.text_list(texts, "detect_replaced"), "detect_replaced", names)

    # Used by capabilities

    def with_objective(self, **fields: Any) -> "Run":
        """Returns the run with other `evaluation_fields` of its objective, as in `load`; the same run for equal fields.
        Raises UserError for other fields, or values that do not fit each other."""
        if (key := repr(sorted(fields.items()))) not in self._variants:
            experiment = resolve.with_objective_fields(self.experiment, fields)
            objective = build.objective(stage_at(experiment, self.step), self.model, self.tokenizer.vocabulary,
                                        self.frozen)
            self._variants[key] = dataclasses.replace(self, experiment=experiment, objective=objective)
        return self._variants[key]

    def with_params(self, params: Tree, step: int) -> "Run":
        """Returns the run with the parameters of another step of its stage; both share their compiled programs."""
        other = dataclasses.replace(self, params=params, step=step)
        for name in ("pair_probabilities", "states", "continue_prompts", *["_predict"] * bool(self.objective.predict)):
            other.__dict__[name] = getattr(self, name)
        return other

    @functools.cached_property
    def _variants(self) -> dict[str, "Run"]:
        return {}

    def require_head(self, heads: Sequence[str], description: str) -> None:
        """Raises UserError if the parameters have none of these heads; some converted checkpoints lack them."""
        if not set(heads) & self.params.get("objective", {}).keys():
            raise UserError(f"{self.directory} has no {description}; the checkpoint that it was converted from has "
                            f"none either. Train one with :init={self.directory}, or use vectors with lmrep embed")

    def require_network(self) -> None:
        """Raises UserError if the parameters lack a part of the network; some converted checkpoints have only the
        encoder of an encoder-decoder."""
        if missing := sorted(P.flatten(self.model.specs).keys() - P.flatten(self.params["encoder"]).keys()):
            raise UserError(f"{self.directory} has no {missing[0]}, and neither has the checkpoint that it was "
                            f"converted from. Train it with :init={self.directory}, or use vectors with lmrep embed")

    def predict_batch(self, batch: dict[str, np.ndarray], **static: Any) -> dict[str, np.ndarray]:
        """Applies the objective's `predict` to a batch, compiled; `static` are its static arguments."""
        return jax.device_get(self._predict(self.params, self.completed(batch), **static))

    score_records = evaluate_task.predict_records
    task_config = evaluate_task.task_config

    @functools.cached_property
    def _predict(self) -> Callable:
        return jax.jit(self.objective.predict, static_argnames="k")

    @functools.cached_property
    def converted(self) -> bool:
        """Whether the run was converted from a published checkpoint, not trained."""
        record = read_config(self.directory)
        return "train" not in record["data"] and "saved" not in record

    @functools.cached_property
    def recorded_start(self) -> Start | None:
        """What a converted left-to-right model reads first, where its files say it: those of a run that lmrep exported,
        and others whose tokenizer.json has a template with nothing after a text. None for other runs."""
        return read_config(self.directory).get("start") if self.conditions_on == Context.LEFT else None

    @functools.cached_property
    def start_token(self) -> int | None:
        """The token before a document's first one, or None (`special_tokens.start_token`)."""
        if self.recorded_start:
            return self.recorded_start["document"]
        stage = None if self.converted else stage_at(self.experiment, self.step)
        return special_tokens.start_token(stage, self.tokenizer.vocabulary)
