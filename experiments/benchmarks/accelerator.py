"""Training in bfloat16 on one accelerator, beside Hugging Face transformers on PyTorch, and checks of the numbers.

    pip install -e . torch transformers
    python experiments/benchmarks/accelerator.py                                  # on a machine with one NVIDIA GPU
    python experiments/benchmarks/accelerator.py --size=tiny --device=cpu         # a trial of the script

Everything is measured in one run of at most --budget seconds, compilation included: the rate of a large matrix product;
BERT-base and -large, GPT-2 (124 million parameters), T5-base, ELECTRA-small and -base; and whether gradients are finite
with each implementation of attention, whether packed texts give the loss and gradient of separate ones, and whether a
run that is resumed gives the same bits. Where time runs short, cases have fewer rounds, and the last ones none; the
table says so. A case that fails is reported in its row. Text is random tokens; nothing is downloaded.

lmrep's step is that of `lmrep train`: masking on the device, dropout, gradient clipping, AdamW; --attention is
`execution.attention`. That of transformers is the model in training mode with SDPA, under torch.compile and bfloat16
autocast (float32 parameters, TF32 for what is left), gradient clipping and fused AdamW. Both have the networks' dropout
of 0.1, on attention probabilities too (--attention-dropout=0 removes that from both), and BERT and ELECTRA predict 15 %
of the tokens. The classes of transformers compute logits over the vocabulary at every position, lmrep at the predicted
ones. ELECTRA is `ElectraForMaskedLM`, tokens sampled from its logits, and `ElectraForPreTraining` with the same
embeddings.

T5 is trained on sources of 512 tokens and targets of 114, which lmrep makes in each step from sequences of 568, and
gives to transformers beforehand; tokens per second are those of the sequences. T5 is trained with AdamW too, since
PyTorch has no fused Adafactor. "generated" is greedy search with a cache and bfloat16 parameters, for sources of up to
so many tokens; tokens per second are the generated ones. That of transformers is `generate`, without torch.compile.

Cases: "concatenated" fills every sequence of both with documents; lmrep keeps documents apart, transformers does not.
"sentences" has the lengths of English Wikipedia's sentences, a sequence each; transformers pads them to the longest of
the batch, rounded up to a multiple of 8, and lmrep packs them. Padding does not count in tokens per second.

The two run in processes of their own, which take turns of about --turn seconds; each turn begins with an unmeasured
step and ends when the device is done. They compile at the same time, and nothing else runs during a turn. ms are
medians over the rounds with their minimum and maximum, the ratio is the median of the ratios of tokens per second
within a round. Utilisation is lmrep's count of floating-point operations per token (`lmrep.planning.flops`), times
tokens per second, over the measured matrix rate. It is the same count for both, so that what transformers computes
beyond it is no utilisation.
"""

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from accelerator_checks import CHECKS
from accelerator_data import concatenated, prompts, real_tokens, sentences, texts
from accelerator_report import SIDES, markdown
from accelerator_worker import GENERATION, Failed, OutOfTime, Worker
from training_steps import System

from lmrep.core.host import processor
from lmrep.models import PRESETS

LMREP, TRANSFORMERS = SIDES
ROUNDS, LEAST = 7, 3  # of a case: wanted, and where later cases need the time
NO_TIME = "no time left"
LENGTHS = 32, 63, 64, 65, 96, 127, 128, 129, 192, 200, 256, 320, 384, 512  # whose gradients are checked


class Case(NamedTuple):
    """What is measured: training of a system, on sentences (else on concatenated text); or, where its objective is
    `GENERATION`, generating `fields["tokens"]` for each text."""

    system: System
    sentences: bool = False


def _case(preset, batch_size, length, settings=None, on_sentences=False):
    config = PRESETS[preset].config
    objective = {"bert": "masked", "gpt2": "causal", "elec": "replaced_token", "t5_b": "span_corruption"}[preset[:4]]
    recipe = "bert" if objective in ("masked", "replaced_token") else "adamw"
    return Case(System(config, objective, recipe, batch_size, length, settings or {}), on_sentences)


def _generation(preset, batch_size, length, tokens):
    return Case(System(PRESETS[preset].config, GENERATION, "", batch_size, length, {"tokens": tokens}))


