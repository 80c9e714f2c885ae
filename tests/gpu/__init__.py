"""Tests that only a real GPU can run, with other libraries on it: `make test-gpu`."""
