"""Pure layers, one concept a file: `specs(...)` gives the parameters, `apply(params, x, ...)` the function.

Letters, here and everywhere: b batch, t query position, s key position, d model width, h heads, k width of a
head, f feed-forward width, v vocabulary, l layers, m predicted positions. `key=None` means no dropout.
"""
