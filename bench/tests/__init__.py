"""Tests of the benchmarks: a measurement that can't fail is no measurement."""
