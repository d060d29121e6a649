"""What `lmrep flops` and `lmrep plan` refuse: the flags or names that the message names. Topologies that libtpu does
not know are in `test_tpu.py`."""

import pytest

from lmrep.core.errors import UserError
from lmrep.planning import hardware
from tests import small

BERT = "--config=experiments/bert.py:size=tiny"


@pytest.mark.parametrize(("words", "named"), [
    (("flops",), ["--config"]), (("flops", "--config=a.py", "--workdir=b"), ["--config", "--workdir"]),
    (("flops", "--published", "--workdir=b"), ["--published", "--workdir"]),
    (("flops", "--workdir=missing"), ["missing"]), (("flops", "--config.steps=3", "--workdir=b"), ["--config=FILE.py"]),
    (("flops", "--output_fraction=2"), ["--output_fraction"]), (("plan", BERT), ["--topology"]),
    (("plan", BERT, "--topology=cpu:1,cpu:4", "--search"), ["--search"]),
    (("plan", BERT, "--topology=cpu:1", "--slices=2"), ["--slices", "cpu:1"]),
    (("plan", BERT, "--topology=v5e:2by2"), ["--topology", "'v5e:2by2'"]),
    (("plan", BERT, "--topology=h100:2x2x2"), ["--topology", "'h100:2x2x2'", "h100:4x8"]),
    (("plan", BERT, "--topology=h100:8", "--slices=2"), ["--slices", "h100:4x8"]),
])
def test_flags(words, named):
    answer = small.command(*words)
    assert answer.code == 2 and "Traceback" not in answer.err and all(name in answer.err for name in named), answer


@pytest.mark.parametrize(("name", "named"), [
    ("v9:2x2", "'v9:2x2'"), ("v5e", "'v5e'"), ("cpu:0", "'cpu:0'"), ("cpu:99", "XLA_FLAGS"), ("h100", "'h100'"),
    ("h100:0", "number of GPUs of a host"), ("h100:0x8", "'h100:0x8'"), ("h10:8", "h200, .*did you mean 'h100'"),
    ("a100:8", "did you mean 'a100-80gb'"), (":8", "expected one of v5e")])
def test_hardware_that_does_not_exist(name, named, monkeypatch):
    monkeypatch.setattr(hardware, "_measure", lambda: (1e12, 1e11))
    with pytest.raises(UserError, match=named):
        hardware.find(name)
