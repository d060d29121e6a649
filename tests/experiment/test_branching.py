"""`lmrep branch`: runs that continue from a checkpoint of another run under another learning rate."""

import pytest

from tests import small

STABLE = ["--config.optimizer.schedule.name=warmup_stable_decay", "--config.optimizer.schedule.cooldown_fraction=0",
          "--config.optimizer.schedule.warmup_fraction=0", "--config.optimizer.schedule.warmup=2",
          "--config.checkpoint.keep=9"]


@pytest.fixture(scope="module")
def stable(tmp_path_factory):
    """A run of 12 steps with a stable rate, and checkpoints at 4, 8 and 12."""
    home = tmp_path_factory.mktemp("branches")
    file = small.experiment_file(home, small.corpus(home / "texts"))
    result = small.command("train", f"--config={file}", f"--workdir={home}/stable", f"--data_dir={home}/data", *STABLE)
    assert result.code == 0, result
    return home


def branched(home, name, *flags):
    assert (result := small.command("branch", f"--workdir={home}/stable", f"--output={home}/{name}", *flags)).code == 0
    assert f"lmrep train --workdir={home}/{name}" in result.out
    result = small.command("train", f"--workdir={home}/{name}", f"--data_dir={home}/data")
    assert result.code == 0, result
    return small.lines(home / name)


def test_a_branch_with_the_same_config_ends_with_the_same_bits(stable):
    lines = branched(stable, "same", "--step=4")
    assert lines == small.lines(stable / "stable")
    assert len((stable / "same/provenance.jsonl").read_text().splitlines()) == 2


def test_several_decays_begin_at_one_checkpoint(stable):
    """The moments continue: the first update after the checkpoint, whose rate is still the peak, is the run's."""
    before = small.lines(stable / "stable", "train")
    for name, steps in (("short", 10), ("long", 14)):
        flags = f"--config.steps={steps}", f"--config.optimizer.schedule.cooldown_steps={steps - 8}"
        lines = [line for line in branched(stable, name, "--step=8", *flags) if line["split"] == "train"]
        rates = [line["learning_rate"] for line in lines]
        assert lines[:9] == before[:9] and len(lines) == steps
        fall = [before[8]["learning_rate"] * (steps - step) / (steps - 8) for step in range(8, steps)]
        assert rates[8:] == pytest.approx(fall)


@pytest.mark.parametrize(("flags", "message"), [
    (["--step=5"], "holds no checkpoint 5; it holds 4, 8, 12"),
    (["--step=8", "--config.steps=8"], "steps is 8, and the checkpoint is of step 8"),
    (["--step=8", "--config.batch_size=4"], "batch_size: 16 -> 4"),
    (["--step=8", "--config.optimizer.name=lion"], "optimizer.name"), (["--config=small.py"], "leave --config out")])
def test_refusals(stable, flags, message):
    result = small.command("branch", f"--workdir={stable}/stable", f"--output={stable}/refused", *flags)
    assert result.code == 2 and message in result.err, result
    assert not (stable / "refused").exists()
