"""A choice of a config file that changes nothing beside the others is refused, whatever the file."""

import pytest

from lmrep.config import loading
from lmrep.core.errors import UserError
from tests.experiments.pages import ROOT

REFUSED = [  # file, argument, the choice that changes nothing, the one that it changes nothing beside
    ("lstm_lm.py", "model=gpt2,size=large", "size=large", "model=gpt2"),
    ("lstm_lm.py", "model=gpt2,tied=no", "tied=no", "model=gpt2"),
    ("lstm_lm.py", "tied=yes,model=gpt2", "tied=yes", "model=gpt2"),
    ("lstm_lm.py", "format=packed,order=shuffled", "order=shuffled", "format=packed"),
    ("lstm_lm.py", "format=packed,order=contiguous", "order=contiguous", "format=packed"),
    ("bert.py", "size=large,model=gpt2", "size=large", "model=gpt2"),
    ("electra.py", "objective=masked,variant=electra_15", "variant=electra_15", "objective=masked"),
    ("albert.py", "objective=causal,format=stream,pairs=nsp", "pairs=nsp", "format=stream"),
    ("t5.py", "variant=prefix,noise=tokens", "noise=tokens", "variant=prefix"),
    ("t5.py", "variant=deshuffling,noise=spans", "noise=spans", "variant=deshuffling"),
    ("transformer_xl.py", "model=gpt2,memory=no", "memory=no", "model=gpt2"),
    ("tasks/classify.py", "features=/x,recipe=roberta", "recipe=roberta", "features=/x"),
    ("tasks/sst2.py", "size=tiny,init=/x", "size=tiny", "init=/x"),
    ("distilbert.py", "start=random", "start", ""),
    ("distilbert.py", "head=random", "head", ""),
    ("quickstart.py", "size=tiny", "size", ""),
]
KEPT = ["bert.py:model=bert_base", "bert.py:size=base,optimizer=bert", "lstm_lm.py:model=lstm,tied=no,size=medium",
        "t5.py:noise=spans", "t5.py:variant=bert,noise=tokens", "transformer_xl.py:text=words", "albert.py:share=all",
        "tasks/classify.py:init=/x,recipe=bert", "quickstart.py:steps=3200"]


@pytest.mark.parametrize(("file", "argument", "choice", "beside"), REFUSED)
def test_a_choice_without_effect_is_refused(file, argument, choice, beside):
    with pytest.raises(UserError) as refused:
        loading.load(ROOT / "experiments" / file, argument)
    assert choice in str(refused.value) and (not beside or f"beside {beside}" in str(refused.value))


@pytest.mark.parametrize("page", KEPT)
def test_a_choice_may_state_the_default(page):
    file, _, argument = page.partition(":")
    loading.load(ROOT / "experiments" / file, argument)


@pytest.mark.parametrize(("argument", "noise"), [
    ("", "spans"), ("noise=tokens", "tokens"), ("variant=bert", "tokens"), ("variant=mask", "tokens"),
    ("variant=drop_tokens", "tokens"), ("variant=bert,noise=spans", "spans")])
def test_the_noise_of_a_variant_of_t5_is_that_of_the_papers_tables(argument, noise):
    assert loading.load(ROOT / "experiments/t5.py", argument).objective.noise == noise
