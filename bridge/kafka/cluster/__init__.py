"""Requests about the broker itself: API versions, the quorum of one voter, ACLs and quotas."""
