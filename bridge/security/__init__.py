"""Users, access rules and the one decision whether a principal may do something; knows no wire format.

    users.py         users and their verifiers, as state records
    scram.py         the server's side of SCRAM (RFC 5802)
    passwords.py     verifiers of a password, and its comparison, for threads
    secret_box.py    encryption of RocketMQ's secret keys
    rules.py         access rules: their values, and which rules name a resource
    acls.py          the stored rules, as state records
    authorizer.py    the decision: `Authorizer.allows(session, resource type, name, operation)`
    audit/           what is written down about logins, refusals and changes
    quotas/          how much the clients of a user or of a client id may use
    session.py       who a connection belongs to, with its cached decisions

This package may import `clock`, `config` and `records` of `bridge`, and `protocol/names.py`.
"""
