"""Pure layers, one concept per file: `specs(...)` declares the parameters, `apply(params, x, ...)` is the function.

Einsum letters: b batch, t query position, s key position, d width, h heads, k head width, f feed-forward width, v
vocabulary, l layers, m predicted positions. `key=None` means no dropout.
"""
