"""A file on a real FUSE file system whose server answers, takes its time, or hangs for as long as a test wants."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.real_parts import unavailable

__all__ = ["FuseFile", "fuse_file"]

DETACH = 2
"""MNT_DETACH of umount2(2): also where somebody still waits."""
REQUEST = 1 << 17
KEPT = 3600
"""Seconds the kernel may keep what it was told of the file: only reads come to the server."""
# Of the kernel's include/uapi/linux/fuse.h.
FORGET, GETATTR, OPEN, READ, RELEASE, INIT, INTERRUPT, BATCH_FORGET = 2, 3, 14, 15, 18, 26, 36, 42
UNANSWERED = frozenset({FORGET, INTERRUPT, BATCH_FORGET})
OPENED = 1 | 1 << 5
"""FOPEN_DIRECT_IO: every read comes to the server; FOPEN_NOFLUSH: a close, and so a process's end, waits for nobody."""


class FuseFile:
    """The file ``place``, mounted over the one that is there; ``text`` is what it holds, a read takes ``delay`` s."""

    def __init__(self, place: Path, text: str) -> None:
        self.text = text
        self.delay = 0.0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._place = os.fsencode(place)
        self._answers = threading.Event()
        self._answers.set()
        self._idle = threading.Event()
        self._ended = False
        try:
            self._server = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            unavailable(f"/dev/fuse: {error.strerror}")
        options = f"fd={self._server},rootmode=100444,user_id=0,group_id=0,allow_other".encode()
        if self._libc.mount(b"wedged", self._place, b"fuse", 0, options):
            why = os.strerror(ctypes.get_errno())
            os.close(self._server)
            unavailable(f"mount: {why} (needs root and CAP_SYS_ADMIN)")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def hang(self) -> None:
        """Answer nothing more; what is asked waits in the kernel."""
        self._answers.clear()
        self._idle.wait(10)

    def release(self) -> None:
        """Answer again, also what was asked meanwhile."""
        self._idle.clear()
        self._answers.set()

    def close(self) -> None:
        """Unmount it; who still waits is told that nobody is there."""
        self._ended = True
        self._answers.set()
        self._thread.join(10)
        os.close(self._server)
        self._libc.umount2(self._place, DETACH)

    def _serve(self) -> None:
        while not self._ended:
            if not self._answers.is_set():
                self._idle.set()
                self._answers.wait()
            if select.select([self._server], [], [], 0.02)[0]:
                with contextlib.suppress(BlockingIOError):
                    self._answer(os.read(self._server, REQUEST))

    def _answer(self, request: bytes) -> None:
        _, opcode, unique = struct.unpack_from("<IIQ", request)
        if opcode in UNANSWERED:
            return
        body = self._body(opcode, request[40:])
        error = 0 if body is not None else -errno.ENOSYS
        data = body or b""
        # Who asked may have been killed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            os.write(self._server, struct.pack("<IiQ", 16 + len(data), error, unique) + data)

    def _body(self, opcode: int, given: bytes) -> bytes | None:
        data = self.text.encode()
        if opcode == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 36, 0, 0, 16, 12, 4096, 1, 1, 0, 0)
        if opcode == GETATTR:
            attributes = struct.pack("<6Q10I", 1, len(data), 0, 0, 0, 0, 0, 0, 0, 0o100444, 1, 0, 0, 0, 4096, 0)
            return struct.pack("<QII", KEPT, 0, 0) + attributes
        if opcode == OPEN:
            return struct.pack("<QII", 1, OPENED, 0)
        if opcode == READ:
            time.sleep(self.delay)
            _, offset, size = struct.unpack_from("<QQI", given)
            return data[offset : offset + size]
        return b"" if opcode == RELEASE else None


@contextlib.contextmanager
def fuse_file(place: Path, text: str | None = None) -> Iterator[FuseFile]:
    """Mount a file over ``place``, which holds ``text``, or what it held before."""
    file = FuseFile(place, place.read_text() if text is None else text)
    try:
        yield file
    finally:
        file.close()
