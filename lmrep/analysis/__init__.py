"""Looking into trained runs: reports, model cards, probes, neighbours, pruning, and the importance of heads."""
