"""Metrics repeat line for line; incomplete lines are dropped; a logger that fails is reported once and never stops a
run."""

import importlib.machinery
import importlib.util
import io
import json
import math
import struct
import sys
import types

import numpy as np
import pytest

from lmrep.core.errors import RunFault, UserError
from lmrep.core.progress import Screen
from lmrep.training.config import LogConfig
from lmrep.training.metrics_log import MetricsLog, OptionalWriter, Progress, writers


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(workdir, steps, resumed=None):
    log = MetricsLog(workdir)
    log.resume(resumed)
    for step in steps:
        log.write(step, "train", {"loss": 1 / step, "accuracy": math.sqrt(step)})
        if step % 2 == 0:
            log.write(step, "validation", {"loss": 1 / step})
        log.timing(step, "train", {"tokens_per_second": 5.0})
    log.close()


def test_a_resumed_log_equals_an_uninterrupted_one(tmp_path):
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    for directory in (uninterrupted, killed):
        directory.mkdir()
    run(uninterrupted, range(1, 11))
    run(killed, range(1, 9))
    with open(killed / "metrics.jsonl", "a") as file:
        file.write('{"step": 9, "split": "tra')  # incomplete because of the kill
    run(killed, range(5, 11), resumed=4)
    assert (killed / "metrics.jsonl").read_bytes() == (uninterrupted / "metrics.jsonl").read_bytes()
    assert [line["step"] for line in lines(killed / "timing.jsonl")] == [*range(1, 9), *range(5, 11)]
    run(killed, range(1, 11), resumed=None)
    assert (killed / "metrics.jsonl").read_bytes() == (uninterrupted / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("torn", ['{"step": 2', '{"step": 2, "split": "train"}', "\0\0\0\0", '"step"\n', "2\n", "\n"])
def test_an_incomplete_line_is_dropped(tmp_path, torn, caplog):
    run(tmp_path, [1])
    intact = (tmp_path / "metrics.jsonl").read_bytes()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(torn)
    with caplog.at_level("INFO", "lmrep"):
        run(tmp_path, [], resumed=2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == intact
    (record,) = caplog.records
    incomplete = not torn.endswith("\n")
    assert ("last line of" in record.getMessage() and record.levelname == "INFO") == incomplete


def test_a_damaged_line_in_the_middle_is_reported(tmp_path, caplog):
    run(tmp_path, [1, 3])
    text = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text("{" + text)
    run(tmp_path, [], resumed=3)
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [3]
    assert "line 1 of" in caplog.text


BAD_LINES = [b"[" * 100_000, b'{"step": ' + b"[" * 100_000, b'{"step": "\xff\xfe"}', b"\xff" * 9, b'{"step": true}',
             b'{"step": 1e0}', b'{"step": NaN}', b'{"step": -1}', b'{"step": 1' + b"0" * 30 + b"}", b"9" * 5000,
             b'{"step": ' + b"9" * 5000 + b"}", '{"step": 1}'.encode("utf-16")]


def test_lines_without_a_valid_step_are_dropped_with_one_warning(tmp_path, caplog):
    run(tmp_path, [1, 3])
    intact = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*BAD_LINES, intact]))
    run(tmp_path, [], resumed=3)
    assert (tmp_path / "metrics.jsonl").read_bytes() == intact
    (warning,) = caplog.records
    assert "line 1 of" in warning.getMessage() and "is damaged and dropped, and " in warning.getMessage()


def mutated(content, draw):
    """Bytes with a few random changes: bits, deletions, repetitions, digits, brackets."""
    content = bytearray(content)
    for _ in range(draw.integers(1, 6)):
        start, end = sorted(draw.integers(0, len(content) + 1, 2))
        change = draw.integers(5)
        if change == 0 and end > start:
            content[start] ^= 1 << draw.integers(8)
        elif change == 1:
            del content[start : min(end, start + 30)]
        elif change == 2:
            content[start:start] = content[start:end][:2000]
        else:
            content[start:start] = [b"[", b"9", b"{", b"\n", b'"', b"\xe9", b"-", b"."][draw.integers(8)] * int(
                draw.integers(1, 3000))
    return bytes(content)


