"""The model card of a run: README.md of a repository on the Hugging Face Hub."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lmrep.analysis.report import prose, tables
from lmrep.analysis.report.metrics import declared, headlines
from lmrep.analysis.report.recipes import settings
from lmrep.analysis.report.run_data import RunData
from lmrep.core.hub import PROTOCOL
from lmrep.interop.huggingface.read import Published
from lmrep.metrics import COMMON
from lmrep.planning import run_cost

# Head of a published checkpoint -> the Hub's name of what it does.
PIPELINES = {
    "classification": "text-classification", "regression": "text-classification", "multilabel": "text-classification",
    "tagging": "token-classification", "span_extraction": "question-answering",
    "conditioned_ends": "question-answering", "multiple_choice": "multiple-choice", "masked": "fill-mask",
    "causal": "text-generation"}
SETTINGS = ("objective.name", "optimizer.name", "optimizer.learning_rate", "optimizer.weight_decay",
            "optimizer.schedule.name", "warm-up steps", "steps", "batch_size", "length", "format.name",
            "tokenizer.name", "tokenizer.lowercase")
# A path from the root of this machine. Its folders may name people or projects, and a card is public.
LOCAL_PATH = re.compile(r"(?<![\w:/.~-])/(?:[^\s/'\"`|,]+/)*([^\s/'\"`|,]+)")
REPOSITORY = re.compile(rf"^{PROTOCOL}(datasets/)?([^/@]+/[^/@]+)(?:@([^/]+))?")


def card(run: RunData, checkpoint: Published, repo: str, license_name: str = "", language: str = "") -> str:
    """Writes the model card of a run.

    Args:
      run: the run.
      checkpoint: the run as it is published.
      repo: OWNER/NAME.
      license_name: the Hub's identifier of a license, such as "apache-2.0"; "" for none.
      language: ISO 639 code, such as "en"; "" if it is not known.

    Returns:
      Markdown with YAML metadata. Of local paths it has the last part.
    """
    text = f"---\n{_metadata(run, checkpoint, repo, license_name, language).to_yaml()}\n---\n\n" + "\n\n".join(
        filter(None, [f"# {repo.rpartition('/')[2]}", prose.subject(run), *_results(run), *_use(checkpoint, repo),
                      *_training(run)])) + "\n"
    return LOCAL_PATH.sub(r"\1", text)


def _metadata(run: RunData, checkpoint: Published, repo: str, license_name: str, language: str) -> Any:
    from huggingface_hub import ModelCardData

    experiment = run.experiment
    addresses = [address for _, data in sorted(_data(run).items()) for address in data.split(",")]
    datasets = [match[2] for address in addresses if (match := REPOSITORY.match(address)) and match[1]]
    base = REPOSITORY.match(experiment.init or "")
    results = list(_evaluations(run, _pipeline(checkpoint)))
    return ModelCardData(
        language=language or None, license=license_name or None, library_name="transformers",
        tags=["lmrep", checkpoint.family.model_type, run.stage.objective_name],
        datasets=[*dict.fromkeys(datasets)] or None, base_model=base[2] if base and not base[1] else None,
        pipeline_tag=_pipeline(checkpoint),
        metrics=[*dict.fromkeys(result.metric_type for result in results)] or None,
        model_name=repo.rpartition("/")[2] if results else None, eval_results=results or None)


def _pipeline(checkpoint: Published) -> str:
    names = [checkpoint.task.name] if checkpoint.task else checkpoint.heads
    return next((PIPELINES[name] for name in names if name in PIPELINES), "feature-extraction")


def _data(run: RunData) -> dict[str, str]:
    """Returns {split: its files} of a run's data."""
    data = run.experiment.data
    if run.results is None:
        return {"train": data.files}
    return {split: getattr(data, split) for split in ("train", "validation", "test") if getattr(data, split)}


def _evaluations(run: RunData, task_type: str) -> Iterator[Any]:
    """Yields the library's `EvalResult` of each metric."""
    from huggingface_hub import EvalResult

    metrics = declared(run)
    known = [("validation", {name: run.last("validation", name) for name in headlines(run)})] if run.validation else []
    if run.results is not None and run.results.evaluations:
        known = [(str(one.get("split") or one.get("files")), one["metrics"]) for one in run.results.evaluations]
    for split, values in known:
        files = _data(run).get(split) or _data(run).get("train", "")
        match = REPOSITORY.match(files)
        where = {"dataset_type": match[2], "dataset_name": match[2], "dataset_revision": match[3]} if match else {
            "dataset_type": "other", "dataset_name": run.experiment.name}
        for name, value in values.items():
            if name in metrics and isinstance(value, int | float) and name not in COMMON and not prose.is_baseline(
                    run, name):
                yield EvalResult(task_type=task_type, metric_type=name, metric_name=metrics[name].title,
                                 metric_value=round(value, 6), dataset_split=split, **where)


def _results(run: RunData) -> list[str]:
    verdict = prose.verdict(run)
    table = tables.evaluations(run) if run.results is not None else {}
    return ["## Results", f"{verdict.headline} {verdict.text}".strip(),
            _table(table["head"], table["rows"]) if table else "",
            "Ranges are 95% bootstrap intervals." if table.get("intervals") else ""]


def _use(checkpoint: Published, repo: str) -> list[str]:
    name = repo.rpartition("/")[2]
    return ["## Use", f"""```python
from transformers import AutoTokenizer, {checkpoint.class_name}

tokenizer = AutoTokenizer.from_pretrained("{repo}")
model = {checkpoint.class_name}.from_pretrained("{repo}")
```""", f"""With lmrep, start a run from it (`init={PROTOCOL}{repo}`), or make a workdir of it:

```bash
lmrep convert {PROTOCOL}{repo} runs/{name}
```"""]


def _training(run: RunData) -> list[str]:
    experiment, network, data = run.experiment, run.network, _data(run)
    size = network.tokenizer.size if network else experiment.tokenizer.vocab_size
    values = settings(experiment, size)
    rows = [("parameters", f"{network.parameters:,}")] if network else []
    rows += [(f"{split} data", files) for split, files in data.items() if files]
    rows += [("initial parameters", experiment.init)] if experiment.init else []
    rows += [(name, str(values[name])) for name in SETTINGS if name in values]
    versions = [f"{name} {version}" for start in run.starts[-1:]
                for name, version in (start.get("versions") or {}).items() if version]
    command = prose.command(run)
    return ["## Training", _table(["setting", "value"], rows), prose.cost(run),
            f"Energy: {run_cost.energy(run.cost)}." if run.cost else "",
            f"Price: {run.cost.price:,.2f}." if run.cost and run.cost.price is not None else "",
            f"Command:\n\n```bash\n{command}\n```" if command else "",
            f"Seed {experiment.seed}. {', '.join(versions)}"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table in Markdown."""
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"

    return "\n".join(map(line, [head, ["---"] * len(head), *rows]))
