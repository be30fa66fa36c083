"""The C core and its binding: verbs, tables, waits, device order.  The rings have no names here."""
