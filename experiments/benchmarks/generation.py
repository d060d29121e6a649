"""The time of generating texts from texts, beside that of Hugging Face's PyTorch implementation.

    pip install -e . torch transformers
    OMP_WAIT_POLICY=passive python experiments/benchmarks/generation.py --beams=1,4

Both generate with the same random weights of T5 (4 + 4 layers of width 256), for the same padded sources of 32 to 128
random tokens, 48 tokens for each, which none of them ends earlier: lmrep by the search that `lmrep predict` runs,
transformers by `generate` with its cache. The texts must be equal; a line says how many are, how many different tokens
they have, and what the matrix products of lmrep's program take, each computed alone: an estimate of the floor of
either library. Rounds alternate. On a busy machine PyTorch's threads wait for each other;
OMP_WAIT_POLICY=passive helps it.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from arguments import parse_flags
from generation_steps import searching, sources
from timing import Row, alternate, describe_floor, print_table
from training_steps import t5

from lmrep.core.host import keep_memory
from lmrep.core.params import unflatten
from lmrep.interop.huggingface import FAMILIES
from lmrep.interop.huggingface.read import assign
from lmrep.models import encoder_decoder
from lmrep.planning import flops

END = 1


def reference(o):
    """transformers' network. Its embeddings are small and its other weights large, so that texts vary."""
    import torch

    torch.manual_seed(0)
    network = t5(encoder_decoder.Config(vocab=o.vocab, width=o.width, head_width=64, mlp=4 * o.width, layers=o.layers,
                                        heads=o.width // 64)).eval()
    with torch.no_grad():
        network.shared.weight.mul_(0.1)
        for block in (*network.encoder.block, *network.decoder.block):
            for name, weight in block.named_parameters():
                weight.mul_(1 if "norm" in name or "bias" in name else 2)
        network.shared.weight[END] = 0  # no text ends
    return network


def compiled(network, o, beams, source, real):
    """A function that generates with lmrep from the weights of `network`, and the matrix products of its program."""
    config = FAMILIES["t5"].network(network.config.to_dict(), "its config")
    tensors = {name: x.detach().numpy() for name, x in network.state_dict().items()}
    found, _ = assign(tensors, FAMILIES["t5"], config, Path("its state"))
    params, model = jax.tree.map(jnp.asarray, unflatten(found)["encoder"]), encoder_decoder.build(config)
    search = searching(model, o.tokens, beams, END)
    program = search.lower(params, source, real).compile()
    return lambda: np.asarray(program(params, source, real)), flops.products(search, params, source, real)


def measure(network, o, beams, tokens, real):
    """A row of the table."""
    import torch

    (generate, products), texts = compiled(network, o, beams, jnp.asarray(tokens), jnp.asarray(real)), {}

    def ours(_):
        texts["lmrep"] = generate()

    def theirs(_):
        with torch.inference_mode():
            texts["transformers"] = network.generate(
                torch.tensor(tokens, dtype=torch.int64), attention_mask=torch.tensor(real, dtype=torch.int64),
                max_new_tokens=o.tokens, num_beams=beams, do_sample=False, early_stopping=False,
                use_cache=True).numpy()[:, 1:]

    seconds = alternate({"lmrep": ours, "transformers": theirs}, o.rounds)
    found, expected = texts["lmrep"], texts["transformers"]
    found = found[:, : expected.shape[1]]
    print(f"{beams} beams: {(found == expected).all(1).sum()} of {o.batch_size} texts are equal, with "
          f"{len(np.unique(found))} different tokens. The program of lmrep has {describe_floor(products)}", flush=True)
    return Row("greedy" if beams == 1 else f"{beams} beams", *seconds.values())


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 4, "width": 256, "vocab": 32128, "batch_size": 64, "length": 128, "tokens": 48,
                        "rounds": 6}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--beams", default="1,4", help="numbers of beams, separated by commas; 1 is greedy")
    o = parse_flags(parser, layers=1, width=64, vocab=200, batch_size=2, length=8, tokens=4, rounds=1, beams="1,2")
    keep_memory()  # before PyTorch is imported
    network = reference(o)
    tokens, real = sources(o.vocab, o.batch_size, o.length, np.random.default_rng(0))
    rows = [measure(network, o, int(beams), tokens, real) for beams in o.beams.split(",")]
    print_table(("decoding", "lmrep", "transformers"), rows,
                f"{o.batch_size} texts of {o.tokens} tokens, sources of up to {o.length}",
                f"T5 of {o.layers} + {o.layers} layers of width {o.width}, vocabulary {o.vocab:,}")


if __name__ == "__main__":
    main()
