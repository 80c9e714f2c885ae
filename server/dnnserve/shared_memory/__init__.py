"""Regions of POSIX shared memory that clients on the same machine register, to have inputs read there and outputs written there.

The server's process opens a region (`registry`), every front end has a table of them (`regions`). Nobody maps one: they are read
and written as files, so that a client that makes its memory shorter meanwhile causes an error of its own request, where a mapping
would cost the process its life (SIGBUS).
"""