CASES = {  # those that matter most come first: time may run out
    "BERT-base 512, concatenated": _case("bert_base", 64, 512),
    "BERT-base 512, sentences": _case("bert_base", 16, 512, on_sentences=True),
    "GPT-2 124M 1024, concatenated": _case("gpt2", 32, 1024),
    "T5-base 512 + 114": _case("t5_base", 32, 568),
    "T5-base 128, 64 generated": _generation("t5_base", 64, 128, 64),
    "ELECTRA-small 128, concatenated": _case("electra_small", 128, 128),
    "BERT-base 128, concatenated": _case("bert_base", 256, 128),
    "BERT-large 512, concatenated": _case("bert_large", 32, 512),
    "ELECTRA-base 512, concatenated": _case("electra_base", 64, 512, {"generator": 1 / 3}),
    "BERT-large 128, concatenated": _case("bert_large", 128, 128),
}


def tiny(case):
    """The case with a network and batches that two cores can run in a moment."""
    c, length = case.system.config, case.system.length // 8
    sizes = {"vocab": 1100, "layers": 2, "width": 48, "heads": 3, "mlp": 96, "max_length": length, "head_width": 0,
             "embedding": 24 if getattr(c, "embedding", 0) else 0}
    config = replace(c, **{field.name: sizes[field.name] for field in fields(c) if field.name in sizes})
    settings = {"tokens": 8} if case.system.objective == GENERATION else case.system.fields
    return case._replace(system=case.system._replace(config=config, batch_size=4, length=length, fields=settings))


def data(case):
    """The function of `accelerator_data` that makes its batches."""
    own = {"span_corruption": texts, GENERATION: prompts}
    return own.get(case.system.objective, sentences if case.sentences else concatenated)


def affordable(done, wanted, seconds, left, reserved):
    """Whether to start another round of a case.

    Args:
      done: rounds so far.
      wanted: rounds.
      seconds: that a round takes.
      left: seconds of the budget that are left.
      reserved: seconds that the cases after this one need.
    """
    return done < wanted and 1.5 * seconds < left - (reserved if done >= LEAST else 0)


class Benchmark:
    """The two processes, and the time that they have."""

    def __init__(self, device, budget):
        self._start, self._budget = time.monotonic(), budget
        self._workers = {name: Worker(name, device) for name in SIDES}
        self._prepared = {}  # the case that a process was last sent

    def left(self):
        """Seconds of the budget that are left."""
        return self._start + self._budget - time.monotonic()

    def send(self, side, *request):
        """Sends a request, whose result `receive` returns."""
        self._workers[side].send(*request)

    def receive(self, side, seconds=float("inf")):
        """The result of the last request. Raises Failed, after so many seconds at the latest."""
        return self._workers[side].receive(min(seconds, self.left()))

    def ask(self, side, *request):
        """Sends a request and waits for its result. Raises Failed."""
        self.send(side, *request)
        return self.receive(side)

    def prepare(self, side, name, *arguments):
        """Sends the request to compile the case `name`, unless that was done."""
        if self._prepared.get(side) != name:
            self._prepared[side] = name
            self.send(side, "prepare", *arguments)

    def close(self):
        """Ends the processes."""
        for worker in self._workers.values():
            worker.stop(seconds=3)


def measure(benchmark, name, case, batches, flags, reserved):
    """The result of a case, as the JSON file has it. `reserved` are the seconds that later cases need."""
    settings = {LMREP: flags.attention, TRANSFORMERS: flags.compile}
    facts, rounds = {}, {side: [] for side in SIDES}
    failed = {} if benchmark.left() > 0 else dict.fromkeys(SIDES, NO_TIME)
    running = [side for side in SIDES if side not in failed]
    for side in running:
        benchmark.prepare(side, name, case.system, batches[side], settings[side])
    end = benchmark.left() - min(flags.compile_seconds, 0.75 * benchmark.left())
    for side in running:
        try:
            facts[side] = benchmark.receive(side, benchmark.left() - end)
        except Failed as error:
            failed[side] = str(error)
    steps = {side: steps_per_turn(facts[side]["seconds"], flags.turn, len(batches[side])) for side in facts}
    seconds, done = sum((steps[side] + 1) * facts[side]["seconds"] for side in facts), 0
    while len(failed) < len(SIDES) and affordable(done, flags.rounds, seconds, benchmark.left(), reserved):
        for side in (side for side in SIDES if side not in failed):
            try:
                rounds[side].append(finite(benchmark.ask(side, "turn", steps[side])))
            except OutOfTime as error:
                if not done:  # else the rounds before it count
                    failed[side] = str(error)
            except Failed as error:
                failed[side] = str(error)
        done = max(map(len, rounds.values()))
    failed |= {side: NO_TIME for side in SIDES if not rounds[side] and side not in failed}
    return summary(name, case, batches, facts, rounds, failed) | {"rounds": done, "wanted": flags.rounds}


