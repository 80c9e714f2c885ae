"""Every emulated instruction and driver feature against a GPU: `python -m emulator.conformance --out DIR`."""
