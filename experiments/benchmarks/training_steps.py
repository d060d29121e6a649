"""Training steps of lmrep and of Hugging Face transformers on the same network, for the benchmarks beside this file.

The scripts import this from their own directory: `python experiments/benchmarks/NAME.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep import optimizers
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, name_of, transformer
from lmrep.objectives import OBJECTIVES
from lmrep.planning import flops
from lmrep.training import state
from lmrep.training.step import prepare_keys, train_step

SPECIALS = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
T5_SPECIALS, SENTINELS = {"pad": 0, "eos": 1, "unk": 2}, 100  # the last ids of the vocabulary stand for spans
IGNORED = -100  # the label of a position that transformers does not predict
MASKED = 0.15  # fraction of the tokens that is predicted


class System(NamedTuple):
    """A network and how it is trained.

    Attributes:
      config: of the network, a record of one of `MODELS`.
      objective: its name.
      recipe: name of the optimizer's.
      batch_size, length: of lmrep's batches.
      fields: of the objective's config, where they are not the defaults.
    """

    config: Any
    objective: str
    recipe: str
    batch_size: int = 16
    length: int = 128
    fields: Mapping[str, Any] = {}


def build(system, execution=Execution()):
    """lmrep's (objective, optimizer)."""
    vocab, definition, name = system.config.vocab, OBJECTIVES[system.objective], name_of(system.config)
    vocabulary = Vocabulary(vocab, SPECIALS, np.ones(vocab, bool), np.ones(vocab, np.int64))
    if system.objective == "span_corruption":
        ids = range(vocab - 1, vocab - 1 - SENTINELS, -1)
        vocabulary = replace(vocabulary, specials=T5_SPECIALS, sentinels=tuple(ids))
    network = MODELS[name].build(system.config, execution, name)
    objective = definition.build(definition.config(**system.fields), network, vocabulary)
    return objective, optimizers.build(optimizers.recipe(system.recipe), objective.specs, 1_000_000)


def compiled_step(objective, optimizer, batch):
    """(the first state, the compiled step (state, batch) -> (state, metrics), to which the state is donated)."""
    current = jax.jit(partial(state.create, objective, optimizer, len(batch["tokens"])))(0)
    step = jax.jit(partial(train_step, objective=objective, optimizer=optimizer, seed=0), donate_argnums=0)
    return current, step.lower(current, batch).compile()


class ObjectiveSteps:
    """Training with lmrep on batches in turn. `state` may be replaced; `products` are the matrix products of a step, of
    which `flops` are the floating-point operations."""

    def __init__(self, objective, optimizer, batches):
        self._batches = [jax.tree.map(jnp.asarray, batch) for batch in batches]
        self.products = flops.products_of_train_step(objective, optimizer, self._batches[0])
        self.flops = flops.total(self.products)
        self.state, self._step = compiled_step(objective, optimizer, self._batches[0])

    def run(self, i):
        """Starts a step on batch i modulo their number."""
        self.state, self._metrics = self._step(self.state, self._batches[i % len(self._batches)])

    def wait(self):
        """Returns when all steps are done."""
        jax.block_until_ready((self.state, self._metrics))

    def run_to_end(self, i):
        """`run`, and `wait`."""
        self.run(i)
        self.wait()

    def text(self):
        """The optimized HLO of a step."""
        return self._step.as_text()

    def last(self):
        """(loss, norm of the gradient) of the last step."""
        return tuple(float(self._metrics[name][0]) for name in ("loss", "gradient_norm"))


class LmrepSteps(ObjectiveSteps):
    """Training of a system."""

    def __init__(self, system, batches, execution=Execution()):
        super().__init__(*build(system, execution), batches)


