"""The methods that choose the levels of a layer, in NumPy."""
