"""Operations of a forward pass on the CPU that torch does not have in one call, compiled where the executor starts."""
