"""The command `gpuring` and its subcommands."""
