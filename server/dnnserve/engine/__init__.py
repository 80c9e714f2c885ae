"""Batches on devices: a runner thread for each, over a host in this process or in one of its own."""
