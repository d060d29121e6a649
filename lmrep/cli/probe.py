"""Measures what every layer of a network holds, and prints it by layer with 95 % intervals.

--workdir is a run or a published directory, whose network and tokenizer are used; the network does not change. --config
is the config file of a task, which says what is predicted from which data:

  tagging, classification   trains a linear classifier on every layer, all of them together. The network's vectors are
                            computed once.
  regression                trains nothing: compares the cosine similarity of two sentences with their label, on the
                            validation pairs alone, by Pearson's and Spearman's correlation. The vector of a sentence is
                            the mean over its tokens, special ones included (tasks/stsb.py).
  word_in_context           trains nothing: a word has one meaning in two contexts if the cosine similarity of its
                            vectors is above a threshold, which the training pairs choose (tasks/wic.py).

With --trees and the CoNLL-U files of a treebank (tasks/ud_pos.py), it trains structural probes (Hewitt and Manning,
2019): linear maps of word vectors, the means over each word's tokens, whose squared distances approximate the distances
in dependency trees. It prints UUAS, without punctuation, and DSpr.

With --edges, it trains edge probes (Tenney et al., 2019), on every layer and on a learned sum of all: a classifier with
a hidden layer predicts labels of one or two spans of words. The files of the config file are:

  --edges=tags     words with tags (tasks/tag.py, tasks/ud_pos.py): the tag of each word, or the type of each entity
  --edges=arcs     CoNLL-U (tasks/ud_pos.py): the relation of each word to its head
  --edges=targets  JSON Lines of the published form (tasks/tag.py), with words between white space, and spans of them:
                   {"text": "Ann left Rome", "targets": [{"span1": [1, 2], "span2": [2, 3], "label": "A1"}]};
                   span2 may be absent, and label may be a list

It prints micro-averaged F1, that of a control task, whose labels the words choose at random (Hewitt and Liang, 2019),
and selectivity, their difference. --mdl adds the description length of the training labels in kbit, by the online code
(Voita and Titov, 2020), and compression, by which factor the uniform code is longer.

--untrained probes a network of the same config with random parameters too, since much can be read from the words alone.

--checkpoints=all probes every checkpoint of a run. The network of --untrained, which is the same for all of them, is
probed once, with the first.

The result is also written to probes.json in the workdir, and shown by lmrep report; of a published directory, to the
file that --output names."""

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Any

from lmrep.cli import over_time
from lmrep.cli.arguments import Arguments, Flag, at_least
from lmrep.config.record import Bounds
from lmrep.core.errors import UserError
from lmrep.core.files import check_output
from lmrep.core.messages import aligned, show_messages
from lmrep.core.paths import as_path

FLAGS = {
    "examples": Flag(0, "the number of training examples, at equal distances; 0: all", bounds=at_least(0)),
    "trees": Flag(False, "train structural probes on the dependency trees of CoNLL-U files, in place of classifiers"),
    "edges": Flag(None, "train edge probes on spans of the config's files, in place of classifiers: tags, arcs or "
                  "targets", str, Bounds(choices=("tags", "arcs", "targets"))),
    "mdl": Flag(False, "with --edges: also compute description lengths, which trains eleven times as many classifiers"),
    "untrained": Flag(False, "probe a network with random parameters too"),
    **over_time.FLAGS,
    "output": Flag("", "the JSON file to write (default: probes.json in the workdir)", as_path),
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    workdir, flags = arguments.required_workdir(), arguments.flags
    if not arguments.config_file:
        raise UserError("lmrep probe needs the config file of a task, which says what is predicted: "
                        "--config=experiments/tasks/ud_pos.py:data=UD_English-EWT")

    from lmrep.analysis import probes
    from lmrep.core import remote
    from lmrep.inference.evaluate import Measured
    from lmrep.interop import conversion

    output = Path(flags.output) if flags.output else None
    if output is None and not remote.as_url(workdir) and conversion.is_workdir(Path(workdir)):
        output = Path(workdir) / probes.FILE
    if output:
        check_output(output)
        probes.stored(output)  # a damaged file is refused now
    steps = over_time.checkpoints(arguments, workdir)
    show_messages()

    def probe(step: int | None, untrained: bool) -> dict[str, Any]:
        config = dataclasses.replace(arguments, workdir=None).load_config()
        return probes.probe(config, workdir, flags.examples, untrained, step, flags.trees, flags.edges or "",
                            flags.mdl)

    def store(result: dict[str, Any]) -> None:
        if output:
            probes.store(result, output)

    def best_by_layer(step: int) -> Measured:
        result = probe(step, flags.untrained and step == steps[0])
        if step == steps[0]:
            print(f"{probes.shown(result)[result['best']].title} of {probes.method(result)} on every layer:",
                  flush=True)
        return Measured({f"layer {layer.get('layer', number)}": float(layer["metrics"][result["best"]])
                         for number, layer in enumerate(result["layers"])}, {}, partial(store, result))

    if steps:
        over_time.measure(steps, best_by_layer)
        return
    result = probe(arguments.step, flags.untrained)
    head, rows = probes.table(result)
    print(probes.describe(result))
    print(aligned([head, *rows]))
    sys.stdout.flush()
    store(result)