def test_mutated_logs_are_resumed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for seed in range(50):
        run(tmp_path, range(1, 9))
        path.write_bytes(mutated(path.read_bytes(), np.random.default_rng(seed)))
        run(tmp_path, range(7, 10), resumed=6)
        steps = [line["step"] for line in lines(path)]
        assert steps[-4:] == [7, 8, 8, 9] and all(0 <= step <= 6 for step in steps[:-4]), seed


def test_an_incomplete_last_line_of_the_timings_is_dropped(tmp_path):
    (tmp_path / "timing.jsonl").write_text('{"step": 1}\n{"step"')
    run(tmp_path, [2])
    assert [line["step"] for line in lines(tmp_path / "timing.jsonl")] == [1, 2]


def test_numbers_keep_their_bits_and_keys_are_sorted(tmp_path):
    log = MetricsLog(tmp_path)
    log.resume(None)
    values = {"third": np.float32(0.1), "nan": math.nan, "up": math.inf, "down": np.float32(-np.inf), "n": np.int64(7),
              "small": 5e-324, "a": 0.1 + 0.2}
    log.write(3, "train", values)
    log.write(4, "train", dict(reversed(values.items())))
    log.flush()
    first, second = lines(tmp_path / "metrics.jsonl")
    assert list(first) == list(second) == ["step", "split", "a", "down", "n", "nan", "small", "third", "up"]
    assert first == {"step": 3, "split": "train", "a": 0.1 + 0.2, "down": "-inf", "n": 7, "nan": "nan", "small": 5e-324,
                     "third": float(np.float32(0.1)), "up": "inf"}
    with pytest.raises(ValueError, match="cannot be named step"):
        log.write(5, "train", {"step": 1.0})
    log.close()


def test_metrics_that_cannot_be_written_stop_the_run(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path)
    log.resume(None)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFault, match=r"metrics\.jsonl cannot be written: No space left"):
        log.flush()
    with pytest.raises(RunFault, match=r"metrics\.jsonl cannot be used"):
        MetricsLog(tmp_path / "absent").resume(None)


class Failing:
    def __init__(self, method):
        self.method, self.calls = method, 0

    def _call(self, method):
        self.calls += 1
        if method == self.method:
            raise ConnectionError("the server is gone")

    def write(self, step, split, values):
        self._call("write")

    def flush(self):
        self._call("flush")

    def close(self):
        self._call("close")


@pytest.mark.parametrize(("method", "calls"), [("write", 1), ("flush", 4), ("close", 5)])
def test_a_logger_that_fails_is_reported_once_and_not_used_again(tmp_path, caplog, method, calls):
    failing, intact = Failing(method), Failing("nothing")
    log = MetricsLog(tmp_path, [OptionalWriter("Failing", lambda: failing), OptionalWriter("intact", lambda: intact)])
    log.resume(None)
    for step in range(3):
        log.write(step, "train", {"loss": 1.0})
    log.close()
    assert len(lines(tmp_path / "metrics.jsonl")) == 3
    assert (failing.calls, intact.calls) == (calls, 5)
    (warning,) = caplog.records
    assert "Failing failed and is switched off" in warning.getMessage() and "the server is gone" in warning.getMessage()


def test_a_logger_that_exits_is_switched_off(tmp_path, caplog):
    class Exiting(Failing):
        def write(self, step, split, values):
            sys.exit("no API key")

    log = MetricsLog(tmp_path, [OptionalWriter("Exiting", lambda: Exiting("write"))])
    log.resume(None)
    log.write(1, "train", {"loss": 1.0})
    log.close()
    (warning,) = caplog.records
    assert "Exiting failed and is switched off; the run continues (SystemExit: no API key)" in warning.getMessage()


def test_timings_that_cannot_be_written_do_not_stop_the_run(tmp_path, caplog):
    (tmp_path / "timing.jsonl").mkdir()
    run(tmp_path, [1, 2])
    assert len(lines(tmp_path / "metrics.jsonl")) == 3
    (warning,) = caplog.records
    assert "timing.jsonl failed" in warning.getMessage()


