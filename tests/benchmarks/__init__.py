"""The programs of `bench`: what they measure and report, in host memory."""
