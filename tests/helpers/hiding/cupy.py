"""Stands before CuPy in the path of tests that hide it, so that it cannot be imported."""

raise ModuleNotFoundError("CuPy is hidden from these tests", name="cupy")
