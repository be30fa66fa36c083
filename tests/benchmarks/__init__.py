"""Tests of the programs in `bench`: what they measure and report.  They use host memory."""
