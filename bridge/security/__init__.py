"""Users, access rules and the one decision whether a principal may do something; knows no wire format.

    users.py         users and their verifiers, as state records
    user_changes.py  how users are added, changed and removed, and who may do so with super users
    scram.py         the server's side of SCRAM (RFC 5802)
    passwords.py     verifiers of a password, and its comparison, for threads
    logins.py        from a user name and a proof to a session
    secret_box.py    encryption of RocketMQ's secret keys
    oauth/           bearer tokens of an identity provider
    rules.py         access rules: their values, and which rules name a resource
    tools/           filters of rules, and rules as words
    acls.py          the stored rules, as state records
    needs.py         what a request needs: operations on resources
    resources.py     what an operation on a topic with messages of others needs
    authorizer.py    the decision: `Authorizer.allows(session, resource type, name, operation)`
    rights.py        what one session may do
    audit/           what is written down about logins, refusals and changes
    quotas/          how much the clients of a user or of a client id may use
    session.py       who a connection belongs to, with its cached decisions
    security.py      all of these in one object

This package may import `clock`, `config` and `records` of `bridge`, and `protocol/names.py`.
"""
