"""Benchmarks of development; they are no part of the installed package."""