def steps_per_turn(seconds, turn, batches):
    """Steps of a turn of about `turn` seconds, a multiple of the number of batches."""
    return batches * max(1, round(turn / seconds / batches))


def finite(turn):
    """The result of a turn. Raises Failed if the loss or the gradient is not finite."""
    if "loss" in turn and not (np.isfinite(turn["loss"]) and np.isfinite(turn["gradient_norm"])):
        raise Failed(f"the loss is {turn['loss']:g}, the gradient's norm {turn['gradient_norm']:g}")
    return turn


def summary(name, case, batches, facts, rounds, failed):
    """Medians, rates and ratios of the rounds."""
    generated = case.system.batch_size * case.system.fields["tokens"] if case.system.objective == GENERATION else 0
    tokens = {side: generated or real_tokens(batches[side]) for side in SIDES}
    result = {"case": name, "failed": failed, "ratio": None,
              "batch": f"{case.system.batch_size} x {case.system.length}"}
    if case.sentences:
        widths = [inputs.shape[1] for inputs, _, _ in batches[TRANSFORMERS]]
        result["batch"] += f"; {len(batches[TRANSFORMERS][0][0])} x {min(widths)} to {max(widths)}"
    if LMREP in facts:
        result |= {field: facts[LMREP][field] for field in ("flops", "attention") if field in facts[LMREP]}
    if "flops" in result:
        result["flops_per_token"] = result["flops"] / tokens[LMREP]
    for side in SIDES:
        if side in failed:
            continue
        seconds = [turn["seconds"] for turn in rounds[side]]
        median = float(np.median(seconds))
        result[side] = {
            "seconds": seconds, "median": median, "fastest": min(seconds), "slowest": max(seconds),
            "steps_per_second": 1 / median, "tokens_per_step": tokens[side], "tokens_per_second": tokens[side] / median,
            "loss": rounds[side][-1].get("loss")}
    if not failed:
        pairs = zip(*(result[side]["seconds"] for side in SIDES), strict=False)
        result["ratio"] = float(np.median([tokens[LMREP] / x / (tokens[TRANSFORMERS] / y) for x, y in pairs]))
    return result


def utilise(case, rate):
    """The case with `utilisation`, where the matrix rate and the floating-point operations are known."""
    for side in SIDES:
        if rate and side in case and "flops" in case:
            case[side]["utilisation"] = case["flops_per_token"] * case[side]["tokens_per_second"] / rate
    return case


def start(benchmark, flags):
    """The first results: date, device, versions, and the matrix rate by both, of which the larger is used."""
    results = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "device": flags.device, "versions": {},
               "trial": flags.size == "tiny" or flags.device == "cpu", "command": sys.argv[1:], "failed": {},
               "host": f"{processor()}, {os.cpu_count()} cores, Python "
                       f"{platform.python_version()}", "budget": flags.budget, "cases": [], "checks": []}
    size = 8192 if flags.device != "cpu" and flags.size == "full" else 512
    rates = {"size": size}
    for side in SIDES:
        benchmark.send(side, "facts")  # both start at the same time
    for side in SIDES:
        try:
            facts = benchmark.receive(side)
            results["versions"] |= facts["versions"]
            results["device"] = facts["device"] or results["device"]
        except Failed as error:
            results["failed"][side] = str(error)
    for side in (side for side in SIDES if side not in results["failed"]):
        try:
            rates[side] = benchmark.ask(side, "matrix_rate", size)
        except Failed as error:
            results["failed"][side] = str(error)
    rates["used"] = max((rates[side] for side in SIDES if side in rates), default=None)
    return results | {"matrix_rate": rates}


