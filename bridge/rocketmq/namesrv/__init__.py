"""The embedded name server, and the registration of this broker with other name servers."""
