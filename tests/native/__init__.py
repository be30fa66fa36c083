"""The C core and its binding, without rings by name: verbs, tables, waits, device order."""
