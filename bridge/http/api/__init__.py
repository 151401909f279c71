"""The routes of the HTTP API: a module and a class for each kind of object."""
