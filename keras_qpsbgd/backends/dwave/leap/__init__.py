"""The service: connections, errors, timing and the budget."""
