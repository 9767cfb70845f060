"""What is not PyTorch's on the card that a recording is replayed on.

Rule: on the recorded card it is what was held there, by the CUDA context and by other processes; on
any other card there is the context alone.
"""

from __future__ import annotations

from allocsim.trace import CardMemory, Provenance, card_memory

__all__ = ["OnCard"]


class OnCard:
    """The part of a prepared device that knows what others hold.

    is_elsewhere: whether it is asked about on another card than the recorded one, of which other
        processes held a notable part.
    """

    provenance: Provenance | None
    is_elsewhere: bool

    @property
    def named_memory(self) -> int | None:
        """Bytes of the device that the recording names; None where it does not."""
        raise NotImplementedError

    @property
    def card(self) -> CardMemory | None:
        """Who held the memory of the recorded card; None where unknown, or for another card."""
        return None if self.is_elsewhere else card_memory(self.provenance)

    @property
    def others_memory(self) -> int:
        """The bytes that other processes hold on the card, where they are notable; else 0."""
        card = self.card
        return card.others if card is not None and card.is_shared else 0

    @property
    def context_memory(self) -> int:
        """The bytes that are not PyTorch's: of the context, and of others on the recorded card."""
        card = card_memory(self.provenance) if self.is_elsewhere else None
        if card is not None:
            return card.context
        return 0 if self.provenance is None else self.provenance.context_memory

    def context_memory_on(self, device_memory: int | None) -> int:
        """Return `context_memory` of a device of that size; on the recorded card what was held."""
        if self.is_elsewhere and device_memory == self.named_memory and self.provenance is not None:
            return self.provenance.context_memory
        return self.context_memory
