"""Writes the contextual vectors of a text file to a safetensors file. Line i, from 0, becomes the float32 tensor named
`i`, [layers, tokens, width]. Special tokens have vectors too, unless --words gives one vector per word. The names of
special tokens in the text, such as [MASK], are read as these tokens.

--layers is last, all (the embedding output and every layer), or numbers such as 4 or 3,4, where negative numbers count
from the last layer; sum:9,10,11,12 and concat:9,10,11,12 combine layers. The text may be larger than memory. More than
about a million lines become several files, vectors-00001-of-00003.safetensors and so on."""

import sys
import time

from lmrep.cli.arguments import STEP, Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {
    "input": Flag(None, "a UTF-8 text file"),
    "output": Flag(None, "the .safetensors file to write"),
    "layers": Flag("last", "the layers: last, all, 4, 3,4, -1, sum:3,4, concat:3,4"),
    "words": Flag(False, "one vector per word instead of one per token"),
    "pieces": Flag("mean", "with --words, how the vectors of a word's tokens are combined: mean, first, last"),
    "long": Flag("refuse", "lines longer than the model: refuse, or windows that overlap by half"),
    "step": STEP,
}


def run(arguments: Arguments) -> int:
    """The command."""
    workdir, flags = arguments.required_workdir(), arguments.flags
    for name in ("input", "output"):
        if not getattr(flags, name):
            raise UserError(f"lmrep embed needs --{name}, for example --input=texts.txt --output=vectors.safetensors")

    from lmrep import api
    from lmrep.inference import export

    trained = api.load(workdir, arguments.step)
    with ProgressLine() as line:
        files = export.embed(trained, flags.input, flags.output, layers=flags.layers,
                             words=flags.pieces if flags.words else "", long=flags.long, tell=line.show)
    for path in files:
        print(path)
    return 0


class ProgressLine:
    """Shows progress on standard error: on a terminal one line that is rewritten, elsewhere a line every 10 seconds."""

    def __init__(self):
        self._terminal = sys.stderr.isatty()
        self._every = 0.2 if self._terminal else 10
        self._next, self._last, self._shown = time.monotonic() + self._every, None, None

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_) -> None:
        if self._last is not None and self._last != self._shown:
            self._print()
        if self._terminal and self._shown is not None:
            print(file=sys.stderr)

    def show(self, progress) -> None:
        """Takes an `export.Progress`."""
        self._last, now = progress, time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            self._print()

    def _print(self) -> None:
        self._shown = p = self._last
        left = p.seconds / p.lines * (p.of - p.lines)
        text = (f"{p.lines:,} of {p.of:,} lines  {p.tokens / max(p.seconds, 1e-9):,.0f} tokens/s  "
                f"{int(left) // 60}:{int(left) % 60:02} left")
        print(f"\r{text:70}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr,
              flush=True)