def events(directory):
    """(step, tag, value) of the scalars, and (step, "purge", None), in the files by age."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found = []
    for path in sorted(directory.iterdir(), key=lambda p: p.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:  # a TFRecord: length, its checksum, the content, its checksum
            (size,) = struct.unpack("<Q", data[:8])
            event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
            if event.session_log.status == SessionLog.START:
                found.append((event.step, "purge", None))
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
    return found


def test_tensorboard_gets_the_numbers_and_hides_those_after_a_resumed_step(tmp_path):
    for resumed, steps in ((None, (1, 2)), (1, (2,))):
        log = MetricsLog(tmp_path, writers(tmp_path, LogConfig(), {}, resumed))
        log.resume(resumed)
        for step in steps:
            log.write(step, "train", {"loss": 0.5 * step})
        log.close()
    loss = "train/loss"
    assert events(tmp_path / "tensorboard") == [(1, loss, 0.5), (2, loss, 1.0), (2, "purge", None), (2, loss, 1.0)]


def test_tensorboard_that_cannot_be_written_does_not_stop_the_run(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("in the way")
    log = MetricsLog(tmp_path, writers(tmp_path, LogConfig(), {}))
    log.resume(None)
    for step in (1, 2):
        log.write(step, "train", {"loss": 1.0})
    log.close()
    assert len(lines(tmp_path / "metrics.jsonl")) == 2 and caplog.text.count("TensorBoard failed") == 1


def test_weights_and_biases_is_refused_at_the_start_if_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[wandb\]'"):
        writers(tmp_path, LogConfig(wandb="project"), {})


def test_weights_and_biases_resumes_the_same_run(tmp_path, monkeypatch):
    logged, started = [], []
    fake = types.ModuleType("wandb")
    fake.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    session = types.SimpleNamespace(log=lambda values, step: logged.append((step, values)), finish=lambda: None)
    fake.init = lambda **options: started.append(options) or session
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for step in (1, 2):
        log = MetricsLog(tmp_path, writers(
            tmp_path, LogConfig(tensorboard=False, wandb="project"), {"seed": 0}))
        log.resume(step - 1)
        log.write(step, "train", {"loss": 1.0})
        log.close()
    assert logged == [(1, {"train/loss": 1.0}), (2, {"train/loss": 1.0})]
    assert started[0] == started[1] and started[0]["id"] and started[0]["resume"] == "allow"


def show(terminal, seconds, every=10.0, total=100):
    """What `Progress` prints when a step ends at each of `seconds`."""
    file, now = io.StringIO(), [0.0]
    with Progress(total, Screen(file, force_terminal=terminal, width=120), every, clock=lambda: now[0]) as progress:
        for step, now[0] in enumerate(seconds, 1):
            progress.update(step, {"loss": "2.5", "masked accuracy": "25.00%"}, 12345.6, utilisation=0.304)
    return file.getvalue()


def test_plain_progress_prints_a_line_at_intervals_and_at_the_end(tmp_path):
    shown = show(False, seconds=range(0, 50, 2)).splitlines()  # steps 1 to 25, 2 seconds each
    assert [line.split("  ")[0] for line in shown] == [f"step {step}/100" for step in (1, 6, 11, 16, 21, 25)]
    assert shown[0] == "step 1/100  loss 2.5  masked accuracy 25.00%  12,346 tokens/s  utilisation 30%"
    assert shown[1] == "step 6/100  loss 2.5  masked accuracy 25.00%  12,346 tokens/s  3:08 left  utilisation 30%"


def test_progress_on_a_terminal_rewrites_one_line():
    shown = show(True, seconds=range(0, 50, 2), total=1_000_000)
    assert shown.count("\n") == 1 and "step 25/1,000,000" in shown
    assert "555:32:30 left" in shown  # 999,975 steps of 2 seconds


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_a_text_until_the_first_step_ends(terminal):
    file = io.StringIO()
    with Progress(10, Screen(file, force_terminal=terminal, width=120)) as progress:
        for _ in range(2):
            progress.show("compiling")
        progress.update(1, {"loss": "2.5"})
    shown = file.getvalue()
    assert shown.count("compiling") == 1 and shown.index("compiling") < shown.index("step 1/10")


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("error", [BrokenPipeError, OSError])
def test_a_closed_terminal_does_not_stop_the_run(caplog, terminal, error):
    class Gone(io.StringIO):
        def write(self, _):
            raise error("gone")

    with Progress(10, Screen(Gone(), force_terminal=terminal)) as progress:
        progress.update(1, {"loss": "1"})
        progress.update(2, {"loss": "1"})
    (warning,) = caplog.records
    assert "the progress line failed" in warning.getMessage()
