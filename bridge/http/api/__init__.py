"""The families of the HTTP API: a module and a class of routes for each."""
