"""Requests from front ends in processes of their own to the scheduler: rows in shared memory, all else as messages."""
