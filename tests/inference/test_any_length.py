"""A network without positions takes texts of any length."""

import functools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import lmrep
from tests import given, small

LENGTH = 16  # of the config, which counts positions
WORDS = [word for kind in small.ADJECTIVES for noun in small.NOUNS for word in (kind, noun)]  # 48
TEXT = " ".join(WORDS)


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """objective -> a folder with a run of it in `run`, and TEXT in `text.txt`."""
    @functools.cache
    def home(objective):
        home = tmp_path_factory.mktemp(objective)
        given.workdir(home, objective, positions="none", max_length=LENGTH, layers=1)
        (home / "text.txt").write_text(f"{TEXT}\n")
        return home

    return home


def run_command(home, command, *words, stdin=""):
    result = small.command(command, f"--workdir={home}/run", *words, stdin=stdin)
    assert result.code == 0, result
    return result.out


def test_vectors_do_not_depend_on_position(homes, tmp_path):
    home = homes("masked")
    there, back = lmrep.load(home / "run").encode([TEXT, " ".join(reversed(WORDS))])
    assert len(there.ids) > len(WORDS) > LENGTH
    np.testing.assert_allclose(there.by_word()[:, ::-1], back.by_word(), atol=1e-5)
    run_command(home, "embed", f"--input={home}/text.txt", f"--output={tmp_path}/v.safetensors")
    np.testing.assert_allclose(load_file(tmp_path / "v.safetensors")["0"], there.hidden, atol=1e-5)


@pytest.mark.slow
def test_predict_accepts_texts_of_any_length(homes):
    assert run_command(homes("masked"), "predict", "--k=2", f"{TEXT} [MASK]").count("%") == 2
    record = json.loads(run_command(homes("replaced_token"), "predict", "--jsonl", stdin=json.dumps({"text": TEXT})))
    assert len(record["replaced"]) >= len(WORDS)
    assert run_command(homes("causal"), "predict", "--tokens=30", TEXT).startswith(f"{TEXT} |")


@pytest.mark.slow
def test_evaluate_accepts_texts_of_any_length(homes, tmp_path):
    words = f"--files={homes('causal')}/texts/*.txt", f"--data_dir={tmp_path}"
    assert "mlm_loss" in run_command(homes("masked"), "evaluate", *words)
    assert "bits_per_byte" in run_command(homes("causal"), "evaluate", *words, "--stride=8", "--length=40")
