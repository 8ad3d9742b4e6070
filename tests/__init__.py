"""Tests: unit, contract, property, system (real processes and servers), benchmarks."""
