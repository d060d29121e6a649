"""An experiment config as a checked record: composing, building, inspecting."""
