"""Claims of papers: the rows of a published table, trained with several seeds, measured in one way, and compared."""

from lmrep.claims.claim import Claim, Measure, Row, at_scale, medium, one_gpu

__all__ = ["Claim", "Measure", "Row", "at_scale", "medium", "one_gpu"]
