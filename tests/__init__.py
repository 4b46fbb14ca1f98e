"""The test suite; a package, so that tests can share `tests.marks`."""
