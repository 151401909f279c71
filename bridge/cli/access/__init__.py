"""Commands about users and access rules, and the login of all commands."""
