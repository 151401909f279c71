"""Who sent an HTTP request, what its route needs, and the routes about users and access rules."""
