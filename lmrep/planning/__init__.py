"""What a run costs: FLOPs."""
