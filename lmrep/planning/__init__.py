"""What a run costs: operations, energy, price; plans for other hardware."""
