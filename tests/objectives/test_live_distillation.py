"""The losses of distillation against PyTorch's, on the same logits and hidden states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.objectives import teaching
from lmrep.objectives.teaching import Logits

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")

B, T, V, D, TEMPERATURE = 3, 7, 31, 12, 2.0
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def drawn():
    """Logits, as vectors times a table plus a bias, hidden states, targets, and which positions are real and masked."""
    real = np.arange(T) < np.array([7, 5, 3])[:, None]
    student, teacher = (Logits(*(jnp.asarray(RNG.normal(size=shape), jnp.float32)
                                 for shape in ((B, T, D), (V, D), (V,)))) for _ in range(2))
    return {"student": student, "teacher": teacher, "hidden": RNG.normal(size=(2, B, T, D)).astype(np.float32),
            "targets": RNG.integers(0, V, (B, T)), "real": real, "masked": real & (RNG.random((B, T)) < 0.4)}


def tensor(x):
    return torch.tensor(np.asarray(x))


def logits(own):
    return tensor(own.at(own.x))


@pytest.mark.parametrize("selected", ["real", "masked"])
def test_divergence(drawn, selected):
    mask = tensor(drawn[selected])
    student, teacher = (logits(drawn[name])[mask] for name in ("student", "teacher"))
    expected = torch.nn.KLDivLoss(reduction="batchmean")(
        torch.log_softmax(student / TEMPERATURE, -1), torch.softmax(teacher / TEMPERATURE, -1)) * TEMPERATURE**2
    counts = RNG.integers(0, 9, V - 1)
    found = teaching.compare(drawn["student"], drawn["teacher"], jnp.asarray(drawn["targets"]), TEMPERATURE, counts)
    chosen = drawn[selected]
    assert np.asarray(found.divergence)[chosen].mean() == pytest.approx(float(expected), rel=1e-5)
    summed = torch.nn.MSELoss(reduction="sum")(student, teacher) / len(student)
    assert np.asarray(found.squared)[chosen].mean() == pytest.approx(float(summed), rel=1e-5)
    frequencies = np.append(counts + 1, 1) ** (1 / TEMPERATURE)
    constant = torch.nn.KLDivLoss(reduction="batchmean")(
        tensor(np.log(frequencies / frequencies.sum())).expand(len(teacher), V),
        torch.softmax(teacher / TEMPERATURE, -1)) * TEMPERATURE**2
    assert np.asarray(found.constant_divergence)[chosen].mean() == pytest.approx(float(constant), rel=1e-5)
    assert np.asarray(found.constant_squared)[chosen].mean() == pytest.approx(
        float(teacher.square().sum() / len(teacher)), rel=1e-5)


def test_cross_entropy(drawn):
    targets = torch.where(tensor(drawn["masked"]), tensor(drawn["targets"]), -100)
    expected = torch.nn.CrossEntropyLoss(ignore_index=-100)(logits(drawn["student"]).view(-1, V), targets.view(-1))
    found = teaching.compare(drawn["student"], None, jnp.asarray(drawn["targets"]), TEMPERATURE, np.zeros(V))
    assert np.asarray(found.nll)[drawn["masked"]].mean() == pytest.approx(float(expected), rel=1e-5)


def test_cosine(drawn):
    teacher, student = (tensor(x)[tensor(drawn["real"])] for x in drawn["hidden"])
    expected = torch.nn.CosineEmbeddingLoss(reduction="mean")(student, teacher, torch.ones(len(student)))
    found = teaching.cosine_distance(*(jnp.asarray(x) for x in drawn["hidden"]))
    assert np.asarray(found)[drawn["real"]].mean() == pytest.approx(float(expected), rel=1e-5)


def test_gradients(drawn):
    """Of the student's logits, through all three losses."""
    def ours(x):
        found = teaching.compare(drawn["student"]._replace(x=x), drawn["teacher"], jnp.asarray(drawn["targets"]),
                                 TEMPERATURE, np.zeros(V))
        distance = teaching.cosine_distance(jnp.asarray(drawn["hidden"][0]), x)
        return 2 * found.nll.mean() + 5 * found.divergence.mean() + distance.mean()

    x, table, bias = (tensor(each) for each in drawn["student"])
    x.requires_grad_()
    y = (x @ table.T + bias).view(-1, V)
    loss = (2 * torch.nn.CrossEntropyLoss()(y, tensor(drawn["targets"]).view(-1))
            + 5 * 4 * torch.nn.KLDivLoss(reduction="batchmean")(
                torch.log_softmax(y / 2, -1), torch.softmax(logits(drawn["teacher"]).view(-1, V) / 2, -1))
            + torch.nn.CosineEmbeddingLoss()(x.view(-1, D), tensor(drawn["hidden"][0]).view(-1, D), torch.ones(B * T)))
    loss.backward()
    np.testing.assert_allclose(jax.grad(ours)(drawn["student"].x), x.grad.numpy(), rtol=1e-4, atol=1e-6)
