"""A slot as the arrays of other libraries: interchange, copies, streams."""
