"""Processes of the server's own: how one is started, told what to do, spoken with, and ended."""
