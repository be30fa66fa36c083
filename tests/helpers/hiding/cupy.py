"""Comes before CuPy in the path of tests that hide CuPy, which then cannot be imported."""

raise ModuleNotFoundError("CuPy is hidden from these tests", name="cupy")
