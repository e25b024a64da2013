"""What a training step on packed rows is made of, without a trainer around it.

In order of reading: ``packing`` (which examples share a row), ``attention`` (each example on its own, without a mask),
``loss`` (logits only where a token is supervised), ``lora`` (a low-rank part that is added in place) and ``adapters``
(put it on a frozen base). ``onegpu.gpu_memory`` simulates these very functions, ``onegpu.qlora_finetune`` trains with
them. This module itself loads NumPy only.
"""

from onegpu.packed_training.packing import (
    IGNORE_INDEX,
    Packing,
    collate_rows,
    count_packed_rows,
    pack_lengths,
)

__all__ = ["IGNORE_INDEX", "Packing", "collate_rows", "count_packed_rows", "pack_lengths"]