def check(benchmark, lengths):
    """The results of all checks."""
    results = []
    for name in CHECKS:
        arguments = (0.25 * benchmark.left(), lengths) if name == "gradients" else ()
        try:
            results += benchmark.ask(LMREP, "check", name, *arguments)
        except Failed as error:
            results.append({"name": name, "passed": False, "detail": str(error)})
    return results


def run(benchmark, cases, flags):
    """Measures and checks everything, and yields the results after each step."""
    results = start(benchmark, flags)
    rng = np.random.default_rng(0)
    batches = {name: dict(zip(SIDES, data(case)(case.system, rng), strict=True)) for name, case in cases.items()}
    if flags.checks:
        name, case = next(iter(cases.items()))  # compiled by the other process meanwhile
        benchmark.prepare(TRANSFORMERS, name, case.system, batches[name][TRANSFORMERS], flags.compile)
        results["checks"] = check(benchmark, flags.lengths)
        yield results
    began = time.monotonic()
    for number, (name, case) in enumerate(cases.items()):
        average = (time.monotonic() - began) / max(1, number)
        reserved = average * (len(cases) - number - 1)
        found = measure(benchmark, name, case, batches.pop(name), flags, reserved)
        results["cases"].append(utilise(found, results["matrix_rate"]["used"]))
        yield results


def integers(text):
    """The integers of "64,129-131": [64, 129, 130, 131]."""
    ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [i for ends in ranges for i in range(ends[0], ends[-1] + 1)]


def arguments(argv):
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--size", default="full", choices=("full", "tiny"), help="tiny: networks of width 48")
    parser.add_argument("--cases", default="", help="parts of the names of cases, separated by commas; default: all")
    parser.add_argument("--budget", type=float, default=540, help="seconds of the run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each case")
    parser.add_argument("--turn", type=float, default=0.5, help="seconds of a turn")
    parser.add_argument("--attention", default="auto", help="lmrep's execution.attention")
    parser.add_argument("--attention-dropout", type=float, default=0.1, help="of both")
    parser.add_argument("--lengths", type=integers, default=list(LENGTHS),
                        help="whose gradients are checked, for example 64,129-256 (which has every length modulo 128)")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="no torch.compile")
    parser.add_argument("--no-checks", dest="checks", action="store_false")
    parser.add_argument("--compile-seconds", type=float, default=180, help="that a case may take to compile")
    parser.add_argument("--json", type=Path, default=Path("accelerator.json"), help="the file of all results")
    flags = parser.parse_args(argv)
    chosen = [text.strip().lower() for text in flags.cases.split(",") if text.strip()]
    if unknown := [text for text in chosen if not any(text in name.lower() for name in CASES)]:
        parser.error(f"--cases: no case has {', '.join(unknown)} in its name; there are {'; '.join(CASES)}")
    return flags, {name: case for name, case in CASES.items()
                   if not chosen or any(text in name.lower() for text in chosen)}


def main(argv=None):
    """Runs the benchmark. Returns 1 if a case or a check failed."""
    flags, cases = arguments(argv)
    for name, case in cases.items():
        config = replace(case.system.config, attention_dropout=flags.attention_dropout)
        cases[name] = case._replace(system=case.system._replace(config=config))
    if flags.size == "tiny":
        cases = {name: tiny(case) for name, case in cases.items()}
    benchmark, results = Benchmark(flags.device, flags.budget), None
    try:
        for results in run(benchmark, cases, flags):
            results["seconds"] = flags.budget - benchmark.left()
            flags.json.write_text(json.dumps(results, indent=1) + "\n")
            done = results["cases"][-1]["case"] if results["cases"] else "checks"
            print(f"{results['seconds']:5.0f} s  {done}", file=sys.stderr, flush=True)
    finally:
        benchmark.close()
    print(markdown(results))
    return int(any(case["failed"] for case in results["cases"]) or not all(c["passed"] for c in results["checks"]))


if __name__ == "__main__":
    sys.exit(main())
