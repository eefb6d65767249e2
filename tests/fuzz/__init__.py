"""Hostile input: a fuzzer for live workers, as a script and as part of the tests."""
