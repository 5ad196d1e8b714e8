"""The experiment `quantize`: trained networks with few bits per weight."""
