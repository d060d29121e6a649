"""Faults to plant, of the kinds that real ones were: a mask off by one, a weight that is not normalised, a key used
twice, a wrong axis, a swapped label map, a resume that skips a batch, a message without the field."""

from typing import NamedTuple


class Fault(NamedTuple):
    """A change of one place in a file.

    Attributes:
      name: what is wrong then.
      file: a path in the checkout.
      before: text that the file has once.
      after: what replaces it.
      tests: folders and files of tests that cover the file; by default the folder of tests of its package.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...] = ()

    @property
    def covering_tests(self) -> tuple[str, ...]:
        """`tests`, or the folder of the file's package."""
        return self.tests or (f"tests/{self.file.split('/')[1]}",)


FAULTS = (
    Fault("the causal mask hides a position from itself", "lmrep/layers/attention.py",
          "positions[:, None] >= positions[None, :]", "positions[:, None] > positions[None, :]"),
    Fault("dropout does not rescale what it keeps", "lmrep/layers/dropout.py",
          "x.astype(jnp.float32) / (1 - rate), 0)", "x.astype(jnp.float32), 0)"),
)
