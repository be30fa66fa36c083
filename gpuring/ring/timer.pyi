"""Types of timer.pyx."""

class Timer:
    fd: int
    def set(self, seconds: float) -> None: ...
