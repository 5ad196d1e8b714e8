"""The networks and data of the experiments."""
