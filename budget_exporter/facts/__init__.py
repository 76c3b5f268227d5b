"""The value types that cross rooms, a file each: frozen, slotted, without behaviour that needs I/O."""
