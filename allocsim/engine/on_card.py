"""Memory of a replayed card that PyTorch does not hold.

On the recorded card the CUDA context and other processes hold it; on any other card only the
context does.
"""

from __future__ import annotations

from allocsim.trace import CardMemory, Provenance, card_memory

__all__ = ["OnCard"]


class OnCard:
    """Base class of `Prepared` with the memory of the card that PyTorch does not hold.

    is_elsewhere: True for another card than the recorded one, if other processes held a notable
        part of the recorded card.
    """

    provenance: Provenance | None
    is_elsewhere: bool

    @property
    def named_memory(self) -> int | None:
        """Bytes of the device as named by the recording; None if it names none."""
        raise NotImplementedError

    @property
    def card(self) -> CardMemory | None:
        """Use of the recorded card's memory; None if unknown, or for another card."""
        return None if self.is_elsewhere else card_memory(self.provenance)

    @property
    def others_memory(self) -> int:
        """Bytes that other processes hold on the card if that is a notable part; else 0."""
        card = self.card
        return card.others if card is not None and card.is_shared else 0

    @property
    def context_memory(self) -> int:
        """Bytes outside PyTorch: the context, and on the recorded card other processes."""
        card = card_memory(self.provenance) if self.is_elsewhere else None
        if card is not None:
            return card.context
        return 0 if self.provenance is None else self.provenance.context_memory

    def context_memory_on(self, device_memory: int | None) -> int:
        """Return `context_memory` for a device of that size; the recorded value on that card."""
        if self.is_elsewhere and device_memory == self.named_memory and self.provenance is not None:
            return self.provenance.context_memory
        return self.context_memory
