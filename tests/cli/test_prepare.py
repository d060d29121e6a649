"""lmrep prepare: the stores that a run uses, with and without Apache Beam."""

import importlib.util

import pytest

from tests import small


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    top = tmp_path_factory.mktemp("prepare")
    return small.experiment_file(top, small.corpus(top / "texts"))


def prepared(result):
    """The folder that a command printed."""
    assert result.code == 0, result.err
    return result.out.split("Prepared in ")[1].splitlines()[0]


def test_a_run_uses_what_prepare_wrote(experiment, tmp_path):
    config, data = f"--config={experiment}", f"--data_dir={tmp_path}"
    result = small.command("prepare", config, data)
    directory = prepared(result)
    assert "train" in result.out and "documents" in result.out
    shown = small.command("inspect", config, data)
    assert f"prepared in {directory}" in shown.out and "reading" not in shown.err


def test_beam_prepares_the_same_and_reports_progress(experiment, tmp_path):
    pytest.importorskip("apache_beam", reason="needs Apache Beam: pip install -e '.[beam]'")
    config, beam = f"--config={experiment}", "--beam_options=direct_running_mode=in_memory"
    result = small.command("prepare", config, f"--data_dir={tmp_path / 'beam'}", "--beam_runner=DirectRunner", beam)
    again = small.command("prepare", config, f"--data_dir={tmp_path / 'beam'}")
    directory = prepared(result)
    assert prepared(again) == directory and "reading" not in again.err
    for line in ("reading on DirectRunner", "training a tokenizer", "tokenizing on DirectRunner"):
        assert line in result.err


@pytest.mark.parametrize(("flags", "message"), [
    (["--beam_options=project=x"], "--beam_options needs --beam_runner"),
    (["--beam_runner=DirectRunner"], "which is not installed: pip install -e '.[beam]'"),
    (["--workdir=runs/x"], "lmrep prepare takes no --workdir"),
])
def test_what_is_refused(experiment, tmp_path, monkeypatch, flags, message):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *others: None if name == "apache_beam"
                        else find(name, *others))
    result = small.command("prepare", f"--config={experiment}", f"--data_dir={tmp_path}", *flags)
    assert result.code == 2 and message in result.err and result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
