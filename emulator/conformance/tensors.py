"""What the tensor-copy checks share: the kernels' PTX, and in NumPy where each element of a box goes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.conformance import values
from emulator.conformance.values import WIDTHS, WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from emulator.conformance.values import Array

DECLARATIONS = ".extern .shared .align 1024 .b8 dynamic[];\n"
THREADS = 128
# CUtensorMapDataType of each register type.
DATA_TYPES = {
    "u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
NAN_BITS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}
SWIZZLE_MASKS = {0: 0, 1: 1, 2: 3, 3: 7}  # of the 16-byte chunk, by CUtensorMapSwizzle


def swizzled(offset: Any, swizzle: int) -> Any:
    """Where bytes of a tile lie: the chunk of 16 bytes within its span is xored with the number of the 128-byte row."""
    return offset ^ (offset >> 7 & SWIZZLE_MASKS[swizzle]) << 4


def _prologue(name: str, rank: int, offsets: int) -> str:
    coordinates = "".join(f"  ld.global.b32 c{i}, [at + {4 * i}];\n" for i in range(rank))
    coordinates += "".join(f"  ld.global.b16 o{i}, [at + {20 + 2 * i}];\n" for i in range(offsets))
    return f""".visible .entry {name}(.param .align 64 .b8 map[128], .param .u64 where, .param .u64 data, .param .u32 size)
{{
  .shared .align 8 .b64 barrier;
  .reg .b32 t, tile, bar, bytes, i, word, slot, attempt, c<5>, rank; .reg .b16 o<3>, mask; .reg .b64 m, at, to; .reg .pred p, q;
  mov.u32 t, %tid.x; mov.u32 tile, dynamic; add.u32 tile, tile, 1023; and.b32 tile, tile, -1024;
  mov.u32 bar, barrier; mov.b64 m, map; cvta.param.u64 m, m; ld.param.u32 bytes, [size];
  ld.param.u64 at, [where];
{coordinates}  ld.param.u64 at, [data]; setp.eq.u32 q, t, 0;
"""


def braces(rank: int, letter: str = "c") -> str:
    """`{c0, c1}`."""
    return "{" + ", ".join(f"{letter}{i}" for i in range(rank)) + "}"


_WAIT_AND_DUMP = f"""  mov.u32 attempt, 0;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [bar], 0; @p bra ARRIVED;
  add.u32 attempt, attempt, 1; setp.lt.u32 p, attempt, 20000; @p bra WAIT; trap;
ARRIVED: shl.b32 i, t, 2;
NEXT: setp.ge.u32 p, i, bytes; @p bra DONE;
  add.u32 slot, tile, i; ld.shared.b32 word, [slot]; cvt.u64.u32 to, i; add.s64 to, at, to; st.global.b32 [to], word;
  add.u32 i, i, {4 * THREADS}; bra NEXT;
DONE:"""


def load_kernel(name: str, rank: int, offsets: int | None = None) -> str:
    """Loads one box and writes the tile out; with `offsets` it is im2col."""
    mode = "" if offsets is None else ".im2col"
    shifts = f", {braces(offsets, 'o')}" if offsets else ""
    instruction = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
    return f"""{_prologue(name, rank, offsets or 0)}
  @q mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
  @q mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], bytes;
  @q {instruction} [tile], [m, {braces(rank)}], [bar]{shifts};
{_WAIT_AND_DUMP} ret;
}}
"""


def multicast_kernel(name: str) -> str:
    """Two blocks: each loads one box of two dimensions into both, the second behind the first in the tile."""
    instruction = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
    return f"""{_prologue(name, 2, 0)}
  @q mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
  @q mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], bytes;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mov.u32 rank, %cluster_ctarank; shr.u32 word, bytes, 1; mul.lo.u32 word, word, rank; add.u32 slot, tile, word;
  mad.lo.u32 c1, rank, 8, c1; mov.b16 mask, 3;
  @q {instruction} [slot], [m, {braces(2)}], [bar], mask;
  mul.lo.u32 word, bytes, rank; cvt.u64.u32 to, word; add.s64 at, at, to;
{_WAIT_AND_DUMP} barrier.cluster.arrive; barrier.cluster.wait; ret;
}}
"""


def store_kernel(name: str, instruction: str, rank: int, prefetch: str = "") -> str:
    """Fills the tile from memory and stores or reduces one box."""
    return f"""{_prologue(name, rank, 0)}
  shl.b32 i, t, 2;
NEXT: setp.ge.u32 p, i, bytes; @p bra FILLED;
  add.u32 slot, tile, i; cvt.u64.u32 to, i; add.s64 to, at, to; ld.global.b32 word, [to]; st.shared.b32 [slot], word;
  add.u32 i, i, {4 * THREADS}; bra NEXT;
