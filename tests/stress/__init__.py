"""Many threads, handles and devices at once, long loops and sudden ends; `python -m tests.stress` runs the first at any size."""
