"""How much of Spektral works."""