FILLED: fence.proxy.async.shared::cta; bar.sync 0;
  {prefetch}
  @q {instruction} [m, {braces(rank)}], [tile];
  @q cp.async.bulk.commit_group;
  @q cp.async.bulk.wait_group 0;
  ret;
}}
"""


@dataclass(frozen=True)
class Tiled:
    """A tensor and a box: sizes and box innermost first, strides in elements with the inner one left out."""

    kind: str
    sizes: tuple[int, ...]
    box: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...] = ()
    swizzle: int = 0
    nan: bool = False
    padding: int = 0  # bytes between rows of the innermost dimension

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return WIDTHS[self.kind] // 8

    @property
    def strides(self) -> list[int]:
        """In bytes, of the dimensions from the second on."""
        found = [self.sizes[0] * self.size + self.padding]
        for extent in self.sizes[1:-1]:
            found.append(found[-1] * extent)
        return found[: len(self.sizes) - 1]

    @property
    def tensor_bytes(self) -> int:
        """From the first byte to the last."""
        return self.sizes[0] * self.size if len(self.sizes) == 1 else self.strides[-1] * self.sizes[-1]

    @property
    def counts(self) -> list[int]:
        """Elements of the box in each dimension."""
        steps = self.steps or (1,) * len(self.box)
        return [-(-extent // step) for extent, step in zip(self.box, steps, strict=True)]

    @property
    def box_bytes(self) -> int:
        """Of a tile."""
        return int(np.prod(self.counts)) * self.size

    def data(self, name: str) -> Array:
        """The tensor's memory as words of its type."""
        return values.bits(name, self.kind, self.tensor_bytes // self.size)

    def elements(self, place: Sequence[int], chunk: int = 1) -> Iterator[tuple[int, int | None]]:
        """For each element of a box, its index in the tile and in the tensor's memory (None: out of bounds).

        Rows of the tensor end with whole chunks of so many elements.
        """
        steps = self.steps or (1,) * len(self.box)
        strides = [self.size, *self.strides]
        order = product(*(range(count) for count in reversed(self.counts)))
        for number, reverse in enumerate(order):
            at = [start + i * step for start, i, step in zip(place, reversed(reverse), steps, strict=True)]
            sizes = (-(-self.sizes[0] // chunk) * chunk, *self.sizes[1:])
            inside = all(0 <= x < extent for x, extent in zip(at, sizes, strict=True))
            offset = sum(x * stride for x, stride in zip(at, strides, strict=True))
            yield swizzled(number * self.size, self.swizzle) // self.size, offset // self.size if inside else None

    def loaded(self, memory: Array, place: Sequence[int]) -> Array:
        """The tile of a load."""
        tile = np.zeros(self.box_bytes // self.size, WORDS[WIDTHS[self.kind]])
        for slot, index in self.elements(place):
            tile[slot] = memory[index] if index is not None else NAN_BITS[self.kind] if self.nan else 0
        return tile


@dataclass(frozen=True)
class Im2col:
    """A tensor of channels, one to three spatial dimensions and images; pixels walk through the bounding box."""

    kind: str
    sizes: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int
    places: tuple[tuple[int, ...], ...]
    offsets: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...] = ()
    swizzle: int = 0
    nan: bool = False

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return WIDTHS[self.kind] // 8

    @property
    def strides(self) -> list[int]:
        """In bytes, of the dimensions from the second on."""
        found = [self.sizes[0] * self.size]
        for extent in self.sizes[1:-1]:
            found.append(found[-1] * extent)
        return found

    @property
    def box_bytes(self) -> int:
        """Of a tile."""
        return self.channels * self.pixels * self.size

    def data(self, name: str) -> Array:
        """The tensor's memory as words of its type."""
        return values.bits(name, self.kind, int(np.prod(self.sizes)))

    def elements(self, place: Sequence[int], offsets: Sequence[int]) -> Iterator[tuple[int, int | None]]:
        """PTX ISA 5.5.4: pixels in the order width, height, depth, image, each within its bounds."""
        space = len(self.sizes) - 2
        steps = self.steps or (1,) * len(self.sizes)
        at = list(place[1:])
        strides = [self.size, *self.strides]
        for pixel in range(self.pixels):
            spot = [at[i] + offsets[i] for i in range(space)] + [at[space]]
            inside = all(0 <= x < extent for x, extent in zip(spot, self.sizes[1:], strict=True))
            for channel in range(self.channels):
                c = place[0] + channel
                full = [c, *spot]
                offset = sum(x * stride for x, stride in zip(full, strides, strict=True))
                slot = swizzled((pixel * self.channels + channel) * self.size, self.swizzle) // self.size
                yield slot, offset // self.size if inside and 0 <= c < self.sizes[0] else None
            for i in range(space + 1):
                at[i] += steps[i + 1]
                if i == space or at[i] <= self.sizes[i + 1] - 1 + self.upper[i]:
                    break
                at[i] = self.lower[i]

    def loaded(self, memory: Array, place: Sequence[int], offsets: Sequence[int]) -> Array:
        """The tile of a load."""
        tile = np.zeros(self.channels * self.pixels, WORDS[WIDTHS[self.kind]])
        for slot, index in self.elements(place, offsets):
            tile[slot] = memory[index] if index is not None else NAN_BITS[self.kind] if self.nan else 0
        return tile


def where(place: Sequence[int], offsets: Sequence[int] = ()) -> Array:
    """The coordinates and offsets that a kernel reads: five words, then three halves."""
    block = np.zeros(8, np.int32)
    block[: len(place)] = place
    block[5:].view(np.uint16)[: len(offsets)] = offsets
    return block
