"""Language models of fastai against a module of PyTorch that is written from their description."""

import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.interop import fastai
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs
from tests.interop.test_fastai import EMBEDDING, LAYERS, V1, VERSIONS, WIDTH, published, tensors_of

torch = pytest.importorskip("torch")


class LanguageModel(torch.nn.Module):
    """An embedding, LSTMs of which the last has its width, and a tied output layer."""

    def __init__(self, vocab, bias):
        super().__init__()
        self.encoder = torch.nn.Embedding(vocab, EMBEDDING, padding_idx=1)
        widths = [EMBEDDING, *[WIDTH] * (LAYERS - 1), EMBEDDING]
        self.rnns = torch.nn.ModuleList(torch.nn.LSTM(a, b, batch_first=True) for a, b in itertools.pairwise(widths))
        self.decoder = torch.nn.Linear(EMBEDDING, vocab, bias=bias)
        self.decoder.weight = self.encoder.weight

    def forward(self, ids):
        x = self.encoder(ids)
        for rnn in self.rnns:
            x, _ = rnn(x)
        return self.decoder(x)


def reference(version):
    """The module with the tensors of a file."""
    model, state = LanguageModel(len(VERSIONS[version]), version == "1.0"), {}
    for name, value in tensors_of(version).items():
        if not name.endswith("module.weight_hh_l0") and "encoder_" not in name:
            state[name[2:].replace("module.", "").removesuffix("_raw")] = torch.tensor(value)
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("version", VERSIONS)
def test_logits_are_those_of_pytorch(version, tmp_path):
    lmrep.convert(published(tmp_path / "wt103", version), tmp_path / "run")
    run, v = lmrep.load(tmp_path / "run"), len(VERSIONS[version])
    ids = np.random.default_rng(1).integers(0, v, (3, 9)).astype(np.int32)
    inputs = Inputs(tokens=jnp.asarray(ids), attention_mask=AttentionMask(jnp.ones_like(ids), causal=True))
    hidden = run.model.encode(run.params["encoder"], inputs).hidden
    with torch.no_grad():
        expected = reference(version)(torch.tensor(ids.astype(np.int64))).numpy()
    found = run.objective.uses.next_token.logits(run.params, hidden)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_lines_that_a_refusal_gives_convert_a_pickle(wrapped, tmp_path):
    state = {name: torch.tensor(value) for name, value in tensors_of("1.0").items()}
    state["1.decoder.weight"] = state["0.encoder.weight"]  # shared, as in fastai
    torch.save({"model": state} if wrapped else state, tmp_path / "lstm_wt103.pth")
    with pytest.raises(UserError, match="is a pickle") as refused:
        lmrep.convert(tmp_path, tmp_path / "run")
    lines = "\n".join(line.strip() for line in str(refused.value).splitlines()[1:])
    for name in ("lstm_wt103.pth", fastai.WEIGHTS):
        lines = lines.replace(repr(name), repr(str(tmp_path / name)))
    exec(lines, {})
    (tmp_path / "itos.json").write_text(json.dumps(V1))
    lmrep.convert(tmp_path, tmp_path / "run")
    assert lmrep.load(tmp_path / "run").tokenizer.tokens == V1
