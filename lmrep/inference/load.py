"""A trained model in hand: loaded from its workdir, asked from Python or inside one's own `jax.jit`."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import Array, Tree
from lmrep.data import tokenizers
from lmrep.data.tokenizers import bpe
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, stage_at
from lmrep.inference import encode, generate, prompts
from lmrep.inference.encode import Layers, Pieces, Representation
from lmrep.inference.generate import Sampling
from lmrep.inference.prompts import Doubt
from lmrep.models.base import Encoded, Inputs, Model
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.base import Objective
from lmrep.storage import averaging, mirror
from lmrep.storage.checkpoints import Checkpoints
from lmrep.storage.workdir import read_config


@dataclasses.dataclass(frozen=True, eq=False)  # one is equal to itself alone, so that jax.jit takes its methods
class Run:
    """A trained run, loaded.

        run = lmrep.load("runs/quickstart")
        value, *_ = run.encode(["Return the value of the key.", "A list."], layers="all")
        value.hidden                            # f32[l + 1, t, d]: the embedding output and every layer
        list(zip(value.pieces, value.offsets, value.words))
        value.pool("mean")[-1]                  # f32[d], a vector of the sentence
        value.by_word("first")[-1]              # f32[w, d], a vector for each word
        run.fill_masks(["Return the [MASK] of the key."])

    One that was trained with a causal objective continues texts instead: `run.extend(["Return the"], tokens=20)`. One
    of ELECTRA tells which words of a text were replaced: `run.spot_replaced(["Return the value of the sea."])`.

    Inside one's own program, as a pure function of parameters and inputs:

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
      params: arrays as `objective.specs`, whole on the first device.
    """

    directory: Path
    step: int
    experiment: Experiment
    tokenizer: tokenizers.Tokenizer
    model: Model
    objective: Objective
    params: Tree

    # Vectors

    def encode(
        self, texts: Sequence[str], layers: str | int | Sequence[int] = "last", attention: bool = False,
        long: str = "refuse",
    ) -> list[Representation]:
        """The contextual vectors of each text, with its pieces, their characters and their words.

        Args:
          texts: any number. The names of special tokens in them, "[MASK]" say, stand for these.
          layers: "last", "all" (the embedding output and every layer), or numbers as 4 or (3, 4) or "3,4", negative
            ones from the last; "sum:9,10,11,12" and "concat:9,10,11,12" make them one.
          attention: whether to return the attention probabilities too.
          long: what becomes of texts longer than the model: "refuse", or "windows" that overlap by half, a piece's
            vector being that of the window in whose middle it is most nearly (`representations.windows`).

        Raises:
          UserError: a text is too long, or no Unicode text; a layer is not there; attention over windows.
        """
        if isinstance(texts, str):
            raise UserError(f"encode takes a list of texts; it was given one: encode([{texts[:40]!r}])")
        pieces = [encode.read(text, self.tokenizer) for text in texts]
        if attention and (far := [p for p in pieces if self.model.length and len(p.ids) > self.model.length]):
            raise UserError(f"{far[0].text[:60]!r}... has {len(far[0].ids):,} tokens; attention is of texts that the "
                            f"model reads at once, {self.model.length} tokens at most")
        found: list = [None] * len(pieces)
        for i, hidden, maps in self.vectors(pieces, self.layers(layers), long=long, attention=attention):
            found[i] = Representation(**vars(pieces[i]), hidden=hidden, attention=maps)
        return found

    def layers(self, asked: str | int | Sequence[int]) -> Layers:
        """What `encode` takes as `layers`, as numbers of this model's. Raises UserError as `parse_layers`."""
        return encode.parse_layers(asked, self._depth)

    def vectors(
        self, pieces: Sequence[Pieces], layers: Layers, long: str = "refuse", attention: bool = False,
        names: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
        """What `encode` is made of: (number of the text, hidden f32[n, t, d], attention f32[l, h, t, s] or None) for
        each of `pieces`, in no particular order. `names` are what messages call them.

        Raises:
          UserError: at once, where a text is too long.
        """
        counts = tuple(map(len, encode.edges(self.tokenizer)))
        parts = [part for i, p in enumerate(pieces) for part in encode.windows(
            i, p.ids, counts, self.model.length, long, names[i] if names else f"{p.text[:60]!r}...")]
        run = functools.partial(self._states, self.params["encoder"], layers=layers, attention=attention)
        # Attention maps of a full batch would be large.
        return encode.compute(run, parts, self.model.length, self.tokenizer.vocabulary.specials.get("pad", 0),
                                       512 if attention else None, {"positions", "visibility"} <= self.model.takes)

    def inputs(self, texts: Sequence[str]) -> Inputs:
        """The texts as `apply` takes them: one a row, padded to the longest.

        Raises:
          UserError: a text is longer than the model, or no Unicode text.
        """
        pieces = [encode.read(text, self.tokenizer) for text in texts]
        counts = tuple(map(len, encode.edges(self.tokenizer)))
        for p in pieces:
            encode.windows(0, p.ids, counts, self.model.length, name=f"{p.text[:60]!r}...")
        size = max((len(p.ids) for p in pieces), default=0)
        tokens = np.full((len(pieces), size), self.tokenizer.vocabulary.specials.get("pad", 0), np.int32)
        segments = np.zeros_like(tokens)
        for row, p in enumerate(pieces):
            tokens[row, : len(p.ids)], segments[row, : len(p.ids)] = p.ids, 1
        positions = np.broadcast_to(np.arange(size, dtype=np.int32), tokens.shape)
        return encode.inputs_of(self.model, tokens, segments, positions, self._causal)

    def apply(self, params: Tree, inputs: Inputs, key: Array | None = None, **asked) -> Encoded:
        """The network as a pure function of its arguments, for one's own `jax.jit`, `jax.grad` and `jax.vmap`.

        Args:
          params: as `self.params`.
          inputs: as `self.inputs` makes them; `Inputs(tokens=...)` with i32[b, t] is enough where nothing is padding.
          key: for dropout, or None for none.
          **asked: `layers=True`, `attention=True` or `at` i32[b, m], as the model's `encode` takes them.

        Returns:
          `hidden` [b, t, d] and, where asked for, `layers` [l + 1, b, t, d] and `attention` [l, b, h, t, s].
        """
        return self.model.encode(params["encoder"], inputs, key, **asked)

    @functools.cached_property
    def _depth(self) -> int:
        return encode.depth(self.model)

    @functools.cached_property
    def _states(self) -> Callable:
        return jax.jit(functools.partial(encode.states, model=self.model, causal=self._causal),
                       static_argnames=("layers", "attention"))

    @property
    def _causal(self) -> bool:
        return self.objective is not None and self.objective.causal

    # Masks

    def fill_masks(
        self, texts: Sequence[str], k: int = 5, names: Sequence[str | None] | None = None
    ) -> list[list[list[tuple[str, float]]]]:
        """For each text and each [MASK] in it, the k likeliest pieces with their probabilities; of ELECTRA, those of
        its generator. `names` are what messages call the texts.

        Raises:
          UserError: a text has no [MASK], or is longer than the model; the run cannot fill masks.
        """
        if self.objective.predict is None:
            raise UserError(f"{self.directory} was not trained to fill masks but with objective "
                            f"{self.objective.name!r}")
        own = self.params.get("objective", {})
        if self.answers == "replaced" and "generator_head" not in own:
            raise UserError(f"{self.directory} has no generator to fill masks with, as the checkpoint that it was "
                            f"converted from; give texts without {self.tokenizer.mask_token}, to be told which of "
                            "their words were replaced")
        if self.answers != "replaced" and "masked" not in own:
            raise UserError(f"{self.directory} has no masked-LM head, as the checkpoint that it was converted from; "
                            "train one (init=), or ask for vectors (lmrep embed)")
        special = self.tokenizer.vocabulary.specials
        rows = prompts.masked_rows(texts, self.tokenizer, self.model.length, names)
        answers: list = [None] * len(rows)
        for members in prompts.alike(rows):
            batch = prompts.mask_batch([rows[i] for i in members], special["pad"], special["mask"], self.model.length)
            found = jax.device_get(self._predict(self.params, batch, k=min(k, self.tokenizer.size)))
            for row, i in enumerate(members):
                number = int((rows[i] == special["mask"]).sum())
                answers[i] = [
                    [(self.tokenizer.piece(int(w)), float(p)) for w, p in zip(words, shares, strict=True)]
                    for words, shares in zip(found["words"][row], found["probabilities"][row], strict=True)][:number]
        return answers

    # Replaced tokens

    def spot_replaced(
        self, texts: Sequence[str], names: Sequence[str | None] | None = None
    ) -> list[list[Doubt]]:
        """For each text a `Doubt` for each of its pieces, in their order. `names` are what messages call the texts.

        Raises:
          UserError: the run was not trained with replaced_token; a text is longer than the model, or no Unicode text.
        """
        if self.answers != "replaced":
            raise UserError(f"{self.directory} was not trained to tell which words were replaced but with objective "
                            f"{self.objective.name!r}; train one with objective=replaced_token")
        if not {"discriminator", "masked"} & self.params.get("objective", {}).keys():
            raise UserError(f"{self.directory} has no head that tells tokens apart, as the checkpoint that it was "
                            "converted from; train one (init=), or ask for vectors (lmrep embed)")
        pad, longest = self.tokenizer.vocabulary.specials["pad"], self.model.length
        read = prompts.read_whole(texts, self.tokenizer, longest, names)
        answers: list = [None] * len(read)
        for members in prompts.alike([each.ids for each in read]):
            batch = prompts.batch([read[i].ids for i in members], pad, longest)
            found = jax.device_get(self._predict(self.params, batch)["replaced"])
            for row, i in enumerate(members):
                each = zip(found[row], read[i].offsets, read[i].words, strict=False)  # padding has neither
                answers[i] = [Doubt(texts[i][start:end], start, end, float(p))
                              for p, (start, end), word in each if word is not None]
        return answers

    # Continuations

    def extend(
        self, texts: Sequence[str], tokens: int = 50, samples: int = 1, how: Sampling = Sampling(), seed: int = 0,
        names: Sequence[str | None] | None = None,
    ) -> list[list[str]]:
        """For each text `samples` continuations of up to `tokens` tokens; fewer where the document ends before. The
        same seed gives the same ones. `names` are what messages call the texts.

        Raises:
          UserError: the run was not trained to continue texts; a text and its continuation are longer than the model;
            the seed is out of range.
        """
        if self.objective.follow is None:
            raise UserError(f"{self.directory} was not trained to continue texts but with objective "
                            f"{self.objective.name!r}; train one with objective=causal")
        if not 0 <= seed < 2**32:
            raise UserError(f"seed is {seed}; expected 0 to {2**32 - 1:,}")
        answers = []
        for number, (text, name) in enumerate(zip(texts, names or [None] * len(texts), strict=True)):
            prompt = self.prompt(text, name)
            if self.model.length and len(prompt) + tokens > self.model.length:
                raise UserError(f"{name or repr(text[:60])} has {len(prompt):,} tokens, and {tokens:,} are to follow; "
                                f"the model takes {self.model.length:,} at most: ask for fewer (--tokens)")
            # Prompts of many lengths share a program: they are filled up to a power of two.
            filled = min(1 << (len(prompt) - 1).bit_length(), self.model.length or 2**31)
            room = min(filled + tokens, self.model.length or 2**31)
            padded = np.zeros((samples, filled), np.int32)
            padded[:, : len(prompt)] = prompt
            key = jax.random.fold_in(jax.random.key(seed), number)
            found = self._extend(self.params, padded, len(prompt), key, how=how, tokens=tokens, room=room)
            before, each = self.tokenizer.decode(prompt), []
            for row in np.asarray(found).tolist():
                end = next((i for i, token in enumerate(row) if token in self._ends), len(row))
                each.append(prompts.beyond(before, self.tokenizer.decode([*prompt, *row[:end]])))
            answers.append(each)
        return answers

    def prompt(self, text: str, name: str | None = None) -> list[int]:
        """The ids of a text after `opening`, where there is one. A converted checkpoint continues a text from its first
        word, as its reference does; what opens documents stands for an empty one alone.

        Raises:
          UserError: the text is empty, and nothing stands before a document's first token.
        """
        before, after = map(len, encode.edges(self.tokenizer))
        ids = encode.read(text, self.tokenizer, name).ids.tolist()
        ids = ids[before : len(ids) - after]
        found = ids if self.opening is None or (ids and self.converted) else [self.opening, *ids]
        if not found:
            raise UserError(f"{name or 'a text'} is empty, and {self.directory} learned of no token before the first "
                            "one of a document; give a word at least")
        return found

    @functools.cached_property
    def converted(self) -> bool:
        """Whether it was made of a published checkpoint and never trained here."""
        return "train" not in read_config(self.directory)["data"]

    @functools.cached_property
    def opening(self) -> int | None:
        """`questions.opening` of the stage that made the checkpoint."""
        stage = None if self.converted else stage_at(self.experiment, self.step)
        return prompts.opening(stage, self.tokenizer.vocabulary)

    @functools.cached_property
    def _ends(self) -> set[int]:
        """What ends a continuation: what ends documents here. To GPT as it was published a line break is none of it."""
        ends = self._specials("eos", "sep")
        return {i for i in ends if self.tokenizer.pieces[i] != bpe.NEWLINE} if self.converted else ends

    def _specials(self, *roles: str) -> set[int]:
        special = self.tokenizer.vocabulary.specials
        return {special[role] for role in roles if role in special}

    @functools.cached_property
    def _extend(self) -> Callable:
        # Of a converted checkpoint, as by its reference, any piece may follow.
        never = set() if self.converted else self._specials("pad", "cls", "mask", "unk", "bos") - self._ends
        barred = never | set(range(self.tokenizer.size, self.model.vocabulary))  # rows that are no words
        extend = functools.partial(generate.extend, model=self.model, objective=self.objective,
                                   barred=tuple(sorted(barred)))
        return jax.jit(extend, static_argnames=("how", "tokens", "room"))

    @property
    def answers(self) -> str:
        """What it can be asked in words, as `objectives.Kind.answers` says it."""
        return OBJECTIVES[self.objective.name].answers

    @functools.cached_property
    def _predict(self) -> Callable:
        return jax.jit(self.objective.predict, static_argnames="k")


def load(directory: str | os.PathLike, step: int | None = None) -> Run:
    """The run in `directory`, at its newest checkpoint that verifies or at `step`. A remote one is fetched.

    Raises:
      UserError: there is no run.
      RunFault: no checkpoint verifies.
    """
    directory = mirror.here(directory, step)
    record = read_config(directory)
    experiment = experiments.parse(record["config"])
    tokenizer = tokenizers.load(directory / "tokenizer")
    if tokenizer.fingerprint != record["data"]["tokenizer"]:
        raise RunFault(f"{directory / 'tokenizer'} is not the tokenizer that the run was trained with; restore it")
    model = build.model(experiment, tokenizer.vocabulary)
    checkpoints = Checkpoints(directory / "checkpoints")
    with contextlib.closing(checkpoints):
        steps = checkpoints.steps()
        if not steps:
            raise UserError(f"{directory} holds no checkpoint yet; train first: lmrep train --workdir={directory} ...")
        if step is not None and step not in steps:
            raise UserError(f"{directory} holds no checkpoint {step}; it holds {', '.join(map(str, steps))}")
        step = checkpoints.newest() if step is None else step
        params = averaging.parameters(checkpoints, step, experiment.evaluation.averaged)
    params = jax.device_put(params, jax.devices()[0])
    return Run(directory, step, experiment, tokenizer, model, build.objective(
        stage_at(experiment, step), model, tokenizer.vocabulary), params)


