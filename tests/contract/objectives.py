"""Five small objectives that use every part of the contract between objectives and the trainer."""

import jax
import jax.numpy as jnp

from lmrep.core.params import ParamSpec, normal
from lmrep.objectives.base import Carry, Objective
from lmrep.objectives.outputs import normalize_weights, sums

V, D = 12, 8  # vocabulary, width


def table(vocab_size=V, columns=D, axes=("vocab", "embed")):
    return ParamSpec((vocab_size, columns), axes, normal(0.3))


def nll_of(logits, targets):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]


def weighted_sum(nll, weights):
    return (nll * weights).sum(), sums(weights > 0, nll=nll)


def recurrent() -> Objective:
    """Next-token prediction by an Elman network whose state passes from batch to batch where `reset` is 0."""

    def prepare(keys, batch):
        return batch | {"weights": normalize_weights(batch["segment_ids"][:, 1:] > 0)}

    def loss(params, batch, key, carry):
        encoder = params["encoder"]
        start = carry.per_example * (1 - batch["reset"])[:, None].astype(jnp.float32)

        def step(state, x):
            state = jnp.tanh(x + state @ encoder["recurrent"])
            return state, state

        last, states = jax.lax.scan(step, start, encoder["token"][batch["tokens"]].swapaxes(0, 1))
        logits = states.swapaxes(0, 1)[:, :-1] @ params["objective"]["output"]
        total, metrics = weighted_sum(nll_of(logits, batch["tokens"][:, 1:]), batch["weights"])
        return total, (metrics, Carry(jax.lax.stop_gradient(last), carry.shared + 1))

    return Objective(
        "recurrent",
        specs={"encoder": {"token": table(), "recurrent": table(D, D, (None, None))},
               "objective": {"output": table(D, V, ("embed", "vocab"))}},
        prepare=prepare, loss=loss,
        carry=lambda batch_size: Carry(jnp.zeros((batch_size, D)), jnp.float32(0)),  # shared: a count of microbatches
        penalty=lambda params: 1e-3 * jnp.square(params["encoder"]["recurrent"]).sum(),
    )


def distillation() -> Objective:
    """Matches a frozen teacher's distribution; the hidden token of each example is drawn from its key."""

    def prepare(keys, batch):
        position = jax.vmap(lambda key: jax.random.randint(key, (), 0, batch["tokens"].shape[1]))(keys.per_example)
        return batch | {"position": position, "weights": normalize_weights(jnp.ones(len(position)))}

    def loss(params, batch, key, carry):
        visible = jnp.arange(batch["tokens"].shape[1]) != batch["position"][:, None]
        def logits(p):
            return (p["token"][batch["tokens"]] * visible[..., None]).sum(1) @ p["token"].T

        teacher = jax.nn.softmax(logits(params["frozen"]["teacher"]))
        nll = -(teacher * jax.nn.log_softmax(logits(params["encoder"]))).sum(-1)
        total, metrics = weighted_sum(nll, batch["weights"])
        return total, (metrics, carry)

    return Objective("distillation", specs={"encoder": {"token": table()}, "objective": {}},
                     frozen={"teacher": {"token": table()}}, prepare=prepare, loss=loss)


def fading(steps: int) -> Objective:
    """Predicts hidden tokens from the sum of the others. The fraction of tokens that are hidden falls with the step,
    from 1 to 0 after `steps`; on validation it is 1 at every step."""

    def prepare(keys, batch):
        t = batch["tokens"].shape[1]
        count = jnp.round(t * (1 - keys.step / steps)).astype(jnp.int32)
        rank = jax.vmap(lambda key: jax.random.permutation(key, t))(keys.per_example)
        return batch | {"hidden": rank < count, "weights": normalize_weights(rank < count)}

    def loss(params, batch, key, carry):
        seen = params["encoder"]["token"][batch["tokens"]] * ~batch["hidden"][..., None]
        logits = seen.sum(1, keepdims=True) @ params["encoder"]["token"].T
        nll = nll_of(jnp.broadcast_to(logits, (*batch["tokens"].shape, V)), batch["tokens"])
        total, metrics = weighted_sum(nll, batch["weights"])
        return total, (metrics | sums(jnp.ones(batch["tokens"].shape), rate=batch["hidden"]), carry)

    return Objective("fading", specs={"encoder": {"token": table()}, "objective": {}}, prepare=prepare, loss=loss)


def encoder_decoder() -> Objective:
    """Predicts the target from a summary of `context`, a field that no other objective has."""

    def prepare(keys, batch):
        return batch | {"weights": normalize_weights(batch["segment_ids"] > 0)}

    def loss(params, batch, key, carry):
        p = params["encoder"]
        summary = jnp.tanh(p["source"][batch["context"]].mean(1, keepdims=True))
        before = jnp.pad(batch["tokens"], ((0, 0), (1, 0)))[:, :-1]
        logits = (p["target"][before] + summary) @ params["objective"]["output"]
        total, metrics = weighted_sum(nll_of(logits, batch["tokens"]), batch["weights"])
        return total, (metrics, carry)

    return Objective(
        "encoder_decoder", prepare=prepare, loss=loss,
        specs={"encoder": {"source": table(), "target": table()}, "objective": {"output": table(D, V)}})


def cloze(trained: str) -> Objective:
    """Predicts a masked token from the mean of the others, with the parameters of `trained`, "encoder" or "generator".
    With the generator the encoder is unused, and a second stage starts the encoder from it."""

    def prepare(keys, batch):
        position = jax.vmap(lambda key: jax.random.randint(key, (), 0, batch["tokens"].shape[1]))(keys.per_example)
        target = jnp.take_along_axis(batch["tokens"], position[:, None], 1)[:, 0]
        return batch | {"position": position, "targets": target, "weights": normalize_weights(jnp.ones(len(position)))}

    def loss(params, batch, key, carry):
        p = params["encoder"] if trained == "encoder" else params["objective"]["generator"]
        visible = jnp.arange(batch["tokens"].shape[1]) != batch["position"][:, None]
        hidden = jnp.tanh((p["token"][batch["tokens"]] * visible[..., None]).sum(1))
        total, metrics = weighted_sum(nll_of(hidden @ p["token"].T, batch["targets"]), batch["weights"])
        return total, (metrics, carry)

    own = {"generator": {"token": table()}} if trained == "generator" else {}
    return Objective(f"cloze_{trained}", specs={"encoder": {"token": table()}, "objective": own},
                     prepare=prepare, loss=loss)
