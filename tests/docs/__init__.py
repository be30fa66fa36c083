"""The pages, their promises and programs, and the lists of mutants."""
