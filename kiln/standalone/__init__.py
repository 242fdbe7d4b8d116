"""Programs that leave Python: linked here, without a compiler's driver or a linker."""
