"""Bearer tokens (JWT) of an identity provider. These modules are imported only with `security.oauth_keys`."""
