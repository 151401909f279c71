"""A broker that shares its log with others: the numbers of the brokers, and what a standby answers.

members.py             each broker's number and addresses, in the object store
membership.py          this broker's part in the stream: it joins, follows, takes over, uploads
security_mark.py       the brokers of the stream have security on, and one key
owner_requests.py      what a standby asks the owner for its Kafka clients; owner_login.py: its login
forwarding.py          what a standby sends on to the owner for its RocketMQ clients
standby_probe.py       which standbys routes name
standby_context.py     what the answers of a standby are made of
standby_kafka.py       Kafka clients of a standby: Metadata and coordinators name the owner, all else is refused
standby_rocketmq.py    RocketMQ clients of a standby: routes name the owner and standbys, sends go to the owner
standby_http.py        health and status of a standby; all else leads to the owner
"""
