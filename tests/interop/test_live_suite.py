"""Scores of the parts of texts by `transformers`, with the rule of the BabyLM challenge's pipeline for their tokens."""

import pytest

import lmrep
from lmrep.inference import pairs
from lmrep.interop import conversion
from tests.interop.test_published import GOLDEN

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

OPTIONS = [("the cat", " dog"), ("the cat", " finds it."), ("it is old.", " it is"), ("the", "odore s")]


def expected(name, before, part):
    """The log probabilities of the tokens that end after the context, each masked or, for GPT-2, given those before and
    its end mark."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(GOLDEN / name)
    auto = transformers.AutoModelForCausalLM if name == "gpt2" else transformers.AutoModelForMaskedLM
    model, encoded = auto.from_pretrained(GOLDEN / name).eval(), tokenizer(before + part, return_offsets_mapping=True)
    first = [tokenizer.eos_token_id] if name == "gpt2" else []
    ids, total = torch.tensor([first + encoded["input_ids"]]), 0.0
    for i, (_, end) in enumerate([(0, 0)] * len(first) + encoded["offset_mapping"]):
        if end > len(before):
            masked = ids.clone()
            masked[0, i] = ids[0, i] if first else tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(masked).logits[0, i - len(first)].double()
            total += torch.log_softmax(logits, -1)[ids[0, i]].item()
    return total


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta"])
def test_scores_of_parts(name, tmp_path):
    conversion.to_workdir(GOLDEN / name, tmp_path / "run")
    run = lmrep.load(tmp_path / "run")
    scoring = pairs.in_float32(run).uses.scorings[pairs.scoring_name(run, "")]
    texts = [pairs.tokenize(run, before + part, "here", start=len(before)) for before, part in OPTIONS]
    assert pairs.score(run, texts, scoring).sums == pytest.approx([expected(name, *option) for option in OPTIONS],
                                                                  rel=1e-5)
