"""The tasks: `catalogue.TASKS` contains all of them."""
