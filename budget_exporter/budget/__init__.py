"""Pure: the arithmetic of budgets on ints and floats, no I/O and no clock."""