class TransformersSteps:
    """As `LmrepSteps`, with transformers on PyTorch: SDPA, gradient clipping, fused AdamW.

    Args:
      system: the network.
      batches: (input ids, attention mask or None, labels) each; for span corruption those of lmrep, whose spans are
        drawn here, outside of the steps.
      compiled: whether to use torch.compile.
      device: of PyTorch.
      dtype: "bfloat16" runs the forward pass under autocast, with float32 parameters.
      predicted_only: as in `_masked` and `_electra`.
    """

    def __init__(self, system, batches, compiled=False, device="cpu", dtype="float32", predicted_only=False):
        import torch
        from transformers import logging

        logging.set_verbosity_error()
        self._torch, self._device = torch, device
        batches = corrupted(system, batches) if system.objective == "span_corruption" else batches
        self._batches = [[None if x is None else torch.tensor(x, dtype=torch.int64, device=device) for x in batch]
                         for batch in batches]
        make = {"masked": partial(_masked, predicted_only=predicted_only), "causal": _gpt2, "span_corruption": _t5,
                "replaced_token": partial(_electra, predicted_only=predicted_only)}[system.objective]
        with torch.device(device):
            self._parameters, self._loss = make(system, torch.compile if compiled else lambda f: f)
        self._autocast = partial(torch.autocast, device, torch.bfloat16, enabled=dtype == "bfloat16")
        self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-4, weight_decay=0.01, fused=True)

    def run(self, i):
        """As `ObjectiveSteps.run`."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            total = self._loss(*self._batches[i % len(self._batches)])
        total.backward()
        norm = self._torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._last = total.detach(), norm

    def wait(self):
        """As `ObjectiveSteps.wait`."""
        if self._device != "cpu":
            self._torch.cuda.synchronize()

    def run_to_end(self, i):
        """As `ObjectiveSteps.run_to_end`."""
        self.run(i)
        self.wait()

    def last(self):
        """As `ObjectiveSteps.last`."""
        return tuple(x.item() for x in self._last)


def _masked(system, compiled, predicted_only):
    """(parameters, loss of a batch) of `BertForMaskedLM`, or of `ModernBertForMaskedLM` for a network with a window,
    with `predicted_only` with logits at predicted positions only."""
    from transformers import BertConfig, BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

    c = system.config
    if c.window:
        model = ModernBertForMaskedLM(ModernBertConfig(
            vocab_size=c.vocab, hidden_size=c.width, num_hidden_layers=c.layers, num_attention_heads=c.heads,
            intermediate_size=c.mlp, max_position_embeddings=c.max_length, local_attention=2 * c.window,
            global_attn_every_n_layers=c.global_every, pad_token_id=SPECIALS["pad"], sparse_prediction=predicted_only,
            attn_implementation="sdpa")).train()
        return list(model.parameters()), _labelled(compiled(model))
    model = BertForMaskedLM(BertConfig(
        vocab_size=c.vocab, hidden_size=c.width, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        intermediate_size=c.mlp, max_position_embeddings=c.max_length, hidden_act="gelu_new",
        hidden_dropout_prob=c.dropout, attention_probs_dropout_prob=c.attention_dropout,
        attn_implementation="sdpa")).train()
    return list(model.parameters()), _labelled(compiled(model))


def _gpt2(system, compiled):
    """As `_masked`, for `GPT2LMHeadModel`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    c = system.config
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=c.vocab, n_positions=c.max_length, n_embd=c.width, n_layer=c.layers, n_head=c.heads, n_inner=c.mlp,
        resid_pdrop=c.dropout, embd_pdrop=c.dropout, attn_pdrop=c.attention_dropout, use_cache=False,
        attn_implementation="sdpa")).train()
    model.loss_type = "ForCausalLM"  # its default, of which a warning would split the compiled program
    return list(model.parameters()), _labelled(compiled(model))


def _labelled(forward):
    return lambda tokens, mask, labels: forward(input_ids=tokens, attention_mask=mask, labels=labels).loss


def _t5(system, compiled):
    """As `_masked`, for `T5ForConditionalGeneration`."""
    model = t5(system.config).train()
    return list(model.parameters()), _labelled(compiled(model))


def t5(c):
    """transformers' network of the sizes of an `encoder_decoder.Config`, with random parameters."""
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(
        vocab_size=c.vocab, d_model=c.width, d_kv=c.k, d_ff=c.mlp, num_layers=c.layers, num_heads=c.heads,
        dropout_rate=c.dropout, decoder_start_token_id=0, use_cache=False, attn_implementation="sdpa"))
    for module in model.modules():
        if type(module).__name__ == "T5Attention":  # its config has one rate for all dropout
            module.dropout = c.attention_dropout
    return model


