"""Damaged and hostile checkpoints, by the number: mutation i of a directory is the same each time.

    python tests/interop/mutations.py 10000

reads that many, with the memory that this process may have limited, and says what became of them.
"""

import copy
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from lmrep.core.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = [
    0, -1, 1, 2, 3, 0.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**48, 2**63, 2**64 - 1, 10**30, 10**400, None,
    True, False, "", "F32", "I64", "../../etc/passwd", "\ud800", "\0", "a" * 10_000, [], {}, [[]], [2**40] * 3,
    [1] * 50, {"a": {"b": {}}}, "gelu", "bert", "RobertaModel", ["BertModel"], {"AutoModel": "x.y"}]
SECONDS = 20  # that one may take


def mutate(directory: Path, number: int) -> str:
    """Changes one file of a directory and returns a description."""
    draw = random.Random(number)
    names = sorted(path.name for path in directory.iterdir() if path.name != "expected.safetensors")
    tokenizer = [name for name in names if name != "config.json" and not name.startswith("model")]
    path = directory / draw.choice(tokenizer if tokenizer and draw.random() < 0.3 else names)
    content = path.read_bytes()
    if path.suffix == ".json":
        changed = draw.choice([_other_value, _bytes])(draw, content)
    elif path.suffix != ".safetensors":
        changed = draw.choice([_lines, _bytes, _cut])(draw, content)
    else:
        changed = draw.choice([_header, _header, _length, _bytes, _cut])(draw, content)
    path.write_bytes(changed)
    return path.name


def _other_value(draw: random.Random, content: bytes) -> bytes:
    """JSON with some of its values, at any depth, in favour of hostile ones; or with keys gone, or new."""
    tree = json.loads(content)
    for _ in range(draw.randint(1, 3)):
        node = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and draw.random() < 0.8:
                node = node[key]
                continue
            action = draw.random()
            if action < 0.15:
                del node[key]
            elif action < 0.3 and isinstance(node, dict):
                new = draw.choice([f"{key}x", "__metadata__", "auto_map", "is_decoder"])
                node[new] = copy.deepcopy(draw.choice(HOSTILE))
            elif action < 0.5 and isinstance(node[key], int):
                node[key] += draw.choice([-1, 1, 4, -4, 2**32])
            else:
                node[key] = copy.deepcopy(draw.choice(HOSTILE))
            break
    return json.dumps(tree).encode()


def _header(draw: random.Random, content: bytes) -> bytes:
    """A file of tensors whose header is changed as `_other_value` does, its length right again."""
    length = int.from_bytes(content[:8], "little")
    header = _other_value(draw, content[8 : 8 + length])
    if draw.random() < 0.1:
        header = draw.choice([b"[" * 100_000, b"[]" , b"{" * 3, b'{"a":' * 50_000, header[:-1] + b',"x":1,"x":2}',
                              b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}'])
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _length(draw: random.Random, content: bytes) -> bytes:
    length = draw.choice([0, 1, 2**63, 2**64 - 1, 100_000_000, len(content), len(content) - 8, draw.randrange(2**16)])
    return length.to_bytes(8, "little") + content[8:]


def _bytes(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice([1, 2, 20])):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _lines(draw: random.Random, content: bytes) -> bytes:
    """A text with some lines removed, duplicated, moved or replaced."""
    lines = content.split(b"\n")
    for _ in range(draw.choice([1, 2, 20])):
        at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        lines[at:at] = draw.choice([[], [lines[other]], [b"\r"], [b""], [b" "], [b"\xff\xfe"], [b"a b c"], [b"##"],
                                    [b"x" * 10_000], [b"<mask>"], [b"#version"], [b"\x00"]])
        if draw.random() < 0.5 and len(lines) > 1:
            del lines[draw.randrange(len(lines))]
    return b"\n".join(lines)


def _cut(draw: random.Random, content: bytes) -> bytes:
    return draw.choice([content[: draw.randrange(len(content))], content + bytes(draw.randrange(1, 100)), b""])


def attempt(number: int, names: tuple[str, ...], place: Path) -> str:
    """Reads a mutated copy of a golden directory: "read", or "refused". Whatever else it does is raised.

    Tensors and tokenizer are read on their own, so that one is not spared by the other's refusal, and what is read is
    put to use: written and read again, a text encoded, the record of a run made.
    """
    from lmrep.data import tokenizers
    from lmrep.interop import conversion
    from lmrep.interop.huggingface.read import read
    from lmrep.interop.huggingface.write import write

    directory = place / "mutated"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(GOLDEN / names[number % len(names)], directory)
    if number // len(names) % 3 == 0 and (directory / "tokenizer_config.json").exists():
        tokenizers.load(directory).save(directory)  # with a tokenizer.json
    changed, written, found = mutate(directory, number), place / "written", {}
    shutil.rmtree(written, ignore_errors=True)
    written.mkdir()

    def tensors() -> None:
        found["checkpoint"] = read(directory)
        write(found["checkpoint"], written, 10**9)
        read(written)

    def tokenizer() -> None:
        made = found["tokenizer"] = tokenizers.load(directory)
        ids = made.encode("the Caf\u00e9\u5927 <mask> [MASK] \0 \U0001f431x, 2010,", specials=True).ids
        made.decode(ids)
        assert ids.max() < made.size and made.vocabulary.size == made.size and made.encode_batch(["the cat."])
        made.save(written)
        assert tokenizers.load(written).fingerprint == made.fingerprint

    def together() -> None:
        if len(found) == 2:
            conversion.equivalent_experiment(found["checkpoint"], found["tokenizer"], "x")

    outcome = "read"
    for part in (tensors, tokenizer, together):
        try:
            part()
        except UserError as error:
            assert len(str(error)) < 2000, error
            outcome = "refused"
    return f"{outcome}, {changed.split('-')[0]}"


def main() -> None:
    """Reads the number of mutations given on the command line."""
    names = tuple(sorted(path.name for path in GOLDEN.iterdir()))
    for number in range(2 * len(names)):  # all that is imported late is here
        with tempfile.TemporaryDirectory() as place:
            attempt(number, names, Path(place))
    before = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (before + 2**29, before + 2**29))
    counts, slowest = Counter(), (0.0, -1)
    with tempfile.TemporaryDirectory() as place:
        for number in range(int(sys.argv[1])):
            signal.alarm(SECONDS)
            began = time.process_time()
            try:
                counts[attempt(number, names, Path(place))] += 1
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # as panics of the tokenizers library are
                counts[type(error).__name__] += 1
                print(f"mutation {number}: {type(error).__name__}: {str(error)[:300]}")
            slowest = max(slowest, (time.process_time() - began, number))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(dict(sorted(counts.items())), f"slowest {slowest[0]:.2f} s of processor (mutation {slowest[1]}), peak of "
          f"memory {peak:.0f} MB, address space limited to 512 MB more than at the start")


if __name__ == "__main__":
    main()
