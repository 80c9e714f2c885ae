"""POSIX shared memory objects, opened by name.

The names are those of `shm_open`, which on Linux are those of files in /dev/shm: a name with a slash within it is refused, and a
symbolic link is not followed, so that no other file can be reached.
"""

from __future__ import annotations

import os
import re
import stat

from dnnserve.catalog import shorten
from dnnserve.errors import InvalidRequestError

__all__ = ["open_object", "size_of"]

_FOLDER = "/dev/shm"
_KEY = re.compile(r"/?[^/\0]+")
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_object(key: str) -> int:
    """A descriptor of an object, for reading and writing, or for reading alone where writing is not permitted.

    Raises:
        InvalidRequestError: there is no such object, or it is none of ours to open.
    """
    name = key.removeprefix("/")
    if _KEY.fullmatch(key) is None or name in (".", ".."):
        raise InvalidRequestError(
            f"{shorten(key)} is no key of a shared memory object; send a name without slashes, with one before it or not"
        )
    folder = os.open(_FOLDER, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fd = os.open(name, _FLAGS | os.O_RDWR, dir_fd=folder)
        except PermissionError:
            fd = os.open(name, _FLAGS | os.O_RDONLY, dir_fd=folder)
    except OSError as error:
        raise InvalidRequestError(
            f"shared memory object {shorten(key)} cannot be opened ({error.strerror}); the client and the server need to be on one "
            "machine, with one /dev/shm"
        ) from error
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidRequestError(f"{shorten(key)} is no shared memory object")
    return fd


def size_of(fd: int) -> int:
    """Bytes that an object has now."""
    return os.fstat(fd).st_size
