"""How much of a round is communication that training feels, without overlap and with it."""