def corrupted(system, batches):
    """(sources, attention mask, labels) of transformers, with the spans that lmrep's objective draws."""
    objective, _ = build(system)
    prepare = jax.jit(lambda batch: objective.prepare(prepare_keys(objective, batch, 0, np.int32(0)), batch))
    found = [jax.device_get(prepare(batch)) for batch in batches]
    return [(batch["source"]["tokens"], batch["source"]["segment_ids"],
             np.where(batch["weights"] > 0, batch["targets"], IGNORED)) for batch in found]


def _electra(system, compiled, predicted_only):
    """As `_masked`, for `ElectraForMaskedLM` and `ElectraForPreTraining` with the same embeddings, in one step.

    With `predicted_only`, the generator has logits at predicted positions only.
    """
    import torch
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    def config(c):
        return ElectraConfig(
            vocab_size=c.vocab, embedding_size=c.table_width, hidden_size=c.width, num_hidden_layers=c.layers,
            num_attention_heads=c.heads, intermediate_size=c.mlp, max_position_embeddings=c.max_length,
            hidden_dropout_prob=c.dropout, attention_probs_dropout_prob=c.attention_dropout,
            attn_implementation="sdpa")

    c, m = system.config, predictions(system.length)
    fraction = system.fields.get("generator", 0.25)
    generator = ElectraForMaskedLM(config(transformer.generator_config(c, fraction))).train()
    encoder = ElectraForPreTraining(config(c)).train()
    encoder.electra.embeddings = generator.electra.embeddings
    parameters = list({id(p): p for model in (generator, encoder) for p in model.parameters()}.values())

    def loss(inputs, mask, labels):
        # A fixed number of positions, the predicted ones first: a mask as index would split the compiled program.
        positions = (labels != IGNORED).int().sort(dim=1, descending=True, stable=True).indices[:, :m]
        targets = labels.gather(1, positions)
        if predicted_only:
            hidden = generator.electra(input_ids=inputs, attention_mask=mask).last_hidden_state
            logits = generator.generator_lm_head(generator.generator_predictions(_at(hidden, positions)))
            mlm_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        else:
            output = generator(input_ids=inputs, attention_mask=mask, labels=labels)
            mlm_loss, logits = output.loss, _at(output.logits, positions)
        with torch.no_grad():  # samples a token where the cumulative probability exceeds a uniform random number
            sums = logits.float().softmax(-1).cumsum(-1)
            draws = sums[..., -1:] * torch.rand(targets.shape, device=inputs.device)[..., None]
            sampled = torch.searchsorted(sums, draws).clamp_(max=c.vocab - 1)[..., 0]
        shown = torch.where(targets == IGNORED, inputs.gather(1, positions), sampled)
        corrupted = inputs.scatter(1, positions, shown)
        replaced = (corrupted != torch.where(labels == IGNORED, inputs, labels)).long()
        return mlm_loss + 50 * encoder(input_ids=corrupted, attention_mask=mask, labels=replaced).loss

    return parameters, compiled(loss)


def _at(x, positions):
    """x [b, t, d] at positions [b, m] -> [b, m, d]."""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))


def predictions(length):
    """The number of predicted tokens among that many."""
    return max(1, round(MASKED * length))


def mask_tokens(tokens, segments, rng):
    """(inputs, labels) of transformers: 15 % of the real tokens of each sequence are replaced by [MASK]."""
    inputs, labels = tokens.copy(), np.full_like(tokens, IGNORED)
    for i in range(len(tokens)):
        real = segments[i] > 0
        maskable = real & (tokens[i] != SPECIALS["cls"]) & (tokens[i] != SPECIALS["sep"])
        chosen = rng.permutation(np.flatnonzero(maskable))[: predictions(int(real.sum()))]
        labels[i, chosen], inputs[i, chosen] = tokens[i, chosen], SPECIALS["mask"]
    return inputs, labels


def lmrep_batch(tokens, segment_ids=None, positions=None):
    """lmrep's batch of tokens [b, t]; by default, every sequence is one text without padding."""
    def ints(x):
        return np.ascontiguousarray(np.broadcast_to(x, tokens.shape), np.int32)

    return {"tokens": ints(tokens), "segment_ids": ints(1 if segment_ids is None else segment_ids),
            "positions": ints(np.arange(tokens.shape[1]) if positions is None else positions),
            "token_type_ids": ints(0), "example": np.arange(len(tokens), dtype=np.int32)}
