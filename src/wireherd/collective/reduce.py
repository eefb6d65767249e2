"""Sums of F32 in rank order: the same bits on every rank, whoever adds.

Floating-point addition rounds, so the order decides the result. It is ((part 0 + part 1) + part 2) + ... everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@np.errstate(all="ignore")
def add_in_order(parts: Sequence[NDArray[np.float32]], out: NDArray[np.float32]) -> None:
    """Put the sum of `parts`, in that order, into `out`, all f32[n].

    `out` may be one of the parts. The others may be overwritten too: they are scratch memory. No parts give zeros.
    Overflows and NaNs go through, as they do in ggml.
    """
    if len(parts) == 2:
        np.add(parts[0], parts[1], out)
        return
    if not parts:
        out[:] = 0
        return
    total = parts[0]
    for index in range(1, len(parts)):
        # `out` may still be needed as a later part, so the sum moves there only with or after it
        target = out if index == len(parts) - 1 or total is out or parts[index] is out else total
        np.add(total, parts[index], target)
        total = target
    if total is not out:
        out[:] = total
