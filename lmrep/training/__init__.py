"""One trainer for everything. It names no model and no objective."""
