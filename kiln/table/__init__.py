"""The machinery of the op table: what an entry is, how it is declared, found and explained."""
