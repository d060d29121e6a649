"""The cost of a run: operations, energy and price, and plans for other hardware."""
