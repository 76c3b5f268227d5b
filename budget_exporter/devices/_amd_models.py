"""Marketing names of AMD cards, for those that do not tell theirs."""

from __future__ import annotations

__all__ = ["model_of"]

# (PCI device, revision) to name. Source: libdrm, data/amdgpu.ids. Only what is bought to run models; a card that is
# not here is shown by its PCI id, which is never wrong.
_NAMES = {
    ("1586", "c1"): "AMD Radeon 8060S Graphics",
    ("738c", "01"): "AMD Instinct MI100",
    ("7408", "00"): "AMD Instinct MI250X",
    ("740c", "01"): "AMD Instinct MI250X / MI250",
    ("740f", "02"): "AMD Instinct MI210",
    ("7448", "00"): "AMD Radeon Pro W7900",
    ("7449", "00"): "AMD Radeon Pro W7800 48GB",
    ("744a", "00"): "AMD Radeon Pro W7900 Dual Slot",
    ("744c", "c8"): "AMD Radeon RX 7900 XTX",
    ("744c", "cc"): "AMD Radeon RX 7900 XT",
    ("745e", "cc"): "AMD Radeon Pro W7800",
    ("74a0", "00"): "AMD Instinct MI300A",
    ("74a1", "00"): "AMD Instinct MI300X",
    ("74a2", "00"): "AMD Instinct MI308X",
    ("74a5", "00"): "AMD Instinct MI325X",
    ("7550", "c0"): "AMD Radeon RX 9070 XT",
    ("7550", "c2"): "AMD Radeon RX 9070 GRE",
    ("7550", "c3"): "AMD Radeon RX 9070",
    ("7551", "c0"): "AMD Radeon AI PRO R9700",
    ("7551", "c8"): "AMD Radeon AI PRO R9600D",
    ("7590", "c0"): "AMD Radeon RX 9060 XT",
    ("75a0", "00"): "AMD Instinct MI350X",
    ("75a3", "00"): "AMD Instinct MI355X",
}


def model_of(pci_id: str, revision: str, product_name: str) -> str:
    """
    Return what to call a card.

    ``product_name`` is the card's own word (boards with an FRU EEPROM, which a Radeon AI PRO R9700 has not; empty
    otherwise), ``pci_id`` uevent's ``PCI_ID`` (``1002:7551``), ``revision`` the text of that file (``0xc0``). A card
    that neither names itself nor is in the table is called by its PCI id in lower case.
    """
    own = " ".join("".join(c for c in product_name if c.isprintable()).split())
    device = pci_id.lower().partition(":")[2]
    return own or _NAMES.get((device, revision.lower().removeprefix("0x"))) or pci_id.lower()
